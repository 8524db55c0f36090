"""Orders with Django's ORM, exactly once: the claim of the message, the row and the event are in one commit of Django's."""

from dataclasses import dataclass

from examples.hosts.django_worker.models import Order
from examples.hosts.program import PLACED, report
from onceonly import Context, IdentityField, Queue
from onceonly.integrations.django import Endpoint

shop = Endpoint("orders", identity=IdentityField("order_id"), events={"OrderPlaced": Queue(PLACED)}, relay_after=1)


@dataclass
class PlaceOrder:
    """A command of a client."""

    order_id: str


@dataclass
class OrderPlaced:
    """What other services learn."""

    order_id: str


@shop.handler
def place_order(order: PlaceOrder, context: Context) -> None:
    """Write the row and announce it."""
    Order.objects.create(order_id=order.order_id)
    report(order.order_id)
    context.publish(OrderPlaced(order.order_id))
