"""Orders with Django, exactly once: the row, the event and the response are in one commit, with the client's key."""

import json
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.response import Response
from rest_framework.views import APIView

from examples.hosts.django_shop.endpoint import shop
from examples.hosts.django_shop.models import Order
from examples.hosts.program import report
from onceonly.integrations.django import idempotent


@dataclass
class OrderPlaced:
    """What the other service receives."""

    order_id: str
    number: int


@csrf_exempt
@require_POST
@idempotent(shop)
def place_order(request: HttpRequest) -> JsonResponse:
    """Place an order, by a plain view."""
    order = place(json.loads(request.body)["order_id"])
    return JsonResponse({"placed": order.order_id}, status=201)


class Orders(APIView):
    """Orders, by Django REST framework."""

    @idempotent(shop)
    def post(self, request: Any) -> Response:
        """Place an order."""
        order = place(request.data["order_id"])
        return Response({"placed": order.order_id}, status=201)


def place(order_id: str) -> Order:
    """Write the row and announce it."""
    order = Order.objects.create(order_id=order_id)
    report(order_id)
    shop.publish(OrderPlaced(order_id, order.pk))
    return order


urlpatterns = [path("admin/", admin.site.urls), path("orders", place_order), path("api/orders", Orders.as_view())]
