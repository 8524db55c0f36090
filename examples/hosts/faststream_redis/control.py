"""Orders with FastStream on Redis: each order is a row, and an event. The row is committed, then the event is sent."""

import asyncio

from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))
broker = RedisBroker(BROKER)
app = FastStream(broker)
orders = StreamSub(ORDERS, group="shop", consumer="shop", max_records=10)
abandoned = StreamSub(ORDERS, group="shop", consumer="shop", min_idle_time=1000)  # messages of a process that died come again


class PlaceOrder(BaseModel):
    """A command of a client."""

    order_id: str


class OrderPlaced(BaseModel):
    """What other services learn."""

    order_id: str


@broker.subscriber(stream=abandoned, ack_policy=AckPolicy.NACK_ON_ERROR)
@broker.subscriber(stream=orders, ack_policy=AckPolicy.NACK_ON_ERROR, max_workers=5)
@broker.publisher(stream=PLACED)
async def place_order(order: PlaceOrder) -> OrderPlaced:
    """Write the row and announce it."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order.order_id))
    report(order.order_id)
    return OrderPlaced(order_id=order.order_id)


def main() -> None:
    """Run the application."""
    asyncio.run(app.run())
