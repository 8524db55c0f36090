"""Orders with Azure Functions: each order is a row, and an event by an output binding, which the host sends afterwards."""

import json
from uuid import uuid4

import aio_pika
import azure.functions as func
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))
app = func.FunctionApp()


@app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SERVICE_BUS")
@app.service_bus_queue_output(arg_name="$return", queue_name="order-placed", connection="SERVICE_BUS")
async def place_order(message: func.ServiceBusMessage) -> str:
    """Write the row and announce it."""
    order_id = json.loads(message.get_body())["order_id"]
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    return json.dumps({"order_id": order_id})


@app.route(route="orders", methods=["POST"])
async def accept_order(req: func.HttpRequest) -> func.HttpResponse:
    """Write the row of a client's request, and announce it afterwards."""
    order_id = str(req.get_json()["order_id"])
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    async with await aio_pika.connect(BROKER) as connection:
        channel = await connection.channel()
        body = json.dumps({"order_id": order_id}).encode()
        await channel.default_exchange.publish(aio_pika.Message(body), PLACED)
    return func.HttpResponse(json.dumps({"placed": uuid4().hex}), status_code=201, mimetype="application/json")


@app.retry(strategy="fixed_delay", max_retry_count="-1", delay_interval="00:00:01")
@app.timer_trigger(arg_name="timer", schedule="0 * * * * *")
async def count_orders(timer: func.TimerRequest) -> None:
    """Write a row for each tick."""
    tick = f"tick {timer.schedule_status['Next']}"
    async with sessions.begin() as session:
        session.add(Order(order_id=tick))
    report(tick)
