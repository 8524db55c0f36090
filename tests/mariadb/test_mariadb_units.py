"""Units on MariaDB: what they cost, and who waits for whom."""

import asyncio

import pytest
from mariadb_house import A, B, place, session_status
from sql_house import (
    ONE_EFFECT,
    add,
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
from sqlalchemy import event

from onceonly.drivers.sql import Database
from onceonly.model.errors import Conflict
from onceonly.model.identity import claim_key
from onceonly.model.record import Record
from onceonly.stores.sql import SqlStore

BEGIN = "START TRANSACTION"
WRITE = "SET TRANSACTION ISOLATION"
CLAIM = "INSERT IGNORE INTO"
READ_KNOWN = "SELECT house_claims.`key`, house_claims.fingerprint,"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


async def test_a_unit_of_a_hundred_new_messages_costs_five_statements(database: Database, store: SqlStore) -> None:
    """BEGIN, one claim, one flush for all handlers, one insert of records, COMMIT."""
    await handle(store, message("warm"))
    with statements(database) as heard:
        await handle(store, *messages(100), decided=True)
    assert heard == [BEGIN, CLAIM, "INSERT INTO orders", "INSERT INTO house_records", "COMMIT"]


async def test_no_statement_is_sent_that_nobody_asked_for(store: SqlStore) -> None:
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
    assert after - before == len(["COMMIT", "BEGIN", "claim", "read known", "INSERT orders", "COMMIT", "BEGIN", "the question"])


async def test_a_batch_of_known_messages_costs_one_read_more(database: Database, store: SqlStore) -> None:
    """Fingerprints and records are read together, after the claim."""
    await handle(store, *messages(100), decided=True)
    with statements(database) as heard:
        unit = await store.begin(messages(100))
    unit.abandon()
    assert heard == [BEGIN, CLAIM, READ_KNOWN]
    assert len(unit.owed) == 100


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
    seen: list[bytes] = []

    def hear(_connection: object, _cursor: object, _statement: str, parameters: tuple[bytes, ...], *_: object) -> None:
        seen.extend(parameters[::2])

    await orders(database)
    with statements(database) as heard:
        event.listen(database.engine.sync_engine, "before_cursor_execute", hear)
        (await store.begin(messages(2000))).abandon()
        event.remove(database.engine.sync_engine, "before_cursor_execute", hear)
    assert heard == [BEGIN, CLAIM]
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
        found = await second
        found.abandon()
        assert (found.new, found.owed) == ((B,), (Record(A.identity, ONE_EFFECT),))


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
        if unit.new:
            await unit.commit(records(A))
            return "new"
    except Conflict:
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
                await unit.commit(records(*unit.new, decided=True))
                await store.forget([Record(each.identity) for each in unit.new])
            else:
                unit.abandon()

    await asyncio.gather(*(work(number) for number in range(8)))


async def test_identities_are_compared_exactly(store: SqlStore) -> None:
    """No case folding, no trailing blanks cut, any character."""
    names = ["m", "M", "m ", "ḿ", "m\0", "x" * 5000]
    asked = [message(name) for name in names]
    unit = await store.begin(asked)
    await unit.commit(records(*asked, decided=True))
    assert (await look(store, *asked))["owed"] == names
    assert {each.identity.id for each in await store.undispatched(1 << 52, 10)} == set(names)
