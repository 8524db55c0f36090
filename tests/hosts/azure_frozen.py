"""A function app whose worker waits at a gate, for `test_azure_functions`: a test freezes it there, and thaws it later.

`HOSTS_GATE` names a place, `body` or `handler`, and a file: "handler:/a/file". The program waits there until the file exists.
"""

import asyncio
import json
import os
from pathlib import Path

import azure.functions as func
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, IdentityField, Queue
from onceonly.integrations.azure_functions import handled_by

PLACE, _, GATE = os.environ.get("HOSTS_GATE", "").partition(":")


class PlaceOrder(Struct):
    """A command of a client."""

    order_id: str


class CountedOrder(Struct):
    """An order on documents, and how often it was placed."""

    id: str = ""
    times: int = 0


shop = Endpoint(
    "shop",
    store=STORE,
    transport=BROKER,
    identity=IdentityField("order_id"),
    timeout=3.0,
    events={"dict": Queue(PLACED)},
)
app = func.FunctionApp()


async def pass_gate(place: str) -> None:
    """Wait at the gate of this place, if there is one."""
    while place == PLACE and not Path(GATE).exists():  # noqa: ASYNC110, ASYNC240 - another process opens it
        await asyncio.sleep(0.01)


if STORE.startswith("postgresql"):

    @shop.handler
    async def write_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
        """Write the row and announce it."""
        session.add(Order(order_id=order.order_id))
        context.publish({"order_id": order.order_id}, type="dict")
        report(f"handler {order.order_id}")
        await pass_gate("handler")
else:

    @shop.handler(entity=CountedOrder, key="order_id")
    async def count_order(message: PlaceOrder, order: CountedOrder, context: Context) -> None:
        """Count the order and announce it."""
        order.id, order.times = message.order_id, order.times + 1
        context.publish({"order_id": message.order_id}, type="dict")
        report(f"handler {message.order_id}")
        await pass_gate("handler")


@app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SERVICE_BUS")
@handled_by(shop)
async def place_order(message: func.ServiceBusMessage) -> None:
    """Wait in the body. Its message is handled by the handler above."""
    report(f"body {json.loads(message.get_body())['order_id']}")
    await pass_gate("body")


@app.service_bus_queue_trigger(arg_name="message", queue_name="plain", connection="SERVICE_BUS")
async def place_plainly(message: func.ServiceBusMessage) -> None:
    """Write the row without onceonly."""
    order_id = json.loads(message.get_body())["order_id"]
    report(f"handler {order_id}")
    await pass_gate("handler")
    async with async_sessionmaker(create_async_engine(STORE)).begin() as session:
        session.add(Order(order_id=order_id))
