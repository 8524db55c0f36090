"""Units on MariaDB: what they cost, and who waits for whom."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from onceonly.model.errors import ConflictError, HandlerFailed, LockTimeout
from onceonly.model.identity import claim_key
from onceonly.model.message import FailureKind
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.store.unit import SqlUnit
from onceonly.sql.time_limits import FIRST
from tests.adapters.mariadb.harness import A, B, is_mysql, place, run, session_status
from tests.servers.available import on_mariadb
from tests.sql.harness import (
    ONE_EFFECT,
    add,
    attempt,
    connection_of,
    counted,
    handle,
    look,
    message,
    messages,
    opened,
    orders,
    records,
    statements,
)

BEGIN = BEGIN_BRIEF = WRITE = "SET TRANSACTION ISOLATION"
"""The level and START TRANSACTION are one round trip.

The first unit of several messages on a connection shortens its lock wait time-out in the same one.
"""
CLAIM = "INSERT IGNORE INTO"
FIND, SAVEPOINT = "SELECT found.`key` FROM", "SAVEPOINT onceonly_rows"
"""MySQL has no RETURNING: what is there is found and locked, then a savepoint and one insert for all others."""
READ_KNOWN = "SELECT own_claims.`key`, own_claims.fingerprint,"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


async def test_a_unit_of_a_hundred_new_messages_costs_five_statements(database: Database, store: SqlStore) -> None:
    """BEGIN, one claim, one flush for all handlers, one insert of records, COMMIT."""
    await handle(store, message("warm"))
    with statements(database) as heard:
        await handle(store, *messages(100), decided=True)
    assert heard == [BEGIN_BRIEF, *claim(database), "INSERT INTO orders", "INSERT INTO own_records", "COMMIT"]


def claim(database: Database) -> list[str]:
    """Return the statements of a claim of several messages that are new."""
    return [FIND, SAVEPOINT, CLAIM] if is_mysql(database) else [CLAIM]


async def test_no_statement_is_sent_that_nobody_asked_for(database: Database, store: SqlStore) -> None:
    """The server counts as many: no questions about duplicates' warnings, no ROLLBACK after the COMMIT."""
    asked = messages(100)
    await handle(store, *asked)
    unit = await store.begin([A])
    before = await session_status(connection_of(unit.resources), "QUESTIONS")
    await unit.commit(records(A))
    await handle(store, *asked, B)
    unit = await store.begin([])
    after = await session_status(connection_of(unit.resources), "QUESTIONS")
    unit.abandon()
    one_is_new = ["find", "claim"] if is_mysql(database) else ["claim"]
    batch = ["level", "BEGIN", "SET", *one_is_new, "read known", "INSERT orders", "COMMIT"]
    assert after - before == len(["COMMIT", *batch, "level", "BEGIN", "SET", "the question"])


async def test_a_batch_of_known_messages_costs_one_read_more(database: Database, store: SqlStore) -> None:
    """Fingerprints and records are read together, after the claim."""
    await handle(store, *messages(100), decided=True)
    with statements(database) as heard:
        unit = await store.begin(messages(100))
    unit.abandon()
    assert heard == [BEGIN, FIND if is_mysql(database) else CLAIM, READ_KNOWN]
    assert len(unit.found.pending) == 100


async def test_forgetting_a_hundred_records_costs_three_statements(database: Database, store: SqlStore) -> None:
    """BEGIN at READ COMMITTED, DELETE, COMMIT."""
    asked = messages(100)
    await handle(store, *asked, decided=True)
    with statements(database) as heard:
        await store.forget([Record(each.identity) for each in asked])
    assert heard == [WRITE, "DELETE found FROM", "COMMIT"]
    assert await counted(database, "records") == 0


async def test_two_thousand_messages_are_claimed_in_one_statement(database: Database, store: SqlStore) -> None:
    """In key order."""
    seen: list[str] = []

    def hear(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if CLAIM in statement:
            seen.extend(parameters[::2] if isinstance(parameters, tuple) else (row[0] for row in parameters))

    await orders(database)
    with statements(database) as heard:
        event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
        (await store.begin(messages(2000))).abandon()
        event.remove(database.engine.sync_engine, "before_cursor_execute", hear)
    assert heard == [BEGIN_BRIEF, *claim(database)]
    assert seen == sorted(claim_key("shop", each.identity) for each in messages(2000))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_claim_waits_and_then_sees_what_the_other_committed(url: str, store: SqlStore, level: str) -> None:
    """At every isolation: the read after the claim is current, also of the record that was written meanwhile."""
    async with opened(place(url, isolation=level.replace(" ", "%20"))) as other:
        first = await store.begin([A])
        second = asyncio.create_task(SqlStore(other, "shop").begin([A, B]))
        await add(first, "a")
        done, _ = await asyncio.wait([second], timeout=0.05)
        assert not done
        await first.commit(records(A, decided=True))
        try:
            found = await second
        except ConflictError:  # of innodb_snapshot_isolation, which is ON where 11.6 or later is installed anew
            assert level == "SERIALIZABLE"
            found = await SqlStore(other, "shop").begin([A, B])
        found.abandon()
        assert (found.found.new, found.found.pending) == ((B,), (Record(A.identity, ONE_EFFECT),))


@pytest.mark.parametrize("level", LEVELS)
async def test_a_claim_that_waited_for_a_rollback_is_new(url: str, store: SqlStore, level: str) -> None:
    """Several may wait for one owner; one of them gets it, without a deadlock among them."""
    async with opened(place(url, isolation=level.replace(" ", "%20"))) as other:
        first = await store.begin([A])
        waiting = [asyncio.create_task(_claim_and_finish(SqlStore(other, "shop"))) for _ in range(3)]
        await asyncio.wait(waiting, timeout=0.05)
        first.abandon()
        results = await asyncio.gather(*waiting)
        assert results.count("new") == 1
        assert set(results) <= {"new", "done", "conflict"}


async def _claim_and_finish(store: SqlStore) -> str:
    try:
        unit = await store.begin([A])
        if unit.found.new:
            await unit.commit(records(A))
            return "new"
    except ConflictError:
        return "conflict"
    unit.abandon()
    return "done"


async def test_sorted_claims_do_not_deadlock(store: SqlStore) -> None:
    """Eight workers claim overlapping batches, with records, and some of them roll back."""
    asked = messages(300)

    async def work(number: int) -> None:
        for turn in range(12):
            start = (number * 37 + turn * 53) % 270
            unit = await store.begin(asked[start : start + 30][:: 1 if turn % 2 else -1])
            if (number + turn) % 5:
                await unit.commit(records(*unit.found.new, decided=True))
                await store.forget([Record(each.identity) for each in unit.found.new])
            else:
                unit.abandon()

    await asyncio.gather(*(work(number) for number in range(8)))


async def test_identities_are_compared_exactly(store: SqlStore) -> None:
    """No case folding, no trailing blanks cut, any character."""
    names = ["m", "M", "m ", "ḿ", "m\0", "x" * 5000]
    asked = [message(name) for name in names]
    unit = await store.begin(asked)
    await unit.commit(records(*asked, decided=True))
    assert (await look(store, *asked))["pending"] == names
    assert {each.identity.id for each in await store.undispatched(1 << 52, 10)} == set(names)


async def test_a_unit_of_several_waits_briefly_for_a_lock_and_then_not_at_all(url: str, store: SqlStore) -> None:
    """A unit of one waits for as long as the URL says, until a handler has met a row that is locked for long.

    MySQL's shortest wait is a second.
    """
    assert [await wait_time_out(store, number) for number in (1, 2, 1)] == [5, 1, 5]
    async with opened(place(url)) as other:
        holder = await meet_a_lock(store, other)
        assert [await wait_time_out(store, number) for number in (1, 2)] == [int(is_mysql(other))] * 2
        holder.abandon()


async def test_lock_time_outs_of_units_that_did_not_wait_do_not_keep_units_from_waiting(url: str, store: SqlStore) -> None:
    """Where many units change the same rows there is always one."""
    async with opened(place(url)) as other:
        holder = await meet_a_lock(store, other)
        await wait_for_the_lock(store, HandlerFailed, isolated=True)
        for _ in range(FIRST - 1):
            await wait_for_the_lock(store, LockTimeout)
            await wait_for_the_lock(store, HandlerFailed, isolated=True)
        assert await wait_time_out(store, 1) == 1
        holder.abandon()


async def test_a_claim_that_waits_too_long_is_a_conflict_and_changes_nothing(url: str, store: SqlStore) -> None:
    """Its owner may be slow. No handler has met a lock."""
    async with opened(place(url)) as other:
        first = await SqlStore(other, "shop").begin([A])
        with pytest.raises(ConflictError) as raised:
            await store.begin([A, B])
        assert not isinstance(raised.value, LockTimeout)
        first.abandon()
    assert await wait_time_out(store, 2) == 1


async def test_an_isolated_unit_goes_on_after_each_lock_time_out(url: str, database: Database, store: SqlStore) -> None:
    """Two handlers meet the lock, and the work of the third is committed."""
    async with opened(place(url)) as other:
        holder = await meet_a_lock(store, other)
        unit = await store.begin([A, B, message("c")], isolated=True)
        for _ in range(2):
            with pytest.raises(HandlerFailed) as raised:
                await attempt(unit, lambda: run(unit, "UPDATE orders SET total = 2 WHERE id = 'locked'"))
            assert raised.value.failure.kind is FailureKind.LOCKED
        await attempt(unit, lambda: run(unit, "INSERT INTO orders (id) VALUES ('c')"))
        await unit.commit(records(message("c")))
        holder.abandon()
    assert await orders(database) == ["c", "locked"]


async def test_a_lock_time_out_without_its_savepoint_ends_the_unit(url: str, store: SqlStore) -> None:
    """The server may have rolled back the whole transaction: then the savepoint is gone, and nothing more is sent."""
    async with opened(place(url)) as other:
        holder = await meet_a_lock(store, other)
        unit = await store.begin([A])
        with pytest.raises(DBAPIError):
            await run(unit, "UPDATE orders SET total = 2 WHERE id = 'locked'")
        with pytest.raises(DBAPIError, match="SAVEPOINT"):
            await run(unit, "ROLLBACK TO SAVEPOINT gone")
        with pytest.raises(ConflictError, match="rolled this transaction back"):
            await run(unit, "INSERT INTO orders (id) VALUES ('c')")
        unit.abandon()
        holder.abandon()


async def meet_a_lock(store: SqlStore, other: Database) -> SqlUnit:
    """Have a handler wait too long for a row; gives the unit that has locked it."""
    await on_mariadb(
        "INSERT INTO orders (id) VALUES ('locked')",
        url=other.engine.url.set(drivername="mysql").render_as_string(hide_password=False),
    )
    holder = await SqlStore(other, "shop").begin([message("holder")])
    await run(holder, "UPDATE orders SET total = 1 WHERE id = 'locked'")
    await wait_for_the_lock(store, LockTimeout)
    return holder


async def wait_for_the_lock(store: SqlStore, raised: type[Exception], *, isolated: bool = False) -> None:
    """Have a handler wait too long."""
    unit = await store.begin(messages(2), isolated=isolated)
    with pytest.raises(raised):
        await attempt(unit, lambda: run(unit, "UPDATE orders SET total = 2 WHERE id = 'locked'"))
    unit.abandon()


async def wait_time_out(store: SqlStore, number: int) -> int:
    """Read for how long a handler in a unit of so many messages waits for a lock."""
    unit = await store.begin(messages(number))
    found = await connection_of(unit.resources).scalar(text("SELECT @@innodb_lock_wait_timeout"))
    unit.abandon()
    return int(str(found))
