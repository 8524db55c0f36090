"""A program as a user would write it; the tests of the command line copy it into a directory of their own."""

from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Reject

metadata = MetaData()
orders = Table(
    "orders", metadata, Column("line", Integer, primary_key=True), Column("id", String(40)), Column("total", Integer)
)


@dataclass
class PlaceOrder:
    """Place an order."""

    order_id: str
    total: int


@dataclass
class OrderPlaced:
    """An order was placed."""

    order_id: str


shop = Endpoint("shop", store="sqlite:///shop.db", transport="sqlite:///queue.db", metadata=metadata)
mailer = Endpoint("mailer", store="sqlite:///mail.db", transport="sqlite:///queue.db")
not_an_endpoint = 3


@shop.handler
async def place_order(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
    """Write one row, whatever was written before."""
    if order.total < 0:
        raise Reject("a total below zero")
    await session.execute(insert(orders).values(id=order.order_id, total=order.total))
    context.publish(OrderPlaced(order.order_id))


@mailer.handler
async def mail(placed: OrderPlaced) -> None:
    """Do nothing: receiving is enough."""
