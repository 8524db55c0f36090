"""Orders with Django: each order is a row, and an event. The row is committed, then the event is sent."""

import json
from typing import Any

from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.response import Response
from rest_framework.views import APIView

from examples.hosts.django_shop.models import Order
from examples.hosts.http_clients import publish
from examples.hosts.program import PLACED, report


@csrf_exempt
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Place an order, by a plain view."""
    order = place(json.loads(request.body)["order_id"])
    return JsonResponse({"placed": order.order_id}, status=201)


class Orders(APIView):
    """Orders, by Django REST framework."""

    def post(self, request: Any) -> Response:
        """Place an order."""
        order = place(request.data["order_id"])
        return Response({"placed": order.order_id}, status=201)


@transaction.atomic
def place(order_id: str) -> Order:
    """Write the row and announce it."""
    order = Order.objects.create(order_id=order_id)
    report(order_id)
    transaction.on_commit(lambda: publish({"order_id": order_id, "number": order.pk}, PLACED))
    return order


urlpatterns = [path("admin/", admin.site.urls), path("orders", place_order), path("api/orders", Orders.as_view())]
