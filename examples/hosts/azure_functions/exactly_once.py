"""Orders with Azure Functions, exactly once: row and event are in one commit, and the message is completed afterwards."""

import json
from uuid import uuid4

import azure.functions as func
from msgspec import Struct
from sqlalchemy.ext.asyncio import AsyncSession

from examples.hosts.program import BROKER, PLACED, STORE, Order, report
from onceonly import Context, Endpoint, IdentityField, Queue, Transaction, WorkerSettings
from onceonly.integrations.azure_functions import handled_by, idempotent, maintenance, once_per_tick

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


class PlaceOrder(Struct):
    """A command of a client."""

    order_id: str


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


@shop.handler
async def write_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order_id=order.order_id))
    report(order.order_id)


@app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SERVICE_BUS")
@handled_by(shop)
async def place_order(message: func.ServiceBusMessage) -> None:
    """Its message is handled by `write_order`."""


@app.route(route="orders", methods=["POST"])
@idempotent(shop)
async def accept_order(req: func.HttpRequest, tx: Transaction) -> func.HttpResponse:
    """Write the row of a client's request and announce it. Each time that it runs it makes another answer."""
    order_id = str(req.get_json()["order_id"])
    tx.sql.add(Order(order_id=order_id))
    tx.publish(OrderPlaced(order_id=order_id))
    report(order_id)
    return func.HttpResponse(json.dumps({"placed": uuid4().hex}), status_code=201, mimetype="application/json")


@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:01")
@app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
@once_per_tick(shop)
async def count_orders(timer: func.TimerRequest, tx: Transaction) -> None:
    """Write a row for each tick."""
    tick = f"tick {timer.schedule_status['Next']}"
    tx.sql.add(Order(order_id=tick))
    report(tick)
