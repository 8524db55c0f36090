"""How a transaction on MariaDB can end: by a deadlock, a time-out, an implicit commit, a cut connection, a cancelled task."""

import asyncio
from contextlib import suppress

import pytest
from sqlalchemy.exc import DBAPIError, OperationalError

from onceonly.adapters.mariadb.dialect import MariaDB
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, HandlerFailed, OutcomeUnknown
from onceonly.model.identity import claim_key
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.transaction import State
from onceonly.sql.translation import translated
from tests.adapters.mariadb.harness import A, B, is_waiting, place, run, thread_of
from tests.servers.available import on_mariadb
from tests.sql.harness import (
    add,
    attempt,
    connection_of,
    handle,
    look,
    opened,
    orders,
    records,
    session_of,
)


async def test_a_deadlock_is_a_conflict_of_one_unit(database: Database, store: SqlStore) -> None:
    """The other one goes on; the loser finds its message new again."""
    await on_mariadb("INSERT INTO orders (id) VALUES ('x'), ('y')", url=str(database.engine.url))
    first, second = await store.begin([A]), await store.begin([B])
    await attempt(first, lambda: run(first, "UPDATE orders SET total = 1 WHERE id = 'x'"))
    await attempt(second, lambda: run(second, "UPDATE orders SET total = 2 WHERE id = 'y'"))
    outcomes = await asyncio.gather(
        attempt(first, lambda: run(first, "UPDATE orders SET total = 1 WHERE id = 'y'")),
        attempt(second, lambda: run(second, "UPDATE orders SET total = 2 WHERE id = 'x'")),
        return_exceptions=True,
    )
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["ConflictError", "NoneType"]
    loser, winner = (first, second) if outcomes[0] else (second, first)
    loser.abandon()
    await winner.commit(records(*winner.found.new))
    assert await look(store, *loser.found.new) == {"new": [loser.found.new[0].id]}


@pytest.mark.parametrize("isolated", [False, True])
async def test_after_a_swallowed_deadlock_nothing_more_is_written(database: Database, store: SqlStore, isolated: bool) -> None:  # noqa: FBT001 - pytest passes it
    """The server has rolled back and is in autocommit mode: a later write would be committed by itself, without its claim."""
    await on_mariadb("INSERT INTO orders (id) VALUES ('x'), ('y')", url=str(database.engine.url))
    first, second = await store.begin([A], isolated=isolated), await store.begin([B])

    async def swallow() -> None:
        await run(first, "UPDATE orders SET total = 1 WHERE id = 'x'")
        await run(second, "UPDATE orders SET total = 2 WHERE id = 'y'")
        await run(second, "INSERT INTO orders (id) VALUES ('1'), ('2'), ('3')")  # who has written more wins
        thread = await thread_of(second)
        winning = asyncio.create_task(run(second, "UPDATE orders SET total = 2 WHERE id = 'x'"))
        await is_waiting(first, thread)
        with pytest.raises(DBAPIError, match="Deadlock"):
            await run(first, "UPDATE orders SET total = 1 WHERE id = 'y'")
        await winning
        await run(first, "INSERT INTO orders (id) VALUES ('written after the deadlock')")

    with pytest.raises(ConflictError, match="rolled this transaction back"):
        await attempt(first, swallow)
    with pytest.raises((CommitRefused, ConflictError)):
        await first.commit(records(A))
    second.abandon()
    await database.settle()
    assert await orders(database) == ["x", "y"]
    assert await look(store, A) == {"new": ["a"]}


@pytest.mark.parametrize("swallowed", [False, True])
async def test_a_lock_that_was_not_had_is_a_conflict_of_the_unit(url: str, store: SqlStore, swallowed: bool) -> None:  # noqa: FBT001 - pytest passes it
    """Its statement alone was undone; the unit is given up all the same."""
    await on_mariadb("INSERT INTO orders (id) VALUES ('x')", url=url)
    async with opened(place(url, timeout=1)) as impatient:
        holder, unit = await store.begin([A]), await SqlStore(impatient, "shop").begin([B])
        await run(holder, "UPDATE orders SET total = 1 WHERE id = 'x'")

        async def update() -> None:
            with suppress(*([DBAPIError] if swallowed else [])):
                await run(unit, "UPDATE orders SET total = 2 WHERE id = 'x'")

        with pytest.raises(HandlerFailed if swallowed else ConflictError):
            await attempt(unit, update)
        with pytest.raises(CommitRefused):
            await unit.commit(records(B))
        holder.abandon()
        assert await look(store, B) == {"new": ["b"]}


async def test_who_waits_too_long_for_a_claim_gets_conflict_and_to_forget_gets_failed(url: str, store: SqlStore) -> None:
    """Definite, both: nothing of it happened."""
    await handle(store, B, decided=True)
    async with opened(place(url, timeout=1)) as impatient:
        unit = await store.begin([A])
        await run(unit, "DELETE FROM own_records")
        with pytest.raises(ConflictError, match="Lock wait timeout"):
            await SqlStore(impatient, "shop").begin([A])
        with pytest.raises(CommitFailed, match="Lock wait timeout"):
            await SqlStore(impatient, "shop").forget([Record(B.identity)])
        unit.abandon()


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE more (id INT)",
        "  -- harmless\n alter table orders add x int",
        "DROP TABLE orders",
        "CREATE OR REPLACE TABLE orders (id INT)",
        "TRUNCATE orders",
        "/* look */ RENAME TABLE orders TO others",
        "# look\nGRANT SELECT ON *.* TO nobody",
        "LOCK TABLES orders WRITE",
        "SET autocommit = 0",
        "SET SESSION autocommit=0",
        "/*! COMMIT */",
        "/*M!100000 COMMIT */",
        "START TRANSACTION",
        "ROLLBACK",
        "XA START 'x'",
    ],
)
async def test_what_would_commit_the_unit_is_refused_before(database: Database, store: SqlStore, statement: str) -> None:
    """MariaDB commits by itself before DDL and much else: the claims would be final, the messages lost."""
    unit = await store.begin([A])
    await add(unit, "a")
    with pytest.raises(RuntimeError, match="not allowed in a handler"):
        await run(unit, statement)
    unit.abandon()
    assert await look(store, A) == {"new": ["a"]}
    assert await orders(database) == []


@pytest.mark.parametrize("statement", ["CREATE TEMPORARY TABLE t (id INT)", "SAVEPOINT s"])
async def test_what_does_not_commit_is_allowed(store: SqlStore, statement: str) -> None:
    """Temporary tables and savepoints are a handler's own business."""
    await _allowed(store, statement)


@pytest.mark.parametrize("statement", ["CREATE OR REPLACE TEMPORARY TABLE t (id INT)", "ANALYZE SELECT 1"])
async def test_what_only_mariadb_has_and_does_not_commit_is_allowed(store: SqlStore, statement: str) -> None:
    """To MySQL these are errors of syntax."""
    await _allowed(store, statement)


async def _allowed(store: SqlStore, statement: str) -> None:
    unit = await store.begin([A])
    await attempt(unit, lambda: run(unit, statement))
    await unit.commit(records(A))
    assert await look(store, A) == {"done": ["a"]}


@pytest.mark.parametrize("past", ["raw", "with others", "procedure"])
async def test_a_commit_that_gets_past_is_noticed(database: Database, store: SqlStore, past: str) -> None:
    """By the server's own status flag, after the handler and before records are written."""
    made = ("DROP PROCEDURE IF EXISTS sneak", "CREATE PROCEDURE sneak() BEGIN COMMIT; END")
    await on_mariadb(*made, url=str(database.engine.url))
    unit = await store.begin([A])

    async def sneak() -> None:
        if past == "raw":
            raw = await connection_of(unit.resources).get_raw_connection()
            assert raw.driver_connection is not None
            await raw.driver_connection.query("CREATE TABLE IF NOT EXISTS sneaked (id INT)")
        else:
            await run(unit, "SELECT 1; COMMIT" if past == "with others" else "CALL sneak()")

    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await attempt(unit, sneak)
    assert unit._transaction.state is State.ENDED
    with pytest.raises(CommitRefused, match="something other than onceonly ended"):
        await unit.commit(records(A, decided=True))
    assert await store.undispatched(1 << 52, 10) == ()


async def test_a_connection_killed_before_the_commit_leaves_unknown(url: str, database: Database, store: SqlStore) -> None:
    """The same error comes when it is cut after the COMMIT was applied, so nobody can tell."""
    unit = await store.begin([A])
    await add(unit, "a")
    await session_of(unit.resources).flush()
    await on_mariadb(f"KILL {await thread_of(unit)}", url=url)
    with pytest.raises(OutcomeUnknown):
        await unit.commit(records(A))
    assert await look(store, A) == {"new": ["a"]}
    assert await orders(database) == []
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_a_connection_killed_under_a_handler_is_no_fault_of_it(url: str, store: SqlStore) -> None:
    """It is CommitFailed, which counts nothing: COMMIT was not said."""
    unit = await store.begin([A])
    await on_mariadb(f"KILL {await thread_of(unit)}", url=url)
    with pytest.raises(CommitFailed) as lost:
        await attempt(unit, lambda: run(unit, "SELECT 1"))
    assert type(lost.value) is CommitFailed
    unit.abandon()
    assert await look(store, A) == {"new": ["a"]}


async def test_a_cancelled_claim_holds_nothing(database: Database, store: SqlStore) -> None:
    """Its statement is interrupted: else the server would wait on, holding the claims it has already."""
    low, high = sorted((A, B), key=lambda each: claim_key("shop", each.identity))
    owner = await store.begin([high])
    waiting = asyncio.create_task(store.begin([low, high]))
    await asyncio.wait([waiting], timeout=0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(2):  # the lock time-out is five seconds
        assert await look(store, low) == {"new": [low.id]}
    owner.abandon()
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_a_handler_whose_statement_is_cut_off_loses_its_own_work_only(database: Database, store: SqlStore) -> None:
    """In an isolated unit: the statement is interrupted, the connection kept, the savepoint undone."""
    unit = await store.begin([A, B], isolated=True)
    await add(unit, "a")

    async def sleep() -> None:
        await run(unit, "INSERT INTO orders (id) VALUES ('slow')")
        async with asyncio.timeout(0.1):
            await run(unit, "SELECT SLEEP(60)")

    with pytest.raises(TimeoutError):
        await attempt(unit, sleep)
    await unit.commit(records(A))
    assert await orders(database) == ["a"]
    assert await look(store, A, B) == {"new": ["b"], "done": ["a"]}


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13, 21, 34])
async def test_a_cancelled_commit_leaves_a_usable_store(database: Database, store: SqlStore, steps: int) -> None:
    """It happened as a whole or not at all, and no connection is lost."""
    unit = await store.begin([A])
    await add(unit, "a")
    committing = asyncio.create_task(unit.commit(records(A, decided=True)))
    for _ in range(steps):
        await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    unit.abandon()
    found = await look(store, A)
    assert found in ({"new": ["a"]}, {"pending": ["a"]})
    assert (await orders(database) == ["a"]) is ("pending" in found)
    await database.settle()
    assert database.engine.pool.checkedout() == 0


@pytest.mark.parametrize("code", [2006, 2013, 1927, 1053, 1317, 1180, 1158, 9999])
def test_what_the_server_does_not_say_for_sure_is_unknown(code: int) -> None:
    """A lost connection, a shutdown, an interruption, a COMMIT that failed, a code nobody knows."""
    for committing in (True, False):
        error = OperationalError("COMMIT", None, Exception(code, "something"))
        assert type(translated(error, MariaDB(), committing=committing)) is OutcomeUnknown
