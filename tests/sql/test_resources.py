"""What a SQL unit gives its handlers, and how it keeps what one of them does from the others."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from sqlite3 import DatabaseError
from typing import Any, NamedTuple

import pytest
from sqlalchemy import Connection, event, func, insert, select, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onceonly.adapters.sqlite.connection import AHEAD
from onceonly.model.errors import CommitRefused, ConflictError, HandlerFailed
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.store.resources import HELD
from onceonly.sql.store.unit import SqlUnit
from tests.log_events import event_in
from tests.sql.harness import (
    Line,
    Order,
    add,
    attempt,
    connection_of,
    count_orders,
    counted,
    look,
    message,
    messages,
    orders,
    records,
    session_of,
)


class Both(NamedTuple):
    """What a handler may hold."""

    session: AsyncSession
    connection: AsyncConnection


ENDING: tuple[Callable[[Both], Any], ...] = (
    lambda unit: unit.session.commit(),
    lambda unit: unit.session.rollback(),
    lambda unit: unit.session.close(),
    lambda unit: unit.session.reset(),
    lambda unit: unit.session.begin().start(),
    lambda unit: unit.connection.commit(),
    lambda unit: unit.connection.rollback(),
    lambda unit: unit.connection.close(),
    lambda unit: unit.connection.begin().start(),
    lambda unit: unit.session.execute(text("COMMIT")),
    lambda unit: unit.session.execute(text("  /* now */ rollback")),
    lambda unit: unit.session.execute(text("-- end\nEND TRANSACTION")),
    lambda unit: unit.connection.exec_driver_sql("BEGIN"),
    lambda unit: unit.session.run_sync(lambda session: session.commit()),
    lambda unit: unit.connection.run_sync(lambda connection: connection.rollback()),
)


@pytest.mark.parametrize("ending", ENDING)
async def test_what_would_end_the_unit_raises_and_does_nothing(
    database: Database, store: SqlStore, ending: Callable[[Both], Any]
) -> None:
    """The unit goes on as if it had not been asked."""
    unit = await store.begin([message()])
    await add(unit, "a")
    with pytest.raises(RuntimeError, match="not allowed here"):
        await ending(Both(session_of(unit.resources), connection_of(unit.resources)))
    await unit.commit(records(message()))
    assert await orders(database) == ["a"]
    assert await look(store, message()) == {"done": ["m1"]}


async def test_savepoints_are_fine(database: Database, store: SqlStore) -> None:
    """Of the session and of the connection, kept and undone, asynchronous and not."""
    unit = await store.begin([message()])
    session, connection = session_of(unit.resources), connection_of(unit.resources)
    async with unit.resources.attempt():
        async with session.begin_nested():
            session.add(Order(id="a"))
        async with session.begin_nested() as savepoint:
            session.add(Order(id="b"))
            await savepoint.rollback()
        async with connection.begin_nested():
            await connection.execute(insert(Order).values(id="c", total=1))
        await connection.execute(text("SAVEPOINT mine"))
        await connection.execute(insert(Order).values(id="d", total=1))
        await connection.execute(text("ROLLBACK TO mine"))
    await unit.commit(records(message()))
    assert await orders(database) == ["a", "c"]


async def test_a_constraint_met_in_a_savepoint_of_the_handlers_own_is_its_own_affair(
    database: Database, store: SqlStore
) -> None:
    """Trying to insert and going on is an honest way to write a handler."""
    unit = await store.begin(messages(2))
    await add(unit, "a")
    async with unit.resources.attempt():
        session = session_of(unit.resources)
        with pytest.raises(IntegrityError):
            async with session.begin_nested():
                session.add(Order(id="a"))
        session.add(Order(id="b"))
    await unit.commit(records(*unit.found.new))
    assert await orders(database) == ["a", "b"]


async def test_session_and_connection_see_each_others_work(store: SqlStore) -> None:
    """They are one database transaction; a query sees what earlier handlers added."""
    unit = await store.begin(messages(2))
    await add(unit, "a")
    async with unit.resources.attempt():
        session, connection = session_of(unit.resources), connection_of(unit.resources)
        assert await session.scalar(select(func.count()).select_from(Order)) == 1
        assert await connection.scalar(select(func.count()).select_from(Order)) == 1
        assert unit.resources.get(AsyncSession) is session
    unit.abandon()


async def test_synchronous_handlers_share_the_units_session(database: Database, store: SqlStore) -> None:
    """And its connection."""

    def handler(get: Callable[[type], object]) -> int:
        session, connection = get(Session), get(Connection)
        assert isinstance(session, Session)
        assert isinstance(connection, Connection)
        session.add(Order(id="b"))
        connection.execute(insert(Order).values(id="c", total=1))
        with pytest.raises(RuntimeError, match="not allowed here"):
            session.commit()
        with pytest.raises(RuntimeError, match="not allowed here"):
            connection.close()
        return count_orders(session)

    unit = await store.begin(messages(2))
    await add(unit, "a")
    async with unit.resources.attempt():
        assert await unit.resources.run_sync(handler) == 3
    await unit.commit(records(*unit.found.new))
    assert await orders(database) == ["a", "b", "c"]


async def test_other_resources_are_lookup_errors(store: SqlStore) -> None:
    """A synchronous session for an async handler, or the other way round, included."""
    unit = await store.begin([])
    for kind in (Session, Connection, str, object, list[int]):
        with pytest.raises(LookupError):
            unit.resources.get(kind)
    for kind in (AsyncSession, AsyncConnection, str):
        with pytest.raises(LookupError):
            await unit.resources.run_sync(lambda get, kind=kind: get(kind))
    unit.abandon()


async def roll_back_in_the_driver(unit: SqlUnit) -> None:
    """End the unit's transaction behind SQLAlchemy's back."""
    raw = await connection_of(unit.resources).get_raw_connection()
    await raw.driver_connection.rollback()


DRIVERS_OWN: tuple[Callable[[Any], Any], ...] = (
    lambda driver: driver.commit(),
    lambda driver: driver.execute("COMMIT"),
    lambda driver: driver.execute("\ufeffCOMMIT -- hidden"),
    lambda driver: driver.executescript("CREATE TABLE extra (x); INSERT INTO extra VALUES (1);"),
    lambda driver: driver.execute("BEGIN IMMEDIATE"),
)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("ending", DRIVERS_OWN)
async def test_a_commit_of_the_drivers_own_is_refused_by_the_database(
    database: Database,
    store: SqlStore,
    ending: Callable[[Any], Any],
    isolated: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """Also when its text is in the driver's cache from before; the unit goes on as if it had not been asked.

    A handler gets the driver's connection in a unit of one message only.
    """
    async with database.engine.connect() as connection:  # the only one there is: the unit gets it next
        driver = (await connection.get_raw_connection()).driver_connection
        for statement in ("BEGIN IMMEDIATE", "COMMIT", "BEGIN IMMEDIATE", "COMMIT"):
            await driver.execute(statement)
    unit = await store.begin(messages(1), isolated=isolated)
    await add(unit, "a")
    raw = await connection_of(unit.resources).get_raw_connection()
    with pytest.raises(DatabaseError, match="not authorized"):
        await attempt(unit, lambda: ending(raw.driver_connection))
    await add(unit, "b")
    await unit.commit(records(*unit.found.new))
    assert await orders(database) == ["a", "b"]
    assert await look(store, *messages(1)) == {"done": ["m0"]}


async def test_a_connection_may_commit_again_when_its_unit_is_over(database: Database, store: SqlStore) -> None:
    """Committed, given up, or rolled back by the session: it goes back to the pool as it was."""
    for number in range(3):
        unit = await store.begin([message(f"m{number}")])
        if number == 0:
            await unit.commit(records(*unit.found.new))
        elif number == 1:
            with suppress(IntegrityError):
                await add(unit, "a", "a")
                await session_of(unit.resources).flush()
        unit.abandon()
        await database.settle()
        async with database.engine.connect() as connection:
            driver = (await connection.get_raw_connection()).driver_connection
            await driver.execute("BEGIN")
            await driver.execute("INSERT INTO orders VALUES (?, 0)", (f"own{number}",))
            await driver.execute("COMMIT")
    assert await orders(database) == ["own0", "own1", "own2"]


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_rollback_of_the_drivers_own_is_reported_loudly(store: SqlStore, isolated: bool) -> None:  # noqa: FBT001 - pytest's way
    """It costs nothing but the unit: found out at the end of the handler, and again at commit."""
    unit = await store.begin(messages(1), isolated=isolated)
    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await attempt(unit, lambda: roll_back_in_the_driver(unit))
    with pytest.raises(CommitRefused):
        await add(unit, "too-late")
    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await unit.commit(records(*unit.found.new))
    assert await look(store, *messages(1)) == {"new": ["m0"]}


async def test_a_rollback_of_the_drivers_own_is_reported_when_the_handler_raises_too(store: SqlStore) -> None:
    """Its own error is the lesser one."""

    async def handler() -> None:
        await roll_back_in_the_driver(unit)
        raise ZeroDivisionError

    unit = await store.begin(messages(1))
    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await attempt(unit, handler)
    unit.abandon()


async def test_nothing_is_written_after_a_rollback_by_the_database(database: Database, store: SqlStore) -> None:
    """It would stand by itself, once for each time the message is tried."""

    async def handler() -> None:
        connection = connection_of(unit.resources)
        await connection.execute(insert(Order).values(id="a", total=1))
        with pytest.raises(IntegrityError):
            await connection.execute(text("INSERT OR ROLLBACK INTO orders VALUES ('a', 1)"))
        with pytest.raises(RuntimeError, match="has ended"):
            await connection.execute(insert(Order).values(id="b", total=1))

    unit = await store.begin(messages(2))
    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await attempt(unit, handler)
    unit.abandon()
    assert await orders(database) == []


async def test_a_rollback_by_the_database_is_found_out(database: Database, store: SqlStore) -> None:
    """SQLite rolls everything back on a conflict clause that says so; a handler that swallows it commits nothing."""
    async with database.writing() as connection:
        await connection.execute(text("CREATE TABLE strict (id TEXT PRIMARY KEY ON CONFLICT ROLLBACK)"))

    async def handler() -> None:
        await connection_of(unit.resources).execute(text("INSERT INTO strict VALUES ('x')"))
        with pytest.raises(IntegrityError):
            await connection_of(unit.resources).execute(text("INSERT INTO strict VALUES ('x')"))

    unit = await store.begin(messages(2))
    await add(unit, "a")
    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await attempt(unit, handler)
    unit.abandon()
    assert await orders(database) == []


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_swallowed_failure_of_the_session_fails_the_handler(
    database: Database,
    store: SqlStore,
    isolated: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """After it nothing of the handler can be committed; in an isolated unit only of that handler."""

    async def handler() -> None:
        session_of(unit.resources).add(Order(id="a"))
        with suppress(IntegrityError):
            await session_of(unit.resources).flush()

    unit = await store.begin(messages(3), isolated=isolated)
    await add(unit, "a")
    with pytest.raises(HandlerFailed, match="swallowed"):
        await attempt(unit, handler)
    if isolated:
        await add(unit, "c")
        await unit.commit(records(unit.found.new[0], unit.found.new[2]))
        assert await orders(database) == ["a", "c"]
        assert await look(store, unit.found.new[1]) == {"new": ["m1"]}
    else:
        with pytest.raises(CommitRefused):
            await unit.commit(records(*unit.found.new))
        assert await orders(database) == []


async def test_a_failed_handler_leaves_nothing(database: Database, store: SqlStore) -> None:
    """What it added, flushed or not, changed and deleted is as before, for the next handlers and in the database."""

    async def handler() -> None:
        session = session_of(unit.resources)
        kept = await session.get_one(Order, "a")
        kept.total = 99
        session.add(Order(id="flushed"))
        await session.flush()
        session.add(Order(id="pending"))
        raise ZeroDivisionError

    unit = await store.begin(messages(3), isolated=True)
    await add(unit, "a")
    with pytest.raises(ZeroDivisionError):
        await attempt(unit, handler)
    async with unit.resources.attempt():
        session = session_of(unit.resources)
        assert (await session.get_one(Order, "a")).total == 0
        assert await session.get(Order, "flushed") is None
        session.add(Order(id="c"))
    await unit.commit(records(unit.found.new[0], unit.found.new[2]))
    assert await orders(database) == ["a", "c"]


async def test_an_isolated_handler_is_blamed_for_what_its_flush_shows(database: Database, store: SqlStore) -> None:
    """The constraint it broke comes out of its own attempt, once rows do not wait any more; see `RecentLateRows`."""
    unit = await store.begin(messages(3), isolated=True)
    await add(unit, "a", "a")
    with pytest.raises(CommitRefused):
        await unit.commit(records(*unit.found.new))
    unit = await store.begin(messages(3), isolated=True)
    await add(unit, "a")
    with pytest.raises(IntegrityError):
        await add(unit, "a")
    await add(unit, "c")
    await unit.commit(records(unit.found.new[0], unit.found.new[2]))
    assert await orders(database) == ["a", "c"]


async def test_work_beside_the_session_is_undone_too(database: Database, store: SqlStore) -> None:
    """An isolated handler may use the connection alone."""

    async def handler() -> None:
        await connection_of(unit.resources).execute(insert(Order).values(id="a", total=1))
        raise ZeroDivisionError

    unit = await store.begin(messages(2), isolated=True)
    with pytest.raises(ZeroDivisionError):
        await attempt(unit, handler)
    await add(unit, "b")
    await unit.commit(records(unit.found.new[1]))
    assert await orders(database) == ["b"]


async def test_a_handler_that_is_cancelled_in_a_statement_is_undone_alone(database: Database, store: SqlStore) -> None:
    """As a time-out does; the unit goes on with the others."""
    slow = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n")
    is_slow = asyncio.Event()

    async def handler() -> None:
        session_of(unit.resources).add(Order(id="b"))
        await session_of(unit.resources).execute(slow)

    def hear(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("WITH RECURSIVE"):
            is_slow.set()

    event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
    unit = await store.begin(messages(3), isolated=True)
    await add(unit, "a")
    running = asyncio.create_task(attempt(unit, handler))
    await is_slow.wait()
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await add(unit, "c")
    await unit.commit(records(unit.found.new[0], unit.found.new[2]))
    assert await orders(database) == ["a", "c"]


@pytest.mark.parametrize("grouped", [False, True])
async def test_a_lock_met_by_a_handler_is_no_failure_of_its_own(
    store: SqlStore,
    grouped: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """Deadlocks and locks are Conflicts of the unit, in a group with other failures too; an outage dead-letters nothing."""
    counted = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < :ahead) SELECT id FROM orders, n"

    async def handler() -> None:
        async with connection.stream(text(counted), {"ahead": AHEAD}) as rows:  # so some are left
            await rows.fetchone()
            try:
                await connection.execute(text("DROP TABLE orders"))
            except OperationalError as error:
                if grouped:
                    errors = [SystemExit(1), ExceptionGroup("tasks", [ValueError("a"), error])]
                    raise BaseExceptionGroup("several", errors) from None
                raise

    unit = await store.begin(messages(2))
    await add(unit, "a", "b")
    connection = connection_of(unit.resources)
    with pytest.raises(ConflictError, match="locked"):
        await attempt(unit, handler)
    unit.abandon()
    assert await look(store, *messages(2)) == {"new": ["m0", "m1"]}


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_lock_met_on_another_connection_is_the_handlers_own_failure(
    file: Path,
    store: SqlStore,
    isolated: bool,  # noqa: FBT001 - pytest's way
) -> None:
    """Or its message would repeat for ever, uncounted, as if this store were out of order."""
    own = create_async_engine(f"sqlite+aiosqlite:///{file}", connect_args={"timeout": 0})

    async def handler() -> None:
        async with own.begin() as connection:
            await connection.execute(insert(Order).values(id="own", total=1))

    unit = await store.begin(messages(2), isolated=isolated)
    await add(unit, "a")
    with pytest.raises(OperationalError, match="database is locked") as failed:
        await attempt(unit, handler)
    assert failed.value.__notes__ == [HELD]
    unit.abandon()
    await own.dispose()


async def test_a_flush_that_fails_undoes_its_own_handler_only(database: Database, store: SqlStore) -> None:
    """A session rolls back what it finds to be its transaction: that is the savepoint of its handler, swallowed or not."""

    async def swallow() -> None:
        session = session_of(unit.resources)
        session.add(Order(id="a", total=1))
        with suppress(IntegrityError):
            await session.flush()

    unit = await store.begin(messages(3), isolated=True)
    await add(unit, "a")
    with pytest.raises(HandlerFailed):
        await attempt(unit, swallow)
    await add(unit, "b")
    await unit.commit(records(unit.found.new[0], unit.found.new[2]))
    assert await orders(database) == ["a", "b"]


async def test_a_flush_that_fails_before_its_first_statement_undoes_nothing(database: Database, store: SqlStore) -> None:
    """There is no savepoint yet, and the unit's transaction is not its handler's to roll back."""

    def refuse(*_: object) -> None:
        raise ZeroDivisionError

    async def flush() -> None:
        session_of(unit.resources).add(Order(id="refused", total=1))
        await session_of(unit.resources).flush()

    unit = await store.begin(messages(3), isolated=True)
    await add(unit, "a")
    event.listen(Order, "before_insert", refuse)
    try:
        with pytest.raises(ZeroDivisionError):
            await attempt(unit, flush)
    finally:
        event.remove(Order, "before_insert", refuse)
    await add(unit, "b")
    await unit.commit(records(unit.found.new[0], unit.found.new[2]))
    assert await orders(database) == ["a", "b"]


async def test_a_handler_finds_no_savepoint_of_the_units(store: SqlStore) -> None:
    """Nothing that it may roll back is there, but what it has begun itself."""
    unit = await store.begin(messages(2), isolated=True)
    await attempt(unit, lambda: connection_of(unit.resources).run_sync(look_for_a_savepoint))
    unit.abandon()


def look_for_a_savepoint(connection: Connection) -> None:
    """Execute a statement, and look."""
    connection.execute(text("SELECT 1"))
    assert connection.get_nested_transaction() is None


async def test_a_late_use_is_logged_with_the_task_and_what_it_runs(store: SqlStore, caplog: pytest.LogCaptureFixture) -> None:
    """Once for each run of a handler."""
    unit = await store.begin([message()])
    session = session_of(unit.resources)
    await unit.commit(records(message()))

    async def late_mail() -> None:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="used after its handler ended"):
                session.add(Line(order_id="a"))

    await asyncio.create_task(late_mail(), name="mail")
    found = [vars(each)["task"] for each in caplog.records if event_in(each) == "unit used after its handler ended"]
    assert [each.partition(" (")[0] for each in found] == ["mail"]
    assert found[0].endswith("late_mail)")


async def test_a_leaked_session_is_of_no_use_after_the_unit(store: SqlStore, database: Database) -> None:
    """It cannot write outside of a transaction that nobody commits."""
    unit = await store.begin([message()])
    session = session_of(unit.resources)
    await unit.commit(records(message()))
    with pytest.raises(RuntimeError, match="used after its handler ended"):
        session.add(Line(order_id="a"))
    with pytest.raises(RuntimeError, match="used after its handler ended"):
        await session.flush()
    assert await counted(database, "claims") == 1
