"""After a deadlock, which costs all who wait a second, units wait for no lock for long. Claims are as patient as ever."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly.adapters.postgresql.deadlocks import WARY_FOR
from onceonly.model.errors import ConflictError, HandlerFailed, LockTimeout
from onceonly.sql.database import Database
from onceonly.sql.dialect import Purpose
from onceonly.sql.store import SqlStore
from onceonly.sql.time_limits import FIRST
from tests.sql.harness import add, attempt, connection_of, handle, message, messages, opened, orders, records


async def test_units_wait_for_a_moment_only_for_a_while_after_a_deadlock(database: Database, store: SqlStore) -> None:
    """Then for as long as the URL says, as before it."""
    assert await lock_timeout(store) == "5s"
    await meet_a_deadlock(store)
    assert [await lock_timeout(store) for _ in range(WARY_FOR)] == ["200ms"] * WARY_FOR
    assert await lock_timeout(store) == "5s"
    async with database.reading() as connection:
        assert await connection.scalar(text("SHOW lock_timeout")) == "5s"


async def test_a_lock_that_a_wary_unit_does_not_get_is_a_conflict(url: str, store: SqlStore) -> None:
    """Definite, and no handler's fault; who has the lock goes on."""
    async with opened(url) as other:
        await meet_a_deadlock(store)
        first = await SqlStore(other, "shop").begin([message("m1")])
        await add(first, "a")
        await connection_of(first.resources).execute(text("LOCK TABLE orders"))
        second = await store.begin([message("m2")])
        with pytest.raises(ConflictError, match="lock timeout"):
            await attempt(
                second, lambda: connection_of(second.resources).execute(text("INSERT INTO orders (id, total) VALUES ('b', 1)"))
            )
        second.abandon()
        await first.commit(records(message("m1")))
        assert await orders(other) == ["a"]
        await handle(store, message("m2"))


async def test_a_claim_of_a_wary_process_waits_for_its_owner(url: str, store: SqlStore) -> None:
    """A claim comes first and holds nothing, so it is part of no deadlock."""
    async with opened(url) as other, opened(url) as watching:
        await meet_a_deadlock(store)
        first = await SqlStore(other, "shop").begin([message()])
        second = asyncio.create_task(store.begin([message()]))
        async with watching.reading() as connection:
            await connection.execute(text("SELECT pg_sleep(0.4)"))  # twice as long as a wary unit waits for anything else
        assert not second.done()
        first.abandon()
        found = await second
        found.abandon()
        assert found.found.new == (message(),)


@pytest.mark.usefixtures("database")
async def test_a_shorter_time_out_stays(url: str) -> None:
    """Nobody is made to wait longer."""
    async with opened(f"{url}?timeout=0.05") as impatient:
        store = SqlStore(impatient, "shop")
        await meet_a_deadlock(store)
        assert await lock_timeout(store) == "50ms"


@pytest.mark.usefixtures("database")
async def test_a_users_own_engine_is_wary_too(url: str) -> None:
    """There a lock is waited for without end, unless the user set something."""
    engine = create_async_engine(url)
    try:
        async with opened(engine) as adopted:
            store = SqlStore(adopted, "shop")
            assert await lock_timeout(store) == "0"
            assert await lock_timeout(store, 2) == "1s"
            await meet_a_deadlock(store)
            assert await lock_timeout(store) == "200ms"
    finally:
        await engine.dispose()


async def test_other_lost_races_make_nobody_wary(store: SqlStore) -> None:
    """A serialization failure is told at once."""
    await lose(store, "40001")
    assert await lock_timeout(store) == "5s"


async def test_a_unit_of_several_waits_briefly_for_a_lock_and_then_for_an_instant(store: SqlStore) -> None:
    """A unit of one waits for as long as the URL says, until a handler has met a row that is locked for long."""
    assert [await lock_timeout(store, number) for number in (1, 2, 1)] == ["5s", "1s", "5s"]
    await lose(store, "55P03")
    assert [await lock_timeout(store, number) for number in (1, 2)] == ["1ms", "1ms"]


async def test_lock_time_outs_of_units_that_did_not_wait_do_not_keep_units_from_waiting(store: SqlStore) -> None:
    """Where many units change the same rows there is always one."""
    await lose(store, "55P03")
    await lose(store, "55P03", isolated=True)
    for _ in range(FIRST - 1):
        await lose(store, "55P03")
        await lose(store, "55P03", isolated=True)
    assert await lock_timeout(store) == "1s"


async def test_a_transaction_waits_for_locks_as_before(database: Database, store: SqlStore) -> None:
    """Unlike a unit of messages it cannot put anything off."""
    await lose(store, "55P03")
    transaction = await database.open(Purpose.UNIT)
    await transaction.connection.run_sync(transaction.block_commit)
    assert await transaction.connection.scalar(text("SHOW lock_timeout")) == "5s"
    transaction.drop()


async def test_a_claim_that_waits_too_long_is_a_conflict_and_changes_nothing(url: str, store: SqlStore) -> None:
    """Its owner may be slow. No handler has met a lock."""
    async with opened(url) as other:
        first = await SqlStore(other, "shop").begin(messages(1))
        with pytest.raises(ConflictError) as raised:
            await store.begin(messages(2))
        assert not isinstance(raised.value, LockTimeout)
        first.abandon()
    assert await lock_timeout(store, 2) == "1s"


async def meet_a_deadlock(store: SqlStore) -> None:
    """Have a unit end as the server ends one of a deadlock."""
    await lose(store, "40P01")


async def lose(store: SqlStore, sqlstate: str, *, isolated: bool = False) -> None:
    """Have a handler raise what the server raises when a race was lost."""
    unit = await store.begin(messages(1), isolated=isolated)
    raised = text(f"DO $$ BEGIN RAISE SQLSTATE '{sqlstate}'; END $$")
    with pytest.raises((ConflictError, HandlerFailed)):
        await attempt(unit, lambda: connection_of(unit.resources).execute(raised))
    unit.abandon()


async def lock_timeout(store: SqlStore, number: int = 1) -> str:
    """Read for how long a handler in a unit of so many messages waits for a lock."""
    unit = await store.begin(messages(number))
    found = await connection_of(unit.resources).scalar(text("SHOW lock_timeout"))
    unit.abandon()
    return str(found)
