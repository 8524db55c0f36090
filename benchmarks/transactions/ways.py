"""The ways to place an order: by hand with an outbox row, and with onceonly; each with and without a client's key.

By hand means what one writes with SQLAlchemy and asyncpg: the ORM for the order, a row of the outbox beside it, one commit.
With a key the key's row is inserted first, as an answer that is kept must be looked for before the work, and gets its answer at
the end. The plain ways leave publishing to somebody else; the way that sends has a task beside it which publishes and deletes
what is committed, many at a time, as onceonly's relay does in the same process.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import aiormq
from sqlalchemy import Column, LargeBinary, MetaData, String, Table, delete, insert, update
from sqlalchemy.dialects.postgresql import insert as insert_absent
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from benchmarks.rows.onceonly import EVENT, SHOP
from benchmarks.scenario import OUTBOX, Order, OrderPlaced, PlaceOrder, encode, sqlalchemy_url
from benchmarks.transactions.places import TransactionsPlaces
from onceonly import Endpoint, WorkerSettings
from onceonly.endpoint.transactions import Transaction

KEYS = Table(
    "baseline_key",
    MetaData(),
    Column("key", String(100), primary_key=True),
    Column("answer", LargeBinary),
)
AT_ONCE = 100
Place = Callable[[str, Callable[[], None]], Awaitable[None]]
"""Places an order, and calls the function when nothing is left but the commit."""


class TransactionVariant(NamedTuple):
    """One way: what it is called, how it is opened, and what is left of an order afterwards."""

    name: str
    open: Callable[[TransactionsPlaces, int], Any]
    is_sent: bool
    """Whether a message of it comes out."""
    is_own: bool = False
    has_key: bool = False


@asynccontextmanager
async def by_hand(places: TransactionsPlaces, concurrency: int) -> AsyncIterator[Place]:
    """Write the order and its outbox row."""
    async with _engine(places, concurrency) as engine:

        async def place(order_id: str, committing: Callable[[], None]) -> None:
            async with AsyncSession(engine) as session:
                session.add(Order(order_id=order_id))
                await _remember(session, order_id)
                committing()
                await session.commit()

        yield place


@asynccontextmanager
async def by_hand_with_key(places: TransactionsPlaces, concurrency: int) -> AsyncIterator[Place]:
    """Insert the key, write the order and its outbox row, and keep the answer under the key."""
    absent = insert_absent(KEYS).on_conflict_do_nothing().returning(KEYS.c.key)
    async with _engine(places, concurrency) as engine:

        async def place(order_id: str, committing: Callable[[], None]) -> None:
            async with AsyncSession(engine) as session:
                (await session.execute(absent, {"key": order_id})).one()
                session.add(Order(order_id=order_id))
                await _remember(session, order_id)
                answer = encode({"order_id": order_id})
                await session.execute(update(KEYS).where(KEYS.c.key == order_id).values(answer=answer))
                committing()
                await session.commit()

        yield place


@asynccontextmanager
async def by_hand_and_sent(places: TransactionsPlaces, concurrency: int) -> AsyncIterator[Place]:
    """Do as by hand, and have a task in this process publish what is committed, and delete its outbox row."""
    committed: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    async with _engine(places, concurrency + 1) as engine, _sending(places, engine, committed):

        async def place(order_id: str, committing: Callable[[], None]) -> None:
            async with AsyncSession(engine) as session:
                session.add(Order(order_id=order_id))
                key = await _remember(session, order_id)
                committing()
                await session.commit()
            committed.put_nowait((key, order_id))

        yield place


@asynccontextmanager
async def with_onceonly(places: TransactionsPlaces, _: int) -> AsyncIterator[Place]:
    """Place it in a transaction, in a process in which the endpoint runs: its relay sends what is committed."""
    async with _shop(places) as shop:

        async def place(order_id: str, committing: Callable[[], None]) -> None:
            await shop.transact(_placing(order_id, committing))

        yield place


@asynccontextmanager
async def with_onceonly_and_key(places: TransactionsPlaces, _: int) -> AsyncIterator[Place]:
    """Do the same under a client's key, with an answer that is kept."""
    async with _shop(places) as shop:

        async def place(order_id: str, committing: Callable[[], None]) -> None:
            block = _placing(order_id, committing)
            await shop.transact(block, idempotency_key=order_id, request={"order_id": order_id})

        yield place


WAYS = (
    TransactionVariant("by hand", by_hand, is_sent=False),
    TransactionVariant("by hand, sent", by_hand_and_sent, is_sent=True),
    TransactionVariant("onceonly", with_onceonly, is_sent=True, is_own=True),
    TransactionVariant("by hand, key", by_hand_with_key, is_sent=False, has_key=True),
    TransactionVariant("onceonly, key", with_onceonly_and_key, is_sent=True, is_own=True, has_key=True),
)
RATIOS = (
    ("onceonly", "by hand"),
    ("onceonly", "by hand, sent"),
    ("onceonly, key", "by hand, key"),
)
"""Whose rate is divided by whose."""


def _placing(order_id: str, committing: Callable[[], None]) -> Callable[[Transaction], Awaitable[dict[str, str]]]:
    async def place(tx: Transaction) -> dict[str, str]:
        tx.sql.add(Order(order_id=order_id))
        tx.publish(OrderPlaced(order_id))
        committing()
        return {"order_id": order_id}

    return place


@asynccontextmanager
async def _shop(places: TransactionsPlaces) -> AsyncIterator[Endpoint]:
    shop = Endpoint(SHOP, store=places.database, transport=places.transport, worker=WorkerSettings(wait=0.1))

    @shop.handler
    async def place_order(order: PlaceOrder) -> None:
        raise AssertionError(f"nobody sends {order}")

    async with shop.running():
        yield shop


@asynccontextmanager
async def _engine(places: TransactionsPlaces, connections: int) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(sqlalchemy_url(places.database), pool_size=connections)
    try:
        yield engine
    finally:
        await engine.dispose()


async def _remember(session: AsyncSession, order_id: str) -> str:
    key = str(uuid.uuid4())
    await session.execute(insert(OUTBOX).values(id=key, messages=encode(OrderPlaced(order_id))))
    return key


@asynccontextmanager
async def _sending(
    places: TransactionsPlaces, engine: AsyncEngine, committed: "asyncio.Queue[tuple[str, str]]"
) -> AsyncIterator[None]:
    connection = await aiormq.connect(places.broker)
    channel = await connection.channel(publisher_confirms=True)

    async def publish(key: str, order_id: str) -> None:
        properties = aiormq.spec.Basic.Properties(message_id=key, delivery_mode=2, content_type="application/json")
        body = encode(OrderPlaced(order_id))
        await channel.basic_publish(body, exchange=f"{places.prefix}onceonly:event:{EVENT}", properties=properties)

    async def send() -> None:
        while True:
            some = [await committed.get()]
            while len(some) < AT_ONCE and not committed.empty():
                some.append(committed.get_nowait())
            await asyncio.gather(*(publish(*each) for each in some))
            async with engine.begin() as database:
                await database.execute(delete(OUTBOX).where(OUTBOX.c.id.in_([key for key, _ in some])))

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending
        await connection.close()
