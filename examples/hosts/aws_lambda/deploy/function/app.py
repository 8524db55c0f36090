"""A function on AWS: orders from a queue, what was placed to a topic or queue, and two functions for a schedule."""

import os

from msgspec import Struct
from sqlalchemy import String
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, Endpoint, IdentityField, Queue
from onceonly.integrations.aws_lambda import relay_handler, sqs_handler

shop = Endpoint(
    "shop",
    store=os.environ.get("SHOP_STORE", "postgresql://localhost/shop"),
    transport=f"sqs://{os.environ.get('AWS_REGION', 'eu-central-1')}",
    identity=IdentityField("order_id"),
    events={"OrderPlaced": Queue(os.environ.get("PLACED_QUEUE", "order-placed"))},
    receives_from=Queue(os.environ.get("ORDERS_QUEUE", "orders")),
    timeout=10.0,
)


class Base(DeclarativeBase):
    """The application's tables."""


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


@shop.handler
async def place_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write the row and announce it."""
    session.add(Order(order_id=order.order_id))
    context.publish(OrderPlaced(order_id=order.order_id))


orders = sqs_handler(shop)
relay = relay_handler(shop)
