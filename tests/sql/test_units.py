"""Units of the SQL store: what they cost, who wins, and what a crash leaves."""

import asyncio
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import event

from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError
from onceonly.model.identity import claim_key
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.store import ClaimMode, SqlStore
from onceonly.sql.store.late_rows import LARGEST_UNIT, UNITS
from onceonly.sql.store.unit import SqlUnit
from tests.sql.harness import (
    Order,
    add,
    attempt,
    counted,
    handle,
    look,
    message,
    messages,
    opened,
    orders,
    records,
    session_of,
    statements,
    url,
)

CLAIM = "INSERT INTO onceonly_claims"
READ_KNOWN = 'SELECT onceonly_claims."key", onceonly_claims.fingerprint,'
ADD = "INSERT INTO orders"
READ = "SELECT orders.id, orders.total"
SAVEPOINT = ["RELEASE SAVEPOINT onceonly_handler", "SAVEPOINT onceonly_handler"]
RECORD = "INSERT INTO onceonly_records"
UNCLAIM = "DELETE FROM onceonly_claims"


async def test_a_unit_of_a_hundred_new_messages_costs_five_statements(database: Database, store: SqlStore) -> None:
    """BEGIN, one claim, one flush for all handlers, one insert of records, COMMIT."""
    with statements(database) as heard:
        await handle(store, *messages(100), decided=True)
    assert heard == ["BEGIN IMMEDIATE", CLAIM, ADD, RECORD, "COMMIT"]


async def test_handlers_without_effects_store_no_record(database: Database, store: SqlStore) -> None:
    """Their claims are all that stays."""
    with statements(database) as heard:
        await handle(store, *messages(100))
    assert heard == ["BEGIN IMMEDIATE", CLAIM, ADD, "COMMIT"]
    assert (await counted(database, "claims"), await counted(database, "records")) == (100, 0)


async def test_five_hundred_messages_are_claimed_in_one_statement(database: Database, store: SqlStore) -> None:
    """So are two thousand; SQLite's limit of variables is far."""
    for count in (500, 2000):
        with statements(database) as heard:
            unit = await store.begin(messages(count))
        unit.abandon()
        assert heard == ["BEGIN IMMEDIATE", CLAIM]
        assert len(unit.found.new) == count


async def test_more_messages_than_one_statement_takes_are_claimed_together(store: SqlStore) -> None:
    """Twenty thousand need two statements, in one database transaction."""
    unit = await store.begin(messages(20_000))
    assert len(unit.found.new) == 20_000
    unit.abandon()
    assert await look(store, message("m19999")) == {"new": ["m19999"]}


async def test_a_batch_of_known_messages_costs_one_read_more(database: Database, store: SqlStore) -> None:
    """Fingerprints and records are read together, after the claim."""
    await handle(store, *messages(100), decided=True)
    with statements(database) as heard:
        unit = await store.begin(messages(100))
    unit.abandon()
    assert heard == ["BEGIN IMMEDIATE", CLAIM, READ_KNOWN]
    assert len(unit.found.pending) == 100


async def test_messages_left_out_are_given_back_in_one_statement(database: Database, store: SqlStore) -> None:
    """Their claims go in the step that commits the others."""
    asked = messages(100)
    unit = await store.begin(asked)
    with statements(database) as heard:
        await unit.commit(records(*asked[:50]))
    assert heard == [UNCLAIM, "COMMIT"]
    assert len((await look(store, *asked))["new"]) == 50


async def test_forgetting_a_hundred_records_costs_three_statements(database: Database, store: SqlStore) -> None:
    """BEGIN, DELETE, COMMIT."""
    asked = messages(100)
    await handle(store, *asked, decided=True)
    with statements(database) as heard:
        await store.forget([Record(each.identity) for each in asked])
    assert heard == ["BEGIN IMMEDIATE", "DELETE FROM onceonly_records", "COMMIT"]
    assert await counted(database, "records") == 0


async def test_isolation_costs_nothing_for_a_handler_that_only_adds_objects(database: Database, store: SqlStore) -> None:
    """Its rows wait as in any other unit, and one that fails is left out."""
    unit = await store.begin(messages(3), isolated=True)
    with statements(database) as heard:
        await add(unit, "a", "b")
        with pytest.raises(ZeroDivisionError):
            await attempt(unit, lambda: add_and_fail(unit))
        await unit.commit(records(*unit.found.new[:2]))
    assert heard == [ADD, UNCLAIM, "COMMIT"]
    assert await orders(database) == ["a", "b"]


async def add_and_fail(unit: SqlUnit) -> None:
    """Add an object, and fail before anything is written."""
    session_of(unit.resources).add(Order(id="failed", total=1))
    raise ZeroDivisionError


async def test_isolation_costs_a_savepoint_for_a_handler_that_executes_statements(database: Database, store: SqlStore) -> None:
    """It is made before the first of them, which is heard first."""
    unit = await store.begin(messages(3), isolated=True)
    with statements(database) as heard:
        await add(unit, "a")
        for number in range(2):
            await attempt(unit, partial(read_and_add, unit, f"b{number}"))
        await unit.commit(records(*unit.found.new))
    assert heard == [READ, ADD, *SAVEPOINT[1:], ADD, READ, *SAVEPOINT, ADD, "COMMIT"]


async def read_and_add(unit: SqlUnit, name: str) -> None:
    """Read an object, and add another one."""
    session = session_of(unit.resources)
    assert await session.get(Order, "nothing") is None
    session.add(Order(id=name, total=1))
    await session.flush()


async def test_after_rows_that_the_database_refused_each_isolated_handler_is_flushed(
    database: Database, store: SqlStore
) -> None:
    """For ten units, in any of which others may be refused."""
    unit = await store.begin(messages(2), isolated=True)
    await add(unit, "a", "a")
    with pytest.raises(CommitRefused):
        await unit.commit(records(*unit.found.new))
    for turn in range(UNITS + 1):
        unit = await store.begin([message(f"{turn}.{number}") for number in range(LARGEST_UNIT)], isolated=True)
        with statements(database) as heard:
            await add(unit, f"{turn}.a", f"{turn}.b")
            await unit.commit(records(*unit.found.new[:2]))
        flushed = [ADD, *SAVEPOINT[1:], ADD, *SAVEPOINT]
        assert heard == [*(flushed if turn < UNITS else [ADD]), UNCLAIM, "COMMIT"]


async def test_claims_are_made_in_key_order(database: Database, store: SqlStore) -> None:
    """Unsorted claims deadlock on databases that lock row by row."""
    seen: list[bytes] = []

    def hear(_connection: object, _cursor: object, _statement: str, parameters: tuple[bytes, ...], *_: object) -> None:
        seen.extend(bytes(each) for each in parameters[::2])

    event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
    (await store.begin(messages(50))).abandon()
    assert seen == sorted(claim_key("shop", each.identity) for each in messages(50))


async def test_without_history_everything_is_always_new(database: Database) -> None:
    """Off is honest at-least-once: no claims, no records, the handlers' writes are committed."""
    store = SqlStore(database, "shop", claim_mode=ClaimMode.NOTHING)
    for name in ("a", "b"):
        unit = await store.begin([message()])
        assert [each.id for each in unit.found.new] == ["m1"]
        await add(unit, name)
        await unit.commit(records(message(), decided=True))
    assert await orders(database) == ["a", "b"]
    assert (await counted(database, "claims"), await counted(database, "records")) == (0, 0)
    assert await store.undispatched(1 << 52, 10) == ()
    await store.forget([Record(message().identity)])


async def test_of_two_engines_that_compete_one_handles(file: Path, store: SqlStore) -> None:
    """The second waits for the first one's commit, and finds the message done."""
    async with opened(url(file)) as other:
        first = await store.begin([message()])
        second = asyncio.create_task(SqlStore(other, "shop").begin([message()]))
        await add(first, "a")
        assert not second.done()
        await first.commit(records(message()))
        found = await second
        found.abandon()
        assert (found.found.new, found.found.done) == ((), (message(),))


async def test_who_waits_too_long_for_a_unit_gets_conflict(file: Path, store: SqlStore) -> None:
    """Definite: nothing of it happened."""
    async with opened(url(file) + "?timeout=0.05") as impatient:
        unit = await store.begin([message()])
        with pytest.raises(ConflictError, match="locked"):
            await SqlStore(impatient, "shop").begin([message()])
        unit.abandon()
        assert await look(SqlStore(impatient, "shop"), message()) == {"new": ["m1"]}


async def test_who_waits_too_long_to_forget_gets_failed(file: Path, store: SqlStore) -> None:
    """It is no race: the record is still there, and is dropped another time."""
    async with opened(url(file) + "?timeout=0.05") as impatient:
        unit = await store.begin([message()])
        with pytest.raises(CommitFailed, match="locked"):
            await SqlStore(impatient, "shop").forget([Record(message().identity)])
        unit.abandon()


async def test_a_dropped_connection_leaves_nothing(database: Database, store: SqlStore) -> None:
    """Crash in the middle of a unit: 1 written, 2 the process is gone, 3 the message is new and nothing is there."""
    unit = await store.begin([message()])
    await add(unit, "a")
    await session_of(unit.resources).flush()
    raw = await unit._transaction.connection.get_raw_connection()
    await raw.driver_connection.close()
    unit.abandon()
    assert await look(store, message()) == {"new": ["m1"]}
    assert await orders(database) == []


async def test_an_abandoned_unit_is_rolled_back_before_the_next_begins(database: Database, store: SqlStore) -> None:
    """Many times over, without a leak: the pool's connections come back."""
    for _ in range(30):
        unit = await store.begin(messages(3))
        await add(unit, "a")
        unit.abandon()
    await database.settle()
    assert database.engine.pool.checkedout() == 0
    assert await orders(database) == []


async def test_a_unit_given_up_outside_of_the_loop_is_rolled_back_later(database: Database, store: SqlStore) -> None:
    """As happens when a coroutine is closed by the garbage collector."""
    unit = await store.begin([message()])
    await asyncio.to_thread(unit.abandon)
    assert await look(store, message()) == {"new": ["m1"]}
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_two_endpoints_share_a_database(database: Database, store: SqlStore) -> None:
    """Each has its own claims, and lists its own records."""
    other = SqlStore(database, "billing")
    await handle(store, message(), decided=True)
    assert await look(other, message()) == {"new": ["m1"]}
    assert await other.undispatched(1 << 52, 10) == ()


async def test_two_prefixes_share_a_database(file: Path, store: SqlStore) -> None:
    """They know nothing of each other."""
    await handle(store, message())
    async with opened(url(file) + "?prefix=other_", tables=True) as other:
        assert await look(SqlStore(other, "shop"), message()) == {"new": ["m1"]}
