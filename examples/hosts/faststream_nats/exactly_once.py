"""Orders with FastStream on NATS, exactly once: the row and the event are in one commit, with the order's id as key."""

import asyncio

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker
from nats.js.api import ConsumerConfig
from pydantic import BaseModel

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Endpoint, IdentityField
from onceonly.integrations.faststream import ExactlyOnceMiddleware, Session, lifespan

shop = Endpoint("shop", store=STORE, transport=BROKER)
exactly_once = ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))
broker = NatsBroker(BROKER, middlewares=[exactly_once])
app = FastStream(broker, lifespan=lifespan(shop))
orders = JStream(ORDERS, declare=False)
patience = ConsumerConfig(ack_wait=3)  # seconds until the message of a process that died comes again


class PlaceOrder(BaseModel):
    """A command of a client."""

    order_id: str


class OrderPlaced(BaseModel):
    """What other services learn."""

    order_id: str


@broker.subscriber(
    ORDERS, stream=orders, durable=ORDERS, pull_sub=True, config=patience, ack_policy=AckPolicy.NACK_ON_ERROR, max_workers=5
)
@broker.publisher(PLACED, stream=PLACED)
async def place_order(order: PlaceOrder, session: Session) -> OrderPlaced:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    report(order.order_id)
    return OrderPlaced(order_id=order.order_id)


def main() -> None:
    """Run the application."""
    asyncio.run(app.run())
