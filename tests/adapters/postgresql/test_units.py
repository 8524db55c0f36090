"""Units on PostgreSQL: what they cost, who waits for whom, who loses a race, and what a handler's mistakes come to."""

import asyncio

import asyncpg
import psycopg
import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError

from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, HandlerFailed, SetupError
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.store import ClaimMode, SqlStore
from tests.sql.harness import (
    Order,
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
    session_of,
    statements,
)

CLAIM = "INSERT INTO onceonly_claims"
READ_KNOWN = "SELECT onceonly_claims.key, onceonly_claims.fingerprint,"
ADD = "INSERT INTO orders"
RECORD = "INSERT INTO onceonly_records"


async def test_a_unit_of_a_hundred_new_messages_costs_five_round_trips(database: Database, store: SqlStore) -> None:
    """BEGIN, which the driver says, one claim, one flush, one insert of records, COMMIT."""
    with statements(database) as heard:
        await handle(store, *messages(100), decided=True)
    assert heard == [CLAIM, ADD, RECORD, "COMMIT"]


async def test_forgetting_a_hundred_records_costs_one_round_trip(database: Database, store: SqlStore) -> None:
    """DELETE, without a transaction around it; it is committed all the same."""
    asked = messages(100)
    await handle(store, *asked, decided=True)
    with statements(database) as heard:
        await store.forget([Record(each.identity) for each in asked])
    assert heard == ["DELETE FROM onceonly_records"]
    assert await counted(database, "records") == 0


async def test_a_handler_may_work_on_the_drivers_own_connection(database: Database, store: SqlStore) -> None:
    """Whatever the driver: its row is there with the unit's commit, and not without it."""
    kinds = {"asyncpg": asyncpg.Connection, "psycopg": psycopg.AsyncConnection}
    kind = kinds[database.engine.dialect.driver.removesuffix("_async")]
    for commits, found in ((False, []), (True, ["a"])):
        unit = await store.begin(messages(1))
        async with unit.resources.attempt():
            own = unit.resources.get(kind)
            assert isinstance(own, kind)
            await own.execute("INSERT INTO orders (id, total) VALUES ('a', 0)")
        if commits:
            await unit.commit(records(*unit.found.new))
        else:
            unit.abandon()
        assert await orders(database) == found


async def test_a_batch_of_known_messages_costs_one_read_more(database: Database, store: SqlStore) -> None:
    """Fingerprints and records are read together, after the claim."""
    await handle(store, *messages(100), decided=True)
    with statements(database) as heard:
        unit = await store.begin(messages(100))
    unit.abandon()
    assert heard == [CLAIM, READ_KNOWN]
    assert len(unit.found.pending) == 100


async def test_the_claim_is_one_text_for_any_number_of_messages(database: Database, store: SqlStore) -> None:
    """So it is prepared once on each connection."""
    heard: set[str] = set()
    event.listen(database.engine.sync_engine, "before_cursor_execute", lambda _c, _k, said, *_: heard.add(said))
    for count in (1, 7, 20_000):
        unit = await store.begin(messages(count))
        unit.abandon()
        assert len(unit.found.new) == count
    assert len(heard) == 1


async def test_claims_are_narrow(database: Database, store: SqlStore) -> None:
    """A native uuid and a number; outside of the ring also when they arrived, and for which ring."""
    await handle(store, message())
    query = text(
        "SELECT column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = :name ORDER BY 1"
    )
    narrow = [("fingerprint", "bigint"), ("key", "uuid")]
    async with database.reading() as connection:
        in_ring, outside = [
            [tuple(row) for row in await connection.execute(query, {"name": name})]
            for name in ("onceonly_claim_00", "onceonly_claims")
        ]
    assert (in_ring, outside) == (narrow, [("arrived_at", "bigint"), *narrow, ("ring", "integer")])


async def test_a_claim_waits_for_the_commit_of_who_has_it(url: str, store: SqlStore) -> None:
    """Then it finds the message pending: the read after the claim sees what was committed while it waited."""
    async with opened(url) as other:
        first = await store.begin([message()])
        second = asyncio.create_task(SqlStore(other, "shop").begin([message()]))
        await add(first, "a")
        await until_waiting(other)
        await first.commit(records(message(), decided=True))
        found = await second
        found.abandon()
        assert (found.found.new, [each.identity for each in found.found.pending]) == ((), [message().identity])


async def test_a_claim_waits_for_who_gives_up(url: str, store: SqlStore) -> None:
    """Then it has the message."""
    async with opened(url) as other:
        first = await store.begin([message()])
        second = asyncio.create_task(SqlStore(other, "shop").begin([message()]))
        await until_waiting(other)
        first.abandon()
        found = await second
        found.abandon()
        assert found.found.new == (message(),)


async def test_who_waits_too_long_for_a_unit_gets_conflict(database: Database, url: str, store: SqlStore) -> None:
    """Definite: nothing of it happened."""
    async with opened(url + "?timeout=0.05") as impatient:
        unit = await store.begin([message()])
        with pytest.raises(ConflictError, match="lock timeout"):
            await SqlStore(impatient, "shop").begin([message()])
        unit.abandon()
        await database.settle()
        assert await look(SqlStore(impatient, "shop"), message()) == {"new": ["m1"]}


async def test_a_deadlock_between_handlers_is_a_conflict_of_one_unit(database: Database, store: SqlStore) -> None:
    """The other one commits."""
    await handle(store, message("a"), message("b"))
    units = [await store.begin([message("m1")]), await store.begin([message("m2")])]
    for unit, name in zip(units, ("a", "b"), strict=True):
        await attempt(unit, lambda unit=unit, name=name: grow(unit, name))
    crossing = [
        asyncio.create_task(attempt(unit, lambda unit=unit, name=name: grow(unit, name)))
        for unit, name in zip(units, ("b", "a"), strict=True)
    ]
    ended = await asyncio.gather(*crossing, return_exceptions=True)
    assert sorted(type(each) for each in ended if each is not None) == [ConflictError]
    winner = units[ended.index(None)]
    await winner.commit(records(*winner.found.new))
    for unit in units:
        unit.abandon()
    assert sorted(await totals(database)) == [1, 1]


@pytest.mark.parametrize("level", ["serializable", "repeatable-read"])
async def test_a_chosen_isolation_turns_a_lost_update_into_a_conflict(database: Database, url: str, level: str) -> None:
    """Chosen for the store, or in the URL."""
    await handle(SqlStore(database, "shop"), message("a"))
    async with opened(f"{url}?isolation={level}") as by_url:
        for store in (SqlStore(database, "shop", isolation=level), SqlStore(by_url, "shop")):
            first, second = await store.begin([message("m1")]), await store.begin([message("m2")])
            read = [await session_of(unit.resources).get_one(Order, "a") for unit in (first, second)]
            for order in read:
                order.total += 1
            await first.commit(records(message("m1")))
            with pytest.raises(ConflictError):
                await second.commit(records(message("m2")))
            assert await look(store, message("m2")) == {"new": ["m2"]}
            await forget_all(database)
    assert await totals(database) == [2]


async def test_the_databases_own_isolation_loses_such_an_update(database: Database, store: SqlStore) -> None:
    """READ COMMITTED: this is the user's to know, and why `isolation` is there."""
    await handle(store, message("a"))
    units = [await store.begin([message("m1")]), await store.begin([message("m2")])]
    for unit in units:
        (await session_of(unit.resources).get_one(Order, "a")).total += 1
    for unit in units:
        await unit.commit(records(*unit.found.new))
    assert await totals(database) == [1]


async def test_above_read_committed_a_claim_that_was_committed_meanwhile_is_a_conflict(database: Database) -> None:
    """The snapshot could not show what became of the message, so the unit starts again."""
    strict = SqlStore(database, "shop", isolation="SERIALIZABLE")
    first = await strict.begin([message()])
    second = asyncio.create_task(strict.begin([message()]))
    await until_waiting(database)
    await first.commit(records(message(), decided=True))
    with pytest.raises(ConflictError):
        await second
    assert await look(strict, message()) == {"pending": ["m1"]}


async def test_an_isolation_that_the_database_lacks_is_refused(database: Database) -> None:
    """With those there are."""
    with pytest.raises(SetupError, match="READ COMMITTED, REPEATABLE READ, SERIALIZABLE"):
        SqlStore(database, "shop", isolation="SNAPSHOT")


@pytest.mark.parametrize("isolated", [False, True])
async def test_a_handler_that_swallows_a_database_error_has_failed(store: SqlStore, *, isolated: bool) -> None:
    """PostgreSQL commits nothing after it; in an isolated unit the others are none the worse for it."""
    await handle(store, message("a"))
    unit = await store.begin(messages(3), isolated=isolated)
    with pytest.raises(HandlerFailed, match="aborted"):
        await attempt(unit, lambda: swallow(unit))
    if isolated:
        await add(unit, "b")
        await unit.commit(records(*messages(3)[1:]))
        assert await look(store, *messages(3)) == {"new": ["m0"], "done": ["m1", "m2"]}
    else:
        with pytest.raises(CommitRefused):
            await unit.commit(records(*unit.found.new))


@pytest.mark.parametrize("decided", [False, True])
async def test_a_transaction_aborted_past_sqlalchemy_is_never_taken_for_committed(store: SqlStore, *, decided: bool) -> None:
    """PostgreSQL answers its COMMIT with ROLLBACK and no error: a driver takes that for success."""
    unit = await store.begin([message()])

    async def break_it() -> None:
        raw = await connection_of(unit.resources).get_raw_connection()
        with pytest.raises(Exception, match="division"):
            await raw.driver_connection.execute("SELECT 1 / 0")

    with pytest.raises((CommitRefused, HandlerFailed)):  # noqa: PT012 - one driver shows it at once, the other at COMMIT
        await attempt(unit, break_it)
        await unit.commit(records(message(), decided=decided))
    unit.abandon()
    assert await look(store, message()) == {"new": ["m1"]}


async def test_a_statement_that_is_cut_off_fails_its_handler_alone(database: Database, store: SqlStore) -> None:
    """The server cancels it, the connection stays, and the savepoint undoes the rest."""
    unit = await store.begin(messages(2), isolated=True)

    async def sleep() -> None:
        session_of(unit.resources).add(Order(id="too-late"))
        async with asyncio.timeout(0.05):
            await session_of(unit.resources).execute(text("SELECT pg_sleep(60)"))

    with pytest.raises(TimeoutError):
        await attempt(unit, sleep)
    await add(unit, "in-time")
    await unit.commit(records(message("m1")))
    assert await orders(database) == ["in-time"]
    assert await look(store, *messages(2)) == {"new": ["m0"], "done": ["m1"]}


async def test_without_history_everything_is_always_new(database: Database) -> None:
    """Off keeps no claims and no records; a handler that touches nothing commits as well."""
    store = SqlStore(database, "shop", claim_mode=ClaimMode.NOTHING)
    for names in (("a",), ("b",), ()):
        unit = await store.begin([message()])
        assert unit.found.new == (message(),)
        await add(unit, *names)
        await unit.commit(records(message(), decided=True))
    assert await orders(database) == ["a", "b"]
    assert (await counted(database, "claims"), await counted(database, "records")) == (0, 0)


async def test_who_waits_too_long_to_forget_gets_failed(database: Database, url: str, store: SqlStore) -> None:
    """It is no race: the record is still there, and is dropped another time."""
    await handle(store, message(), decided=True)
    async with opened(url + "?timeout=0.05") as impatient, database.writing() as connection:
        await connection.execute(text("SELECT * FROM onceonly_records FOR UPDATE"))
        with pytest.raises(CommitFailed, match="lock timeout"):
            await SqlStore(impatient, "shop").forget([Record(message().identity)])


async def test_units_give_their_connections_back(database: Database, store: SqlStore) -> None:
    """However they end."""
    for number in range(10):
        unit = await store.begin([message(f"m{number}")])
        if number == 0:
            await add(unit, "same")
            await unit.commit(records(*unit.found.new))
            continue
        with pytest.raises(IntegrityError):
            await add(unit, "same")
        if number % 2:
            unit.abandon()
        else:
            with pytest.raises(CommitRefused):
                await unit.commit(records(*unit.found.new))
    await database.settle()
    assert database.engine.pool.checkedout() == 0
    assert await orders(database) == ["same"]


async def grow(unit: object, name: str) -> None:
    """Add one to a total, in one statement."""
    await session_of(unit.resources).execute(update(Order).where(Order.id == name).values(total=Order.total + 1))


async def swallow(unit: object) -> None:
    """Break a constraint, and go on as if nothing had happened."""
    with pytest.raises(Exception, match="duplicate key"):
        await session_of(unit.resources).execute(text("INSERT INTO orders (id, total) VALUES ('a', 0)"))


async def test_savepoints_of_a_large_unit_are_not_prepared(database: Database, store: SqlStore) -> None:
    """They would push the statements of handlers out of the driver's cache. psycopg may prepare the two that it sees often."""
    unit = await store.begin(messages(20), isolated=True)
    await add(unit, *(f"o{number}" for number in range(20)))
    prepared = text("SELECT count(*) FROM pg_prepared_statements WHERE statement ~ '^(SAVEPOINT|RELEASE)'")
    assert await connection_of(unit.resources).scalar(prepared) in {0, 2}
    await unit.commit(records(*unit.found.new))
    assert len(await orders(database)) == 20


async def test_a_savepoint_that_fails_raises_sqlalchemys_error(store: SqlStore) -> None:
    """With the server's SQLSTATE, as any other statement."""
    unit = await store.begin(messages(1))
    with pytest.raises(DBAPIError, match="sa_savepoint_7") as raised:
        await connection_of(unit.resources).execute(text("ROLLBACK TO SAVEPOINT sa_savepoint_7"))
    assert getattr(raised.value.orig, "sqlstate", None) == "3B001"
    unit.abandon()


async def totals(database: Database) -> list[int]:
    """Read all totals."""
    async with database.reading() as connection:
        return list(await connection.scalars(select(Order.total)))


async def forget_all(database: Database) -> None:
    """Let every message be new."""
    async with database.writing() as connection:
        await connection.execute(text("DELETE FROM onceonly_claims"))


async def until_waiting(database: Database) -> None:
    """Return when some statement in this database waits for another transaction."""
    query = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'")
    async with asyncio.timeout(20):
        while True:
            async with database.reading() as connection:
                if await connection.scalar(query):
                    return
