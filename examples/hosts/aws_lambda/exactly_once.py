"""Orders in a function, exactly once: the row and the event are in one commit. Nothing else runs, no relay and no worker."""

from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, PLACED, STORE, Order, report
from examples.hosts.sqs import KEY, REGION, SECRET
from onceonly import Context, Endpoint, IdentityField, Queue, WorkerSettings
from onceonly.integrations.aws_lambda import sqs_handler

shop = Endpoint(
    "shop",
    store=STORE,
    transport=f"sqs://{KEY}:{SECRET}@{REGION}?endpoint={BROKER}",
    identity=IdentityField("order_id"),
    timeout=2.0,
    worker=WorkerSettings(grace=1.0),
    events={"OrderPlaced": Queue(PLACED)},
)


class PlaceOrder(Struct):
    """A command of a client. With `fails` its first attempt fails."""

    order_id: str
    fails: bool = False


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


@shop.handler
async def place_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order_id=order.order_id))
    report(order.order_id)
    if order.fails and not context.attempts:
        raise ValueError("not today")


handler = sqs_handler(shop)
