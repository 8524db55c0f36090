"""A function app on documents, for `test_azure_functions`: each order and each tick is an entity that counts its changes."""

import os

import azure.functions as func
from msgspec import Struct

from examples.hosts.program import BROKER, PLACED, STORE
from onceonly import Context, Endpoint, IdentityField, Queue, Transaction, WorkerSettings
from onceonly.integrations.azure_functions import handled_by, maintenance, once_per_tick


class Order(Struct):
    """An order or a tick, and how often it was placed."""

    id: str = ""
    times: int = 0


class PlaceOrder(Struct):
    """A command of a client."""

    order_id: str


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


shop = Endpoint(
    "shop",
    store=STORE,
    transport=BROKER,
    identity=IdentityField("order_id"),
    timeout=2.0,
    relay_after=2.0,
    worker=WorkerSettings(grace=1.0),
    events={"OrderPlaced": Queue(PLACED)},
)
app = func.FunctionApp()
app.register_functions(maintenance(shop))


@shop.handler(entity=Order, key="order_id")
async def write_order(message: PlaceOrder, order: Order, context: Context) -> None:
    """Count the order and announce it."""
    order.id = message.order_id
    order.times += 1
    context.publish(OrderPlaced(order_id=message.order_id))
    os.write(1, f"{message.order_id}\n".encode())


@app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SERVICE_BUS")
@handled_by(shop)
async def place_order(message: func.ServiceBusMessage) -> None:
    """Its message is handled by `write_order`."""


@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:01")
@app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
@once_per_tick(shop)
async def count_orders(timer: func.TimerRequest, tx: Transaction) -> None:
    """Count the tick."""
    tick = f"tick {timer.schedule_status['Next']}"
    found = await tx.entity(Order, tick, fresh=Order(id=tick))
    found.times += 1
    os.write(1, f"{tick}\n".encode())
