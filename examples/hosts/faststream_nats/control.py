"""Orders with FastStream on NATS: each order is a row, and an event. The row is committed, then the event is sent."""

import asyncio

from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker
from nats.js.api import ConsumerConfig
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))
broker = NatsBroker(BROKER)
app = FastStream(broker)
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
async def place_order(order: PlaceOrder) -> OrderPlaced:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order.order_id))
    report(order.order_id)
    return OrderPlaced(order_id=order.order_id)


def main() -> None:
    """Run the application."""
    asyncio.run(app.run())
