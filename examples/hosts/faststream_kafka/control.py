"""Orders with FastStream on Kafka: each order is a row, and an event. The row is committed, then the event is sent."""

import asyncio

from faststream import AckPolicy, FastStream
from faststream.kafka import KafkaBroker, TopicPartition
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))
broker = KafkaBroker(BROKER.partition("://")[2])
app = FastStream(broker)
places = {"group_id": ORDERS, "partitions": [TopicPartition(ORDERS, each) for each in range(2)]}


class PlaceOrder(BaseModel):
    """A command of a client."""

    order_id: str


class OrderPlaced(BaseModel):
    """What other services learn."""

    order_id: str


@broker.subscriber(**places, auto_offset_reset="earliest", ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.publisher(PLACED)
async def place_order(order: PlaceOrder) -> OrderPlaced:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order.order_id))
    report(order.order_id)
    return OrderPlaced(order_id=order.order_id)


def main() -> None:
    """Run the application."""
    asyncio.run(app.run())
