"""Ten thousand copies of one message, and sixteen workers that want it."""

import asyncio
import time
from dataclasses import dataclass
from uuid import uuid4

import pytest
from sqlalchemy import MetaData, String, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, Endpoint, WorkerSettings
from onceonly.assembly import open_database, open_dead_letters, open_transport, schemas, temporary_transport
from onceonly.formats.cloudevents import take_apart
from onceonly.model.identity import Identity, outgoing_id, without_instant
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Depth, Topology, Transport
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables, drop
from tests.servers.available import MEASURED, RABBITMQ, need

COPIES, WORKERS, AT_ONCE = 10_000, 16, 2_000
EMPTY = Depth(waiting=0, held=0, delayed=0)


class Base(DeclarativeBase):
    """The user's tables."""

    metadata = MetaData()


class Paid(Base):
    """One row for each time the handler's work was committed: nothing else keeps it from being there twice."""

    __tablename__ = "paid_once"
    line: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[str] = mapped_column(String(40))


@dataclass
class Pay:
    """The command that comes so often."""

    order_id: str


@dataclass
class OrderPaid:
    """What is announced."""

    order_id: str


def shop(store: str, transport: str) -> Endpoint:
    """Make one of the workers."""
    settings = WorkerSettings(concurrency=1)  # sixteen workers that grow need more connections than the server allows
    shop = Endpoint("shop", store=store, transport=transport, metadata=Base.metadata, worker=settings)

    @shop.handler
    async def pay(order: Pay, session: AsyncSession, context: Context) -> None:
        session.add(Paid(order_id=order.order_id))
        context.publish(OrderPaid(order.order_id))

    return shop


@pytest.mark.slow
async def test_ten_thousand_copies_are_one_message_to_sixteen_workers(postgresql_url: str) -> None:
    """One row, one message under one id however often it is sent, an empty queue, no dead letter."""
    store = f"{postgresql_url}?prefix=copies_"
    transport = f"{need(RABBITMQ)}?prefix=t{uuid4().hex[:10]}."
    ledger = Topology(endpoint="ledger", events=("OrderPaid",))
    async with (
        open_database(store) as database,
        temporary_transport(transport, [shop(store, transport).topology(), ledger]),
        open_transport(transport, "ledger") as outside,
    ):
        await outside.declare([ledger, shop(store, transport).topology()])
        await create(database, *schemas("store"))
        await create_user_tables(database, Base.metadata)
        try:
            await fill(outside)
            since = time.monotonic()
            await work(outside, [shop(store, transport) for _ in range(WORKERS)])
            MEASURED.append(f"{COPIES:,} copies, {WORKERS} workers: {time.monotonic() - since:.1f} s")
            assert await rows(database) == 1
            (announced_as,) = set(await announced(outside))
            assert without_instant(announced_as) == without_instant(outgoing_id("shop", Identity("till", "m1"), 0))
            async with open_dead_letters(store) as letters:
                assert await letters.count(Filter()) == 0
        finally:
            async with database.writing() as connection:
                await connection.run_sync(Base.metadata.drop_all)
            await drop(database, *schemas("store"))


async def fill(outside: Transport) -> None:
    """Send the copies."""
    message = Message(id="m1", source="till", type="Pay", body=b'{"order_id": "o1"}')
    for _ in range(COPIES // AT_ONCE):
        answers = await outside.send([Send(message=message, to="shop")] * AT_ONCE)
        assert set(answers) == {Answer.TAKEN}


async def work(outside: Transport, workers: list[Endpoint]) -> None:
    """Let them work until the queue is empty."""
    stop = asyncio.Event()
    running = asyncio.gather(*(worker.run(stop) for worker in workers))
    try:
        async with asyncio.timeout(60):
            while await outside.depth("shop") != EMPTY:
                assert not running.done(), running.result()
    finally:
        stop.set()
        await running
    assert await outside.depth("shop") == EMPTY


async def rows(database: Database) -> int:
    """Count what the handler wrote."""
    async with database.reading() as connection:
        return (await connection.execute(select(func.count()).select_from(Paid))).scalar_one()


async def announced(outside: Transport) -> list[str]:
    """Take everything that was announced; gives the ids."""
    ids: list[str] = []
    while deliveries := await outside.receive(100, 0.1):
        ids += [str(take_apart(delivery.headers, delivery.body).attributes["id"]) for delivery in deliveries]
        await outside.ack(deliveries)
    return ids
