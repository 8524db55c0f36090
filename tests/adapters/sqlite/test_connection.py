"""The driver's connection: one visit to its thread for each statement, and results of any length."""

import asyncio
import gc
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onceonly.adapters.sqlite import connection as sqlite_connection
from onceonly.adapters.sqlite.connection import AHEAD, SQLiteConnection, connect
from onceonly.sql.database import Database
from onceonly.sql.dialect import Purpose

MANY = 2 * AHEAD + AHEAD // 2
COUNT_UP = "with recursive n(i) as (values (1) union all select i + 1 from n where i < ?) select i from n"


class Base(DeclarativeBase):
    """The tables of an application."""


class Order(Base):
    """A row that SQLite numbers."""

    __tablename__ = "numbered"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Visits:
    """Counts the visits to the threads of all connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stand before the driver's own way to its thread."""
        self.names: list[str] = []
        visit = SQLiteConnection._execute

        async def seen(connection: SQLiteConnection, work: Any, *arguments: Any, **options: Any) -> Any:
            self.names.append(work.__name__)
            return await visit(connection, work, *arguments, **options)

        monkeypatch.setattr(SQLiteConnection, "_execute", seen)


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> Visits:
    """Count from here on."""
    return Visits(monkeypatch)


@pytest.fixture
async def connection(file: Path) -> AsyncIterator[SQLiteConnection]:
    """Return a connection as the engine gets it."""
    async with connect(file, isolation_level=None, check_same_thread=False) as connection:
        yield connection


@pytest.fixture
def engine(database: Database) -> AsyncEngine:
    """Return the engine of a database named by its URL."""
    return database.engine


async def test_a_statement_is_one_visit_to_the_thread(database: Database, visits: Visits) -> None:
    """To execute, to fetch and to close; COMMIT, and the pool's ROLLBACK, are one each."""
    transaction = await database.open(Purpose.READING)
    visits.names.clear()
    assert (await transaction.connection.execute(text("select 1 union select 2"))).scalars().all() == [1, 2]
    assert visits.names == ["_run"]
    await transaction.commit()
    assert visits.names == ["_run", "_commit", "rollback"]


async def test_many_objects_are_one_statement_and_get_their_own_numbers(engine: AsyncEngine, visits: Visits) -> None:
    """The numbers that the objects have are those of their rows, whatever order SQLite returns them in."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
        await connection.execute(text("insert into numbered(id, name) values (41, 'before')"))
    async with AsyncSession(engine) as session:
        orders = [Order(name=f"{number:05}") for number in reversed(range(500))]
        session.add_all(orders)
        visits.names.clear()
        await session.flush()
        assert visits.names.count("_run") == 1
        stored = dict((await session.execute(text("select name, id from numbered"))).all())
        assert {order.name: order.id for order in orders} | {"before": 41} == stored
        await session.commit()


@pytest.mark.parametrize("length", [0, 1, AHEAD - 1, AHEAD, AHEAD + 1, MANY])
async def test_a_result_of_any_length_comes_whole(connection: SQLiteConnection, length: int) -> None:
    """Fetched at once, one by one, by parts, or iterated."""
    wanted = [(number,) for number in range(1, length + 1)]
    query = f"select i from ({COUNT_UP}) where i <= ?"  # noqa: S608 - a constant
    async with connection.cursor() as cursor:
        await cursor.execute(query, (length, length))
        assert list(await cursor.fetchall()) == wanted
        await cursor.execute(query, (length, length))
        assert [row async for row in cursor] == wanted
        await cursor.execute(query, (length, length))
        ones = [await cursor.fetchone() for _ in range(3)]
        assert [row for row in ones if row is not None] == wanted[:3]
        assert list(await cursor.fetchmany(AHEAD)) == wanted[3 : AHEAD + 3]
        assert list(await cursor.fetchall()) == wanted[AHEAD + 3 :]
        assert await cursor.fetchone() is None


async def test_a_long_result_is_not_read_ahead_of_its_reader(connection: SQLiteConnection, visits: Visits) -> None:
    """A thousand rows come with the statement; who stops there has read no more, and closing lets go of the rest."""
    async with connection.cursor() as cursor:
        await cursor.execute(COUNT_UP, (10**12,))
        assert await cursor.fetchone() == (1,)
        assert visits.names == ["_run"]
    await connection.execute("vacuum")  # which an open statement would refuse


@pytest.mark.parametrize("sql", ["insert into t values (?) returning a", "insert into t values (?)"])
async def test_a_cursor_tells_of_its_statement(connection: SQLiteConnection, sql: str) -> None:
    """How many rows it changed, the number of the last one, and what its columns are called."""
    async with connection.cursor() as cursor:
        await cursor.executescript("create table t(a integer primary key); insert into t values (1)")
        await cursor.execute(sql, (7,))
        names = None if "returning" not in sql else [column[0] for column in cursor.description]
        assert (cursor.rowcount, cursor.lastrowid, names) == (1, 7, None if names is None else ["a"])
        await cursor.executemany("insert into t values (?)", [(8,), (9,)])
        assert (cursor.rowcount, list(await cursor.fetchall())) == (2, [])
        cursor.row_factory, cursor.arraysize = sqlite3.Row, 2
        await cursor.execute("select a from t")
        assert [row["a"] for row in await cursor.fetchmany()] == [1, 7]
        assert cursor.connection.in_transaction is False


async def test_a_statement_that_fails_leaves_nothing_open(connection: SQLiteConnection) -> None:
    """The error is SQLite's own, and the cursor can be used again."""
    async with connection.cursor() as cursor:
        await cursor.execute("select 1")
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            await cursor.execute("select * from nowhere")
        assert list(await cursor.fetchall()) == []
        await cursor.execute("select 2")
        assert await cursor.fetchone() == (2,)


async def test_an_engine_streams_a_long_result(engine: AsyncEngine, visits: Visits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Part by part, as with the driver's own cursors."""
    monkeypatch.setattr(sqlite_connection, "AHEAD", 10)
    async with engine.connect() as connection:
        visits.names.clear()
        streamed = await connection.stream(text(COUNT_UP.replace("?", "35")))
        assert [row.i async for row in streamed] == list(range(1, 36))
        assert visits.names.count("_fetch") > 1


async def test_a_transaction_cut_off_while_its_connection_is_given_back_is_over(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is committed, the pool has closed the connection, and nothing is left that could fail in the background."""
    resetting = asyncio.Event()

    async def hang(_connection: SQLiteConnection) -> None:
        resetting.set()
        await asyncio.Event().wait()

    transaction = await database.open(Purpose.WRITING)
    monkeypatch.setattr(SQLiteConnection, "rollback", hang)
    committing = asyncio.create_task(transaction.commit())
    await resetting.wait()
    monkeypatch.undo()
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    await transaction.end()
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined] # every pool of ours has it
    async with asyncio.timeout(20), database.writing():
        """The writers' turn is had again."""


async def test_a_cursor_that_is_not_entered_leaves_nothing_to_await(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """SQLAlchemy drops the entering of one where a handler's time is over; that is no warning. It can be awaited, too."""
    async with connect(tmp_path / "a.db") as connection:
        connection.cursor().__aenter__().close()
        gc.collect()
        assert not recwarn.list
        cursor = await connection.cursor()
        assert await (await cursor.execute("SELECT 1")).fetchone() == (1,)


ENDLESS = "with recursive n(i) as (values (1) union all select i + 1 from n) select count(*) from n"


async def test_a_read_that_is_cancelled_ends_in_its_thread(connection: SQLiteConnection) -> None:
    """Whether the thread executes it or has yet to begin it. What follows is not interrupted."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    await connection.create_function("begun", 0, lambda: loop.call_soon_threadsafe(begun.set) and 1)
    connection.only_reads = True
    running = asyncio.create_task(connection.cursor().execute(ENDLESS.replace("(1)", "(begun())")))
    await begun.wait()
    waiting = asyncio.create_task(connection.cursor().execute(ENDLESS))
    await asyncio.sleep(0)  # behind the first one, in the queue of the thread
    for task in (waiting, running):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    cursor = await connection.cursor().execute(COUNT_UP, (MANY,))
    assert len(list(await cursor.fetchall())) == MANY


async def test_a_write_that_is_cancelled_is_not_interrupted(connection: SQLiteConnection) -> None:
    """SQLite would roll the whole transaction back, and a unit can go on after the time-out of a handler."""
    begun, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold() -> int:
        loop.call_soon_threadsafe(begun.set)
        release.wait()
        return 1

    await connection.create_function("hold", 0, hold)
    await connection.execute("create table kept (i)")
    await connection.execute("begin")
    await connection.execute("insert into kept values (0)")
    writing = asyncio.create_task(connection.cursor().execute("insert into kept select hold()"))
    await begun.wait()
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    release.set()
    await connection.execute("commit")
    cursor = await connection.cursor().execute("select count(*) from kept")
    assert await cursor.fetchall() == [(2,)]


async def test_a_connection_whose_caller_was_cancelled_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the thread that has made it meanwhile: since Python 3.13, one that is left to the garbage collector is a warning."""
    opened: list[sqlite3.Connection] = []
    began, goes_on = threading.Event(), threading.Event()
    inner = sqlite_connection.DatabaseFile.open

    def open_late(file: sqlite_connection.DatabaseFile, **options: Any) -> Any:
        began.set()
        goes_on.wait()
        found = inner(file, **options)
        opened.append(found.connection)
        return found

    monkeypatch.setattr(sqlite_connection.DatabaseFile, "open", open_late)
    connecting = connect(tmp_path / "shop.db", check_same_thread=False)

    async def enter() -> None:
        await connecting

    task = asyncio.create_task(enter())
    await asyncio.to_thread(began.wait)
    task.cancel()
    await asyncio.wait([task])
    goes_on.set()
    await asyncio.to_thread(connecting._thread.join)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        opened[0].execute("select 1")
