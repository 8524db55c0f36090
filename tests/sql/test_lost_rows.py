"""Rows that were changed or deleted after a handler had read them: a lost race, until a message is alone with it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from sqlalchemy import String, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import StaleDataError

from onceonly import Endpoint, Retry
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.settlement import BatchReport
from onceonly.endpoint.host import host_of
from onceonly.model.errors import ConflictError, HandlerFailed
from onceonly.model.message import FailureKind, Message, Send
from onceonly.model.retry import SURE
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SCHEMA, SqlDeadLetters, SqlStore
from onceonly.sql.store.unit import SqlUnit
from onceonly_conformance.clock import ManualClock
from tests.endpoint.harness import FixedRandomSource
from tests.sql.emptying import empty
from tests.sql.harness import attempt, messages, opened, records, session_of

IDS = [f"m{number}" for number in range(6)]
BAD = IDS[2]


class Base(DeclarativeBase):
    """The user's tables."""


class Stock(Base):
    """A row with a version."""

    __tablename__ = "lost_stock"
    id: Mapped[str] = mapped_column(String(50), primary_key=True)
    count: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column(default=1)
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy's way


@dataclass
class Take:
    """A command."""

    id: str


async def lose(session: AsyncSession, stock: Stock, *, gone: bool) -> None:
    """Change or delete a row behind the session's back, as another transaction would."""
    statement = delete(Stock) if gone else update(Stock).values(version=Stock.version + 1)
    await session.execute(statement.where(Stock.id == stock.id), execution_options={"synchronize_session": False})


async def take(session: AsyncSession, id_: str = "apples", *, gone: bool | None = None) -> None:
    """Take one of a stock; with `gone` it is lost before that is written."""
    stock = await session.get_one(Stock, id_)
    if gone is not None:
        await lose(session, stock, gone=gone)
    stock.count -= 1


class Shop:
    """An endpoint with one handler, on a database of the test's."""

    def __init__(self, place: str, database: Database, clock: ManualClock) -> None:
        self.runs: list[str] = []
        self.losses: dict[str, int] = {}
        """How many runs of each message lose their row."""
        self.gone = False
        self.flushes = False
        self.clock = clock
        self.database = database
        self.store = SqlStore(database, "shop")
        self.letters = SqlDeadLetters(database)
        self.transport = MemoryTransport(Live(), "shop", clock=clock)
        endpoint = Endpoint("shop", store=place, transport="memory://", retry=Retry(immediate=0, delayed=0))

        @endpoint.handler
        async def place(command: Take, session: AsyncSession) -> None:
            self.runs.append(command.id)
            loses = self.losses.get(command.id, 0) >= self.runs.count(command.id)
            await take(session, "pears" if command.id == BAD else "apples", gone=self.gone if loses else None)
            if self.flushes:
                await session.flush()

        handlers = host_of(endpoint).handlers(Environment(clock=clock, random=FixedRandomSource()))
        store, effects, admission = self.store, NoArtifacts(), StoreAdmission()
        self.ports = Ports("shop", store, store, store, handlers, admission, effects, self.transport, self.letters)

    async def send(self) -> None:
        """Send all messages."""
        await self.transport.declare([Topology(endpoint="shop")])
        sends = [Message(id=id_, source="web", type="Take", body=f'{{"id":"{id_}"}}'.encode()) for id_ in IDS]
        await self.transport.send([Send(message=each, to="shop") for each in sends])

    async def deliver(self) -> BatchReport:
        """Deliver what waits in one batch, and let time pass until everything is due."""
        report = await deliver(await self.transport.receive(100, 0), self.ports)
        self.clock.advance(10_000)
        return report

    async def counts(self) -> dict[str, int]:
        """Return the committed stock."""
        async with self.database.reading() as connection:
            return {row.id: row.count for row in await connection.execute(select(Stock.id, Stock.count))}


async def prepare(database: Database) -> None:
    """Fill empty tables."""
    await create(database, SCHEMA)
    await create_user_tables(database, Base.metadata)
    await empty(database, [*SCHEMA.tables(database.prefix).sorted_tables, *reversed(Base.metadata.sorted_tables)])
    async with database.writing() as connection:
        await connection.execute(insert(Stock), [{"id": "apples", "count": 0}, {"id": "pears", "count": 0}])


@pytest.fixture
async def shop(place: str) -> AsyncIterator[Shop]:
    """Open one on each database."""
    clock = ManualClock()
    async with opened(place, clock=clock) as database:
        await prepare(database)
        yield Shop(place, database, clock)


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("flushes", [False, True])
async def test_a_lost_row_is_not_counted_and_the_message_is_handled_when_the_race_is_over(
    shop: Shop,
    flushes: bool,  # noqa: FBT001 - pytest's way
    gone: bool,  # noqa: FBT001 - the same
) -> None:
    """Without a second try, it would be a dead letter if it were counted."""
    shop.losses, shop.flushes, shop.gone = {BAD: 3}, flushes, gone
    await shop.send()
    report = BatchReport()
    for _ in range(4):
        report += await shop.deliver()
    assert (report.handled, report.dead, report.failed) == (len(IDS), 0, 0)
    assert await shop.counts() == {"apples": 1 - len(IDS), "pears": -1}


@pytest.mark.parametrize("flushes", [False, True])
async def test_a_row_that_is_gone_counts_when_its_message_was_alone_with_it(
    shop: Shop,
    flushes: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """It would be retried forever. The others are handled."""
    shop.losses, shop.flushes, shop.gone = {BAD: 100}, flushes, True
    await shop.send()
    report = BatchReport()
    while not report.dead:
        report += await shop.deliver()
    assert (report.handled, report.dead) == (len(IDS) - 1, 1)
    assert shop.runs.count(BAD) <= 3 + SURE
    (letter,) = await shop.letters.page(Filter())
    assert letter.message is not None
    assert letter.message.id == BAD
    assert "a row was changed or deleted after it was read" in letter.reason
    assert (letter.attempts, letter.history[-1].kind) == (1, FailureKind.COMMIT)


async def test_a_lost_row_is_a_conflict_of_the_unit_of_one_message(shop: Shop) -> None:
    """In the handler, and in what it left to the commit, also inside a group."""
    (asked,) = messages(1)

    async def lost(unit: SqlUnit) -> None:
        await take(session_of(unit.resources), gone=True)

    async def flushed(unit: SqlUnit) -> None:
        await lost(unit)
        await session_of(unit.resources).flush()

    async def grouped(unit: SqlUnit) -> None:
        try:
            await flushed(unit)
        except StaleDataError as error:
            raise BaseExceptionGroup("several", [SystemExit(1), ExceptionGroup("tasks", [ValueError("a"), error])]) from None

    for handler in (lost, flushed, grouped):
        unit = await shop.store.begin([asked])
        with pytest.raises(ConflictError, match="a row was changed or deleted after it was read"):
            await handle(unit, handler)
        unit.abandon()


async def handle(unit: SqlUnit, handler: object) -> None:
    """Run a handler, and commit."""
    assert callable(handler)
    await attempt(unit, lambda: handler(unit))
    await unit.commit(records(*unit.found.new))


async def test_a_lost_row_is_found_at_the_end_of_the_handler_that_read_it(shop: Shop) -> None:
    """Each handler has a session of its own. An isolated unit goes on without it."""
    asked = messages(2)
    unit = await shop.store.begin(asked)
    await attempt(unit, lambda: take(session_of(unit.resources), "pears"))
    with pytest.raises(ConflictError, match="a row was changed or deleted after it was read"):
        await attempt(unit, lambda: take(session_of(unit.resources), gone=False))
    unit.abandon()
    unit = await shop.store.begin(asked, isolated=True)
    await attempt(unit, lambda: take(session_of(unit.resources), "pears"))
    with pytest.raises(HandlerFailed) as failed:
        await attempt(unit, lambda: take(session_of(unit.resources), gone=False))
    assert failed.value.failure.kind is FailureKind.UNKNOWN
    await unit.commit(records(asked[0]))
    assert await shop.counts() == {"apples": 0, "pears": -1}


async def test_a_row_lost_in_a_session_of_the_handlers_own_is_its_own_failure(server: str) -> None:
    """What that session did before may be committed. A handler can also raise what only looks like a lost row."""
    async with opened(server) as database:
        await prepare(database)
        own = create_async_engine(database.engine.url)
        unit = await SqlStore(database, "shop").begin(messages(1))

        async def elsewhere() -> None:
            async with AsyncSession(own) as session:
                await take(session, gone=True)
                await session.flush()

        for handler in (elsewhere, made_up):
            with pytest.raises(StaleDataError):
                await attempt(unit, handler)
        unit.abandon()
        await own.dispose()


async def made_up() -> None:
    """Raise what only looks like a lost row."""
    raise StaleDataError("made up")


async def test_a_real_race_for_a_row_is_a_conflict(server: str) -> None:
    """Another transaction commits its change first."""
    async with opened(server) as database:
        await prepare(database)
        unit = await SqlStore(database, "shop").begin(messages(1))

        async def race() -> None:
            stock = await session_of(unit.resources).get_one(Stock, "apples")
            async with database.writing() as connection:
                await connection.execute(update(Stock).where(Stock.id == "apples").values(version=2))
            stock.count -= 1

        with pytest.raises(ConflictError):
            await handle(unit, lambda _: race())
        unit.abandon()
