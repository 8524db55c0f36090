"""The view that is measured: it writes one row and publishes one event."""

import json
from dataclasses import dataclass
from functools import partial
from threading import local

import pika
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from benchmarks.django_views.models import Order
from benchmarks.django_views.settings import BROKER, EXCHANGE, KIND
from onceonly.integrations.django import Endpoint, idempotent

shop = Endpoint("bench", **({"relay_after": 0.2} if KIND == "once_relay" else {}))
_THREAD = local()


@dataclass
class OrderPlaced:
    """The event."""

    order_id: str
    number: int


def place_plainly(request: HttpRequest) -> JsonResponse:
    """Write the row, and publish after the commit."""
    order_id = json.loads(request.body)["order_id"]
    with transaction.atomic():
        order = Order.objects.create(order_id=order_id)
        transaction.on_commit(partial(publish, {"order_id": order_id, "number": order.pk}))
    return JsonResponse({"placed": order.pk}, status=201)


@idempotent(shop)
def place_once(request: HttpRequest) -> JsonResponse:
    """Write the row, and publish with it."""
    order_id = json.loads(request.body)["order_id"]
    order = Order.objects.create(order_id=order_id)
    shop.publish(OrderPlaced(order_id, order.pk))
    return JsonResponse({"placed": order.pk}, status=201)


def publish(event: dict[str, object]) -> None:
    """Publish an event on this thread's channel, which stays open."""
    channel = getattr(_THREAD, "channel", None)
    if channel is None:
        channel = _THREAD.channel = pika.BlockingConnection(pika.URLParameters(BROKER)).channel()
        if KIND != "unconfirmed":
            channel.confirm_delivery()
    persistent = pika.BasicProperties(content_type="application/json", delivery_mode=2)
    channel.basic_publish(EXCHANGE, "", json.dumps(event).encode(), persistent)


urlpatterns = [path("orders", csrf_exempt(place_once if KIND.startswith("once") else place_plainly))]
