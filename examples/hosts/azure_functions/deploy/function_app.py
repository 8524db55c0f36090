"""A function app that can be deployed as it is: orders of a Service Bus queue become rows in PostgreSQL, and events."""

import os

import azure.functions as func
from msgspec import Struct
from sqlalchemy import MetaData, String
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, Endpoint, IdentityField, Queue, Transaction
from onceonly.integrations.azure_functions import handled_by, idempotent, maintenance, once_per_tick


class Base(DeclarativeBase):
    """The application's tables."""

    metadata = MetaData()


class Order(Base):
    """An order that was placed."""

    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(80))


class PlaceOrder(Struct):
    """A command of a client."""

    order_id: str


class OrderPlaced(Struct):
    """What other services learn."""

    order_id: str


shop = Endpoint(
    "shop",
    store=os.environ["SHOP_STORE"],
    transport=os.environ["SHOP_TRANSPORT"],
    identity=IdentityField("order_id"),
    events={"OrderPlaced": Queue("order-placed")},
    receives_from=Queue("orders"),
)
app = func.FunctionApp(http_auth_level=func.AuthLevel.FUNCTION)
app.register_functions(maintenance(shop))


@shop.handler
async def write_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order_id=order.order_id))


@app.service_bus_queue_trigger(arg_name="message", queue_name="orders", connection="SERVICE_BUS")
@handled_by(shop, remaining=280)
async def place_order(message: func.ServiceBusMessage) -> None:
    """Its message is handled by `write_order`."""


@app.route(route="orders", methods=["POST"])
@idempotent(shop)
async def accept_order(req: func.HttpRequest, tx: Transaction) -> func.HttpResponse:
    """Write the row of a client's request, which has an `Idempotency-Key`."""
    order_id = str(req.get_json()["order_id"])
    tx.sql.add(Order(order_id=order_id))
    tx.publish(OrderPlaced(order_id=order_id))
    return func.HttpResponse(status_code=201)


@app.retry(strategy="fixed_delay", max_retry_count="5", delay_interval="00:00:10")
@app.timer_trigger(arg_name="timer", schedule="0 0 3 * * *")
@once_per_tick(shop)
async def open_the_day(timer: func.TimerRequest, tx: Transaction) -> None:
    """Write a row for each day."""
    tx.sql.add(Order(order_id=f"day {timer.schedule_status['Next']}"))
