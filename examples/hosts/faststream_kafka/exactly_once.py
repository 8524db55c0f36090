"""Orders with FastStream on Kafka, exactly once: the row and the event are in one commit, with the order's id as key."""

import asyncio

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, TopicPartition
from pydantic import BaseModel

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Endpoint, IdentityField
from onceonly.integrations.faststream import ExactlyOnceMiddleware, Session, lifespan

shop = Endpoint("shop", store=STORE, transport=BROKER)
exactly_once = ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))
broker = KafkaBroker(BROKER.partition("://")[2], middlewares=[exactly_once])
app = FastStream(broker, lifespan=lifespan(shop))
places = {"group_id": ORDERS, "partitions": [TopicPartition(ORDERS, each) for each in range(2)]}


class PlaceOrder(BaseModel):
    """A command of a client."""

    order_id: str


class OrderPlaced(BaseModel):
    """What other services learn."""

    order_id: str


@broker.subscriber(**places, auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher(PLACED)
async def place_order(order: PlaceOrder, session: Session) -> OrderPlaced:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    report(order.order_id)
    return OrderPlaced(order_id=order.order_id)


def main() -> None:
    """Run the application."""
    asyncio.run(app.run())
