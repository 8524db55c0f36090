"""Batches that are isolated from the start, on every database: whatever a handler leaves when it fails, it fails alone."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import pytest
from sqlalchemy import String, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly import Context, Endpoint, Reject, Retry, RetryLater
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.settlement import BatchReport
from onceonly.endpoint.host import host_of
from onceonly.model.message import Message, Send
from onceonly.ports.bundle import Ports
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.statement_events import OF_HANDLER
from onceonly.sql.store import SCHEMA, SqlDeadLetters, SqlStore
from tests.sql.emptying import empty
from tests.sql.harness import opened, statements

IDS = [f"m{number:02}" for number in range(20)]
FIRST, SHARED = IDS[0], "shared"


class Base(DeclarativeBase):
    """The user's tables."""


class Order(Base):
    """A row with a unique name."""

    __tablename__ = "isolated_orders"
    id: Mapped[str] = mapped_column(String(50), primary_key=True)
    total: Mapped[int] = mapped_column(default=0)


@dataclass
class Place:
    """A command: what goes wrong with it."""

    how: str = ""


@dataclass
class Placed:
    """What its handler publishes."""

    id: str


async def raise_(_session: AsyncSession, _id: str) -> None:
    """Raise after work that was flushed, and work that was not."""
    raise ValueError("no such customer")


async def break_a_constraint(session: AsyncSession, _id: str) -> None:
    """Leave to the end what the database refuses."""
    session.add(Order(id=FIRST))


async def break_it_now(session: AsyncSession, _id: str) -> None:
    """Have the database refuse a statement."""
    await session.execute(insert(Order).values(id=FIRST))


async def swallow(session: AsyncSession, _id: str) -> None:
    """Go on after a flush that failed."""
    session.add(Order(id=FIRST))
    with suppress(IntegrityError):
        await session.flush()


async def reject(session: AsyncSession, _id: str) -> None:
    """Return the message up."""
    await session.flush()
    raise Reject("not for us")


async def postpone(_session: AsyncSession, _id: str) -> None:
    """Have it come later."""
    raise RetryLater(60)


async def change_what_others_have_loaded(session: AsyncSession, _id: str) -> None:
    """Change and delete rows that other handlers have in the same session."""
    shared = await session.get_one(Order, SHARED)
    shared.total = 99
    await session.delete(await session.get_one(Order, FIRST))
    await session.flush()
    raise ValueError("no such customer")


async def write_past_the_session(session: AsyncSession, id_: str) -> None:
    """Write in Core and on the driver's own connection."""
    connection = await session.connection()
    await connection.execute(insert(Order).values(id=f"{id_} core"))
    await on_the_driver(connection, f"INSERT INTO isolated_orders (id, total) VALUES ('{id_} driver', 0)")  # noqa: S608 - our own
    raise ValueError("no such customer")


async def fail_inside_a_savepoint_of_its_own(session: AsyncSession, _id: str) -> None:
    """Leave a savepoint by an error."""
    async with session.begin_nested():
        session.add(Order(id=FIRST))


WAYS: dict[str, Callable[[AsyncSession, str], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        raise_,
        break_a_constraint,
        break_it_now,
        swallow,
        reject,
        postpone,
        change_what_others_have_loaded,
        write_past_the_session,
        fail_inside_a_savepoint_of_its_own,
    )
}


async def on_the_driver(connection: AsyncConnection, statement: str) -> None:
    """Execute a statement without SQLAlchemy."""
    driver = (await connection.get_raw_connection()).driver_connection
    assert driver is not None
    if connection.dialect.driver == "asyncmy":
        async with driver.cursor() as cursor:
            await cursor.execute(statement)
    else:
        await driver.execute(statement)


class Shop:
    """An endpoint with one handler, on a database of the test's."""

    def __init__(self, place: str, database: Database) -> None:
        self.runs: list[str] = []
        self.database = database
        self.store = SqlStore(database, "shop")
        self.letters = SqlDeadLetters(database)
        self.driver = Live()
        self.transport = MemoryTransport(self.driver, "shop", clock=database.clock)
        endpoint = Endpoint("shop", store=place, transport="memory://", retry=Retry(immediate=0, delayed=1))

        @endpoint.handler
        async def place(command: Place, session: AsyncSession, context: Context) -> None:
            self.runs.append(context.message.id)
            session.add(Order(id=context.message.id))
            shared = await session.get_one(Order, SHARED)
            shared.total += 1
            context.publish(Placed(context.message.id))
            if command.how:
                await WAYS[command.how](session, context.message.id)

        handlers = host_of(endpoint).handlers()
        store, effects = self.store, NoArtifacts()
        admission = StoreAdmission()
        self.ports = Ports("shop", store, store, store, handlers, admission, effects, self.transport, self.letters)

    async def deliver(self, bad: dict[str, str], *, isolated: bool) -> BatchReport:
        """Deliver all messages in one batch, some of them bad."""
        topologies = [Topology(endpoint="shop"), Topology(endpoint="sink", events=("Placed",))]
        await self.transport.declare(topologies)
        bodies = {id_: f'{{"how":"{bad.get(id_, "")}"}}'.encode() for id_ in IDS}
        sends = [Message(id=id_, source="web", type="Place", body=body) for id_, body in bodies.items()]
        await self.transport.send([Send(message=each, to="shop") for each in sends])
        return await deliver(await self.transport.receive(100, 0), self.ports, isolated=isolated)

    async def orders(self) -> dict[str, int]:
        """Return the committed orders."""
        async with self.database.reading() as connection:
            found = await connection.execute(select(Order.id, Order.total))
        return {row.id: row.total for row in found}

    async def published(self) -> list[str]:
        """Return the ids of the orders that were announced."""
        sink = MemoryTransport(self.driver, "sink", clock=self.database.clock)
        return sorted(each.body.decode().split('"')[3] for each in await sink.receive(100, 0))


@pytest.fixture
async def shop(place: str) -> AsyncIterator[Shop]:
    """Open one on each database."""
    async with opened(place) as database:
        await create(database, SCHEMA)
        await create_user_tables(database, Base.metadata)
        await empty(database, [*SCHEMA.tables(database.prefix).sorted_tables, *reversed(Base.metadata.sorted_tables)])
        async with database.writing() as connection:
            await connection.execute(insert(Order).values(id=SHARED))
        yield Shop(place, database)


async def test_each_handler_that_fails_is_undone_alone_and_each_runs_once(shop: Shop) -> None:
    """Its rows and messages never appear, whatever it left behind. Those of the others appear once."""
    bad = {IDS[2 * number + 1]: how for number, how in enumerate(WAYS)}
    good = [id_ for id_ in IDS if id_ not in bad]
    with statements(shop.database) as heard:
        report = await shop.deliver(bad, isolated=True)
    # The driver's connection is given to a message that has a unit for itself. asyncpg's can be enclosed.
    alone = [id_ for id_, how in bad.items() if how == write_past_the_session.__name__]
    assert sorted(shop.runs) == sorted(IDS + ([] if shop.database.engine.dialect.driver == "asyncpg" else alone))
    assert (report.handled, report.failed, report.dead, report.retried) == (len(good), len(bad), 1, len(bad) - 1)
    assert await shop.orders() == {**dict.fromkeys(good, 0), SHARED: len(good)}
    assert await shop.published() == good
    # PostgreSQL gets the others in one text with the release of the one before.
    savepoints = 1 if "postgresql" in shop.database.engine.url.drivername else len(IDS)
    assert heard.count(f"SAVEPOINT {OF_HANDLER}") >= savepoints


async def test_without_savepoints_from_the_start_a_failure_runs_the_others_again(shop: Shop) -> None:
    """The control run. The result is the same."""
    await shop.deliver({IDS[-1]: "raise_"}, isolated=False)
    assert len(shop.runs) == 2 * len(IDS)
    assert await shop.published() == IDS[:-1]
