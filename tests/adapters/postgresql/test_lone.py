"""Units of one message on PostgreSQL: BEGIN goes with the claim, the record with COMMIT, and nothing else becomes different."""

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import QueuePool, event
from sqlalchemy.dialects.postgresql import insert

from onceonly.adapters.postgresql.statements import LONGEST
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.model.ring import Undecidable
from onceonly.model.transaction import TransactionAttempt
from onceonly.sql.database import Database
from onceonly.sql.database_clock import database_now
from onceonly.sql.store import SqlRing, SqlStore, SqlTransactions
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import tables
from onceonly.sql.store.transactions import SqlTransaction
from onceonly_conformance.ring_subject import at
from tests.sql.harness import Line, add, counted, handle, look, message, opened, orders, records, session_of, statements

ADD = "INSERT INTO orders"
CLAIM = "INSERT INTO onceonly_claims"
RECORD = "INSERT INTO onceonly_records"
HEARD = {"asyncpg": [ADD, "COMMIT"], "psycopg": [CLAIM, ADD, RECORD, "COMMIT"]}
ODD = "it's \\x41 \0 $1 ; -- ✓"


@pytest.fixture
def driver(database: Database) -> str:
    """Name the driver."""
    return database.engine.dialect.driver.removesuffix("_async")


async def test_a_lone_message_costs_three_round_trips(database: Database, store: SqlStore, driver: str) -> None:
    """BEGIN and the claim, the flush, the record and COMMIT; the claim and the record are said as text, past SQLAlchemy."""
    with statements(database) as heard:
        await handle(store, message(), decided=True)
    assert heard == HEARD[driver]
    assert (await counted(database, "claims"), await counted(database, "records")) == (1, 1)


async def test_a_lone_message_with_an_instant_costs_three_round_trips_too(
    database: Database, store: SqlStore, driver: str
) -> None:
    """The label of its bucket goes with the claim."""
    await store.prepare()
    async with database.reading() as connection:
        now = await connection.run_sync(database_now)
    with statements(database) as heard:
        await handle(store, at(now), decided=True)
    bucket = f"INSERT INTO onceonly_claim_{(await SqlRing(database).bucketing()).bucket(now):02}"
    assert heard == [bucket if words == CLAIM else words for words in HEARD[driver]]
    assert await look(store, at(now)) == {"pending": [at(now).id]}
    await store.forget(records(at(now)))
    assert await look(store, at(now), message("other")) == {"new": ["other"], "done": [at(now).id]}
    assert await look(store, at(now)) == {"done": [at(now).id]}


async def test_a_lone_message_whose_bucket_holds_another_slice_is_told(store: SqlStore) -> None:
    """Two rows inserted: the label was none of them, and the transaction is rolled back."""
    for _ in range(2):
        unit = await store.begin([at(1)])
        unit.abandon()
        assert [(each.message.id, each.reason) for each in unit.found.undecidable] == [(at(1).id, Undecidable.TOO_OLD)]


async def test_a_lone_copy_is_pending_and_then_done(store: SqlStore) -> None:
    """A claim that inserted nothing is told from one that did."""
    await handle(store, message(), decided=True)
    again = await store.begin([message()])
    again.abandon()
    assert (again.found.new, [record.identity for record in again.found.pending]) == ((), [message().identity])
    await store.forget(again.found.pending)
    last = await store.begin([message()])
    last.abandon()
    assert (last.found.new, last.found.pending, last.found.done) == ((), (), (message(),))


async def test_a_lone_message_that_is_given_up_is_new_again(database: Database, store: SqlStore) -> None:
    """Its claim was made in the transaction whose BEGIN went with it."""
    unit = await store.begin([message()])
    await add(unit, "a")
    unit.abandon()
    assert (await orders(database), await counted(database, "claims")) == ([], 0)


async def test_a_lone_record_comes_back_exactly(database: Database, driver: str) -> None:
    """Whatever is in its identity and in its endpoint's name, and however the server reads backslashes.

    psycopg's parameters need the server's usual way.
    """

    def read_otherwise(connection: Any, _record: object) -> None:
        connection.cursor().execute("SET standard_conforming_strings = off")

    if driver == "asyncpg":
        event.listen(database.engine.sync_engine, "connect", read_otherwise)
        await database.engine.dispose()
    store, odd = SqlStore(database, "o'shop \\x41 ✓"), message(ODD)
    await commit_only(store, odd)
    assert await store.find([odd.identity]) == tuple(records(odd, decided=True))
    assert [record.identity for record in await store.undispatched(1 << 50, 10)] == [odd.identity]


async def test_a_long_record_goes_as_a_parameter(database: Database, store: SqlStore) -> None:
    """Hexadecimal digits would double it."""
    unit = await store.begin([message()])
    long = message("sent", body=b"x" * LONGEST)
    with statements(database) as heard:
        await unit.commit([Record(message().identity, (Send(message=long, to="shop"),))])
    assert heard == [RECORD, "COMMIT"]
    (found,) = await store.find([message().identity])
    assert found.effects[0].message.body == long.body


async def test_a_lone_record_that_is_there_already_fails_its_unit_and_refuses_no_commit(
    database: Database, store: SqlStore
) -> None:
    """COMMIT was not come to: nothing is written, and no message is to blame."""
    (record,) = records(message(), decided=True)
    async with database.writing() as connection:
        await connection.execute(insert(tables("onceonly_").records).values(row_of("shop", record, 0)))
    unit = await store.begin([message()])
    await add(unit, "a")
    with pytest.raises(CommitFailed) as raised:
        await unit.commit([record])
    unit.abandon()
    assert type(raised.value) is CommitFailed  # a refused commit is a kind of it
    assert (await orders(database), await counted(database, "claims")) == ([], 0)


async def test_a_deferred_constraint_refuses_the_commit_of_a_lone_message(database: Database, store: SqlStore) -> None:
    """The record was inserted, COMMIT was said, and the server refused it."""
    unit = await store.begin([message()])
    async with unit.resources.attempt():
        session_of(unit.resources).add(Line(id=1, order_id="nowhere"))
    with pytest.raises(CommitRefused):
        await unit.commit(records(message(), decided=True))
    unit.abandon()
    assert (await counted(database, "claims"), await counted(database, "records")) == (0, 0)


async def test_a_lone_claim_whose_lock_is_not_had_costs_no_connection(url: str, store: SqlStore) -> None:
    """It is a ConflictError, as ever, and rolled back: the next unit has the connection."""
    first = await store.begin([message()])
    async with opened(f"{url}?timeout=0.05") as impatient:
        made: list[object] = []
        event.listen(impatient.engine.sync_engine, "connect", lambda connection, _: made.append(connection))
        with pytest.raises(ConflictError):
            await SqlStore(impatient, "shop").begin([message()])
        free = await SqlStore(impatient, "shop").begin([message("free")])
        free.abandon()
        assert (len(made), len(free.found.new)) == (1, 1)
    first.abandon()


async def test_a_unit_without_a_claim_has_begun_before_its_handlers(database: Database, store: SqlStore, driver: str) -> None:
    """What one does on the driver's own connection goes with the unit."""
    unit = await store.begin([])
    own: Any = unit.resources.get({"asyncpg": asyncpg.Connection, "psycopg": psycopg.AsyncConnection}[driver])
    await own.execute("INSERT INTO orders (id, total) VALUES ('a', 0)")
    unit.abandon()
    assert await orders(database) == []


async def test_a_committed_unit_gives_its_connection_back_by_itself(database: Database, store: SqlStore) -> None:
    """Soon, though no other transaction begins."""
    back = asyncio.Event()
    event.listen(database.engine.sync_engine, "checkin", lambda *_: back.set())
    unit = await store.begin([message()])
    await unit.commit(records(message()))
    await back.wait()


async def test_a_transaction_gives_its_connection_back_with_its_commit(database: Database) -> None:
    """What is committed outside of a handler leaves nothing to be done later."""
    transactions, tasks = SqlTransactions(database, "shop"), asyncio.all_tasks()
    for number in range(2):
        opened = await transactions.open(TransactionAttempt(endpoint="shop", attempt=f"attempt-{number}", max_commit=60_000))
        assert isinstance(opened, SqlTransaction)
        await opened.commit(None, None)
        assert (checked_out(database), asyncio.all_tasks()) == (0, tasks)


def checked_out(database: Database) -> int:
    """Count the connections in use."""
    pool = database.engine.sync_engine.pool
    assert isinstance(pool, QueuePool)
    return pool.checkedout()


async def commit_only(store: SqlStore, *asked: Message) -> None:
    """Take messages through a unit that writes nothing but their records."""
    unit = await store.begin(asked)
    await unit.commit(records(*unit.found.new, decided=True))
