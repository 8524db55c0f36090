"""Orders with FastStream on Redis, exactly once: the row and the event are in one commit, with the order's id as key."""

import asyncio

from faststream import AckPolicy, FastStream
from faststream.redis import RedisBroker, StreamSub
from pydantic import BaseModel

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Endpoint, IdentityField
from onceonly.integrations.faststream import ExactlyOnceMiddleware, Session, lifespan

shop = Endpoint("shop", store=STORE, transport=BROKER)
exactly_once = ExactlyOnceMiddleware(shop, key=IdentityField("order_id"))
broker = RedisBroker(BROKER, middlewares=[exactly_once])
app = FastStream(broker, lifespan=lifespan(shop))
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
async def place_order(order: PlaceOrder, session: Session) -> OrderPlaced:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    report(order.order_id)
    return OrderPlaced(order_id=order.order_id)


def main() -> None:
    """Run the application."""
    asyncio.run(app.run())
