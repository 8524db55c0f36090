"""A handler that writes a row and publishes an event."""

import os
from dataclasses import dataclass

from benchmarks.django_handlers.models import Order
from benchmarks.django_handlers.settings import PREFIX
from onceonly import Context, IdentityField, Queue, WorkerSettings
from onceonly.integrations.django import Endpoint

shop = Endpoint(
    "in",
    identity=IdentityField("order_id"),
    events={"OrderPlaced": Queue(f"{PREFIX}out")},
    worker=WorkerSettings(concurrency=int(os.environ.get("DJANGO_BENCH_CONCURRENCY", "4"))),
)


@dataclass
class PlaceOrder:
    """What is handled."""

    order_id: str


@dataclass
class OrderPlaced:
    """What is published."""

    order_id: str


@shop.handler
def place(order: PlaceOrder, context: Context) -> None:
    """Write the row, and announce it."""
    Order.objects.create(order_id=order.order_id)
    context.publish(OrderPlaced(order.order_id))
