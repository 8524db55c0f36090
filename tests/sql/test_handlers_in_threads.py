"""A `def` handler in a thread: it works in the unit like any other, and after its time it reaches nothing of it any more."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Connection, MetaData, String, event, func, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, MissingGreenlet
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from onceonly.config.worker import WorkerSettings
from onceonly.errors import CommitFailed, HandlerExpired, SetupError
from onceonly.model.record import Record
from onceonly.runtime.worker.handler_thread import HandlerThread
from onceonly.sql import handler_threads
from onceonly.sql.database import Database
from onceonly.sql.dialect import Dialect
from onceonly.sql.schema import create_user_tables
from onceonly.sql.store import SqlStore
from onceonly.sql.store.unit import SqlUnit
from onceonly_conformance.samples import message
from tests.sql.every_database import emptied

Get = Callable[[type], Any]

SLOW = {
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500000) SELECT count(*) FROM n",
    "postgresql": "SELECT pg_sleep(30)",
    "mysql": "SELECT SLEEP(30)",
}


class Base(DeclarativeBase):
    """The user's tables."""

    metadata = MetaData()


class Line(Base):
    """A row that a handler writes."""

    __tablename__ = "lines_of_threads"
    id: Mapped[str] = mapped_column(String(40), primary_key=True)


@pytest.fixture
async def database(place: str) -> AsyncIterator[Database]:
    """Return each SQL database, with a table of the user's."""
    async with emptied(place) as opened:
        await create_user_tables(opened, Base.metadata)
        yield opened
        async with opened.engine.begin() as connection:
            await connection.run_sync(Base.metadata.drop_all)


async def test_the_mutex_of_the_driver_adapter_shows_whether_it_is_busy(database: Database) -> None:
    """It is a private attribute of SQLAlchemy's: this fails when it disappears."""
    if type(database.dialect).is_busy is not Dialect.is_busy:
        pytest.skip("this dialect asks its driver")
    async with database.engine.connect() as connection:
        sync = connection.sync_connection
        assert sync is not None
        assert not database.dialect.is_busy(sync)
        async with sync.connection.dbapi_connection._execute_mutex:  # type: ignore[union-attr]
            assert database.dialect.is_busy(sync)


@pytest.fixture
def store(database: Database) -> SqlStore:
    """Return a store in it."""
    return SqlStore(database, "shop")


def thread(*, leave: float = 30.0) -> HandlerThread:
    """Prepare a thread."""
    return HandlerThread("place", seconds=1, leave=leave)


async def handled(unit: SqlUnit, handler: Callable[[Get], object], place: HandlerThread) -> object:
    """Run a handler in a thread, as one attempt."""
    async with unit.resources.attempt():
        return await unit.resources.run_sync(handler, place)


async def committed(database: Database) -> list[str]:
    """Read the rows."""
    async with database.engine.connect() as connection:
        return sorted(await connection.scalars(select(Line.id)))


def test_the_installed_sqlalchemy_lets_another_greenlet_take_part() -> None:
    """If this fails, SQLAlchemy has changed what its change log promises, and `def` handlers run in the event loop."""
    assert handler_threads.is_supported()


def test_another_sqlalchemy_that_does_not_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once in a process, with a warning."""

    def refuse(_: object) -> object:
        raise MissingGreenlet

    monkeypatch.setattr(handler_threads, "_await", refuse)
    handler_threads.is_supported.cache_clear()
    assert (handler_threads.is_supported(), handler_threads.is_supported()) == (False, False)
    handler_threads.is_supported.cache_clear()
    assert [vars(record)["event"] for record in caplog.records] == [
        "handler threads not supported, def handlers run in the event loop"
    ]


async def test_it_works_in_the_units_transaction(database: Database, store: SqlStore) -> None:
    """With session, connection and savepoints. The commit has all of it."""
    threads: list[int] = []

    def handler(get: Get) -> int:
        threads.append(threading.get_ident())
        session, connection = get(Session), get(Connection)
        session.add(Line(id="a"))
        connection.execute(insert(Line).values(id="b"))
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(insert(Line).values(id="b"))
        with pytest.raises(RuntimeError, match="not allowed here"):
            session.commit()
        found = session.scalar(select(func.count()).select_from(Line))
        assert isinstance(found, int)
        return found

    for isolated in (False, True):
        unit = await store.begin([message(f"m{isolated}")], isolated=isolated)
        assert await handled(unit, handler, thread()) == 2
        if isolated:
            await unit.commit([Record(each.identity) for each in unit.found.new])
        else:
            unit.abandon()
    assert threading.get_ident() not in threads
    assert await committed(database) == ["a", "b"]


async def test_its_own_error_passes_and_its_work_is_undone(database: Database, store: SqlStore) -> None:
    """In an isolated unit, which goes on."""

    def fails(get: Get) -> None:
        get(Session).execute(insert(Line).values(id="a"))
        raise ZeroDivisionError

    def works(get: Get) -> None:
        get(Session).add(Line(id="b"))

    unit = await store.begin([message("m1"), message("m2")], isolated=True)
    with pytest.raises(ZeroDivisionError):
        await handled(unit, fails, thread())
    await handled(unit, works, thread())
    await unit.commit([Record(unit.found.new[1].identity)])
    assert await committed(database) == ["b"]


async def test_after_its_time_it_reaches_nothing_of_the_unit(database: Database, store: SqlStore) -> None:
    """Its connection is closed while it still runs. Others claim the message and write the rows that it had locked."""
    blocks, goes_on, refused = asyncio.Event(), threading.Event(), []
    loop, closed = asyncio.get_running_loop(), []

    def handler(get: Get) -> None:
        session, connection = get(Session), get(Connection)
        raw = connection.connection.dbapi_connection
        session.execute(insert(Line).values(id="late"))
        loop.call_soon_threadsafe(blocks.set)
        goes_on.wait(60)
        attempts: tuple[Callable[[], object], ...] = (
            lambda: session.add(Line(id="later")),
            lambda: session.scalar(select(func.count()).select_from(Line)),
            lambda: session.get(Line, "late"),
            lambda: connection.execute(insert(Line).values(id="latest")),
            lambda: connection.exec_driver_sql("SELECT 1"),
            session.begin_nested,
            connection.begin_nested,
        )
        for attempt in attempts:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - looked at below
                attempt()
            refused.append(caught.value)
        with suppress(Exception):  # a driver may take it for done: its connection is closed
            raw.rollback()

    def hear(*_: object) -> None:
        closed.append(threading.get_ident())

    event.listen(database.engine.sync_engine, "invalidate", hear)
    unit = await store.begin([message()], isolated=True)
    place = thread(leave=0.0)
    running = asyncio.create_task(handled(unit, handler, place))
    await blocks.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (place.is_out, place.is_left) == (False, True)
    unit.abandon()
    other = await store.begin([message()])  # waits until the other one is rolled back
    assert closed == [threading.get_ident()]
    await handled(other, lambda get: get(Session).add(Line(id="late")), thread())
    await other.commit([Record(message().identity)])
    goes_on.set()
    while place.is_left:  # noqa: ASYNC110 - it ends in the next turns
        await asyncio.sleep(0.001)
    assert [type(each) for each in refused] == [HandlerExpired] * 7
    assert str(refused[0]).startswith("the unit of handler place was rolled back because the handler did not end within 1 s")
    assert await committed(database) == ["late"]


async def test_a_statement_is_interrupted_when_the_time_is_over(database: Database, store: SqlStore) -> None:
    """The thread gets out of it, and everything that it asks for next is refused."""
    is_slow, refused = asyncio.Event(), []
    loop, slow = asyncio.get_running_loop(), SLOW[database.engine.dialect.name]

    def handler(get: Get) -> None:
        session = get(Session)
        session.execute(insert(Line).values(id="a"))
        try:
            loop.call_soon_threadsafe(is_slow.set)
            session.execute(text(slow))
        finally:
            try:
                session.connection().exec_driver_sql("SELECT 1")
            except Exception as error:  # noqa: BLE001 - looked at below
                refused.append(error)

    unit = await store.begin([message()])
    place = thread()
    running = asyncio.create_task(handled(unit, handler, place))
    await is_slow.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert place.is_out
    assert len(refused) == 1
    unit.abandon()
    other = await store.begin([message()])
    await handled(other, lambda get: get(Session).add(Line(id="b")), thread())
    await other.commit([Record(message().identity)])
    assert await committed(database) == ["b"]


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("place", ["postgresql+asyncpg", "postgresql+psycopg"], indirect=True)
async def test_a_connection_that_is_lost_is_closed_by_the_event_loop(
    database: Database,
    store: SqlStore,
    isolated: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """Not by the thread, in which no driver may be used."""
    closed: list[int] = []

    def handler(get: Get) -> None:
        get(Session).execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    event.listen(database.engine.sync_engine, "invalidate", lambda *_: closed.append(threading.get_ident()))
    unit = await store.begin([message()], isolated=isolated)
    with pytest.raises((CommitFailed, DBAPIError)):
        await handled(unit, handler, thread())
    with pytest.raises(CommitFailed):
        await unit.commit([Record(message().identity)])
    assert closed == [threading.get_ident()]
    unit.abandon()
    again = await store.begin([message()])
    assert again.found.new == (message(),)
    again.abandon()


async def test_without_the_seam_it_runs_in_the_event_loop(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before, and correct."""
    monkeypatch.setattr("onceonly.sql.store.resources.is_supported", lambda: False)
    unit = await store.begin([message()])
    assert await handled(unit, lambda _: threading.get_ident(), thread()) == threading.get_ident()
    unit.abandon()


def test_another_place_for_handlers_is_refused() -> None:
    """With what it may be."""
    with pytest.raises(SetupError, match=r'def_handlers must be "thread" or "loop", not .process.'):
        WorkerSettings(def_handlers="process")  # type: ignore[arg-type]
