"""Three endpoints that send to a sink, one for each way to deduplicate, on SQLite files in this directory."""

import os
from dataclasses import dataclass

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, DedupStore, Endpoint, Reject, Retry, Tokens

QUEUE = os.environ.get("UPGRADE_QUEUE", "sqlite:///queue.db")


class Base(DeclarativeBase):
    """The tables of the endpoints."""


class Order(Base):
    """One row for each message that took effect; two rows for one number are a duplicate."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    endpoint: Mapped[str]
    number: Mapped[int]


@dataclass
class PlaceOrder:
    """A command to one endpoint."""

    number: int


@dataclass
class Forwarded:
    """What each endpoint sends to the sink."""

    endpoint: str
    number: int


@dataclass
class Account:
    """An entity."""

    owner: str
    orders: int = 0


@dataclass
class Count:
    """A command that changes an entity."""

    owner: str


def made(name: str, **settings: object) -> Endpoint:
    """Make an endpoint with a store of its own."""
    retry = Retry(immediate=0, delayed=2, first_delay=1)
    endpoint = Endpoint(name, store=f"sqlite:///{name}.db", transport=QUEUE, metadata=Base.metadata, retry=retry, **settings)  # type: ignore[arg-type]

    @endpoint.handler
    async def place(order: PlaceOrder, session: AsyncSession, context: Context) -> None:
        if order.number < 0:
            raise Reject("negative")
        if order.number == FAILING and context.attempts == 0:
            raise ValueError("the first attempt fails")
        session.add(Order(endpoint=name, number=order.number))
        context.send(Forwarded(name, order.number), to="sink")

    return endpoint


FAILING = 7
history = made("history")
tokens = made("tokens", deduplication=Tokens(subscribers={}))
marks = made("marks", deduplication=DedupStore("sqlite:///done.db"))
ENDPOINTS = (history, tokens, marks)


@history.handler(entity=Account, key="owner")
async def count(_: Count, account: Account) -> None:
    """Count on an entity."""
    account.orders += 1
