"""What a commit can come to, and what the store is worth afterwards."""

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import OperationalError

from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OutcomeUnknown, StoreUnavailable
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.translation import translated
from tests.sql.harness import (
    Line,
    Order,
    add,
    attempt,
    connection_of,
    handle,
    look,
    message,
    messages,
    opened,
    orders,
    records,
    session_of,
    url,
)


async def test_a_constraint_shown_by_the_flush_refuses_the_commit(database: Database, store: SqlStore) -> None:
    """Definite, and some message of the unit is to blame."""
    unit = await store.begin(messages(2))
    await add(unit, "a", "a")
    with pytest.raises(CommitRefused, match="UNIQUE"):
        await unit.commit(records(*unit.found.new))
    assert await orders(database) == []
    assert await look(store, *messages(2)) == {"new": ["m0", "m1"]}


async def test_a_deferred_constraint_refuses_the_commit(database: Database, store: SqlStore) -> None:
    """COMMIT alone shows it."""
    unit = await store.begin([message()], isolated=True)
    async with unit.resources.attempt():
        session_of(unit.resources).add(Line(order_id="nobody"))
    with pytest.raises(CommitRefused, match="FOREIGN KEY"):
        await unit.commit(records(message(), decided=True))
    assert await look(store, message()) == {"new": ["m1"]}
    assert await store.undispatched(1 << 52, 10) == ()
    await handle(store, message())
    assert await orders(database) == ["m1"]


@pytest.mark.parametrize("total", ["x" * 3, 1 << 70, object()])
async def test_values_that_cannot_be_stored_fail_their_handler(store: SqlStore, total: object) -> None:
    """A message that brings them is to blame, whoever notices: SQLite, its driver, SQLAlchemy or Python."""
    unit = await store.begin([message()])
    await connection_of(unit.resources).execute(text("CREATE TABLE typed (n INTEGER) STRICT"))
    if isinstance(total, str):  # SQLite stores text in an integer column unless the table is strict
        with pytest.raises(Exception, match="cannot store TEXT"):
            await connection_of(unit.resources).execute(text("INSERT INTO typed VALUES ('x')"))
        unit.abandon()
        return
    with pytest.raises(Exception, match=r"type|too large"):
        async with unit.resources.attempt():
            session_of(unit.resources).add(Order(id="a", total=total))
    with pytest.raises(CommitRefused):
        await unit.commit(records(message()))
    assert await look(store, message()) == {"new": ["m1"]}


async def test_a_listener_that_raises_fails_the_handler(database: Database, store: SqlStore) -> None:
    """Users hang validation there; it must not be taken for an outage."""

    def refuse(*_: object) -> None:
        raise ValueError("no order without lines")

    unit = await store.begin([message()])

    async def handler() -> None:
        session = session_of(unit.resources)
        event.listen(session.sync_session, "before_flush", refuse)
        session.add(Order(id="a"))

    with pytest.raises(ValueError, match="no order without lines"):
        await attempt(unit, handler)
    unit.abandon()
    assert await orders(database) == []


async def test_a_full_disk_is_definite_and_nobodys_fault(database: Database, store: SqlStore) -> None:
    """Nothing happened, and the message is not to blame."""
    unit = await store.begin([message()])
    connection = connection_of(unit.resources)
    pages = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
    await connection.execute(text(f"PRAGMA max_page_count = {pages}"))
    with pytest.raises(CommitFailed, match="full") as refused:
        async with unit.resources.attempt():
            session_of(unit.resources).add(Order(id="a" * 100_000))
    unit.abandon()
    assert not isinstance(refused.value, CommitRefused)
    await database.settle()
    await database.engine.dispose()
    await handle(store, message())
    assert await orders(database) == ["m1"]


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_a_cancelled_commit_leaves_a_usable_store(database: Database, store: SqlStore, steps: int) -> None:
    """It happened as a whole or not at all, and no connection is lost."""
    unit = await store.begin([message()])
    await add(unit, "a")
    committing = asyncio.create_task(unit.commit(records(message(), decided=True)))
    for _ in range(steps):
        await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    unit.abandon()
    found = await look(store, message())
    assert found in ({"new": ["m1"]}, {"pending": ["m1"]})
    assert (await orders(database) == ["a"]) is ("pending" in found)
    await handle(store, message("m2"))
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_a_commit_cancelled_while_sqlite_works_at_it_leaves_a_usable_store(database: Database, store: SqlStore) -> None:
    """COMMIT is said, the answer never read: whatever it came to is found by looking again."""
    unit = await store.begin([message()])
    await add(unit, "a")
    said = asyncio.Event()
    event.listen(database.engine.sync_engine, "commit", lambda _: said.set())
    committing = asyncio.create_task(unit.commit(records(message())))
    await said.wait()
    committing.cancel()
    await asyncio.wait([committing])
    unit.abandon()
    assert await look(store, message()) in ({"new": ["m1"]}, {"done": ["m1"]})
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_a_begin_that_is_cancelled_while_sqlite_waits_holds_nothing(file: Path, store: SqlStore) -> None:
    """The lock it was waiting for, held by another process, comes to nobody."""
    unit = await store.begin([message()])
    async with opened(url(file)) as other:
        await orders(other)
        is_waiting = asyncio.Event()
        event.listen(other.engine.sync_engine, "before_cursor_execute", lambda *_: is_waiting.set())
        waiting = asyncio.create_task(SqlStore(other, "shop").begin([message()]))
        await is_waiting.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await unit.commit(records(message()))
        assert await look(store, message()) == {"done": ["m1"]}
        await other.settle()
        assert other.engine.pool.checkedout() == 0


async def test_a_begin_that_is_cancelled_while_it_waits_for_its_turn_holds_nothing(database: Database, store: SqlStore) -> None:
    """The writers of one process take turns; who left the queue is not called."""
    unit = await store.begin([message()])
    waiting = [asyncio.create_task(store.begin([message()])) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await unit.commit(records(message()))
    for each in (waiting[0], waiting[2]):
        (await each).abandon()
    assert waiting[1].cancelled()
    assert await look(store, message()) == {"done": ["m1"]}
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_who_waits_too_long_for_its_turn_gets_conflict(file: Path) -> None:
    """As from SQLite itself; then the next one gets it."""
    async with opened(url(file) + "?timeout=0.05", tables=True) as impatient:
        store = SqlStore(impatient, "shop")
        unit = await store.begin([message()])
        with pytest.raises(ConflictError, match="locked"):
            await store.begin([message()])
        unit.abandon()
        assert await look(store, message()) == {"new": ["m1"]}


async def test_what_sqlite_does_not_say_for_sure_is_unknown(database: Database) -> None:
    """An input/output error, or an error without a code, may mean anything."""

    class Vague(Exception):
        sqlite_errorcode = 10

    for cause in (Vague("disk I/O error"), Exception("something")):
        error = OperationalError("COMMIT", None, cause)
        assert type(translated(error, database.dialect)) is OutcomeUnknown


async def test_at_commit_only_locks_and_constraints_are_definite(database: Database) -> None:
    """A full disk at COMMIT may have kept what was written before."""

    class Full(Exception):
        sqlite_errorcode = 13

    error = OperationalError("COMMIT", None, Full("database or disk is full"))
    assert type(translated(error, database.dialect, committing=True)) is OutcomeUnknown
    assert type(translated(error, database.dialect)) is StoreUnavailable
