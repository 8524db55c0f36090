"""A program with a breakpoint in a handler, which has hardly any time; the tests of the command line copy it."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from onceonly import Endpoint, Retry, WorkerSettings

metadata = MetaData()
orders = Table("orders", metadata, Column("line", Integer, primary_key=True), Column("id", String(40)))


@dataclass
class Waits:
    """Taken by an `async def` handler."""

    order_id: str


@dataclass
class Blocks:
    """Taken by a `def` handler."""

    order_id: str


shop = Endpoint(
    "shop",
    store="sqlite:///shop.db",
    transport="sqlite:///queue.db",
    metadata=metadata,
    retry=Retry(immediate=0, delayed=0),
    timeout=0.01,
    worker=WorkerSettings(grace=0.01, def_handlers="thread"),
)


@shop.handler
async def waits(order: Waits, session: AsyncSession) -> None:
    """Stop, and then take longer than the time-out."""
    breakpoint()  # noqa: T100 - what is tested
    await asyncio.sleep(0.1)
    await session.execute(insert(orders).values(id=order.order_id))


@shop.handler
def blocks(order: Blocks, session: Session) -> None:
    """Stop."""
    breakpoint()  # noqa: T100 - what is tested
    session.execute(insert(orders).values(id=order.order_id))
