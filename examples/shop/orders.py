"""What the shop keeps, and what happens to an order. Nothing here knows of the web."""

import os
from dataclasses import dataclass

from sqlalchemy import ForeignKey, String
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, Endpoint

STORE = os.environ.get("SHOP_STORE", "sqlite+aiosqlite:///shop.db")  # or postgresql+asyncpg://user:password@host/db
TRANSPORT = os.environ.get("SHOP_TRANSPORT", "sqlite:///queue.db")  # or amqp://user:password@host/vhost
PACE = float(os.environ.get("SHOP_PACE", "1"))  # seconds before each step: only for a person to see it happen

PRICES = {"tea": 4, "coffee": 5, "cocoa": 6}


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    """What a customer ordered, and how far it is."""

    __tablename__ = "shop_orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(20))
    quantity: Mapped[int]
    state: Mapped[str] = mapped_column(String(10), default="ordered")


class Invoice(Base):
    """A second one for the same order would be a mistake, and nothing in this table prevents it."""

    __tablename__ = "shop_invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))
    amount: Mapped[int]


class Parcel(Base):
    """The same goes for parcels."""

    __tablename__ = "shop_parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id))


@dataclass
class OrderPlaced:
    """Said by the web application."""

    order_id: int


@dataclass
class OrderBilled:
    """Said once there is an invoice."""

    order_id: int


engine = create_async_engine(STORE)
sessions = async_sessionmaker(engine)
shop = Endpoint("shop", store=engine, transport=TRANSPORT, metadata=Base.metadata)


@shop.handler
async def bill(placed: OrderPlaced, session: AsyncSession, context: Context) -> None:
    """Write the invoice."""
    order = await session.get_one(Order, placed.order_id)
    order.state = "billed"
    session.add(Invoice(order_id=order.id, amount=PRICES[order.item] * order.quantity))
    context.publish(OrderBilled(order.id), delay=PACE)


@shop.handler
async def ship(billed: OrderBilled, session: AsyncSession) -> None:
    """Pack the parcel."""
    order = await session.get_one(Order, billed.order_id)
    order.state = "shipped"
    session.add(Parcel(order_id=order.id))
