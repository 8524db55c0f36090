"""What is different on MySQL: inserts without RETURNING, silent sessions, log-in, the history of commits, settings."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly import Endpoint
from onceonly.adapters.mariadb import counted_inserts
from onceonly.model.errors import RetryableError, SetupError
from onceonly.sql.database import Database
from onceonly.sql.dialect import DatabaseFailure
from onceonly.sql.store import SqlStore
from onceonly.sql.store.tables import tables
from onceonly.sql.time_limits import limited_reads
from tests.adapters.mariadb.harness import A, B, make_tables, opened_empty, place, run
from tests.adapters.mariadb.test_database import read_nothing
from tests.servers.available import on_mariadb
from tests.servers.mysql import MYSQL, OwnMySQL, own_mysql
from tests.servers.versions import version_of
from tests.sql.harness import add, attempt, handle, look, message, messages, opened, records

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
ENDLESS = "SELECT COUNT(*) FROM information_schema.columns a, information_schema.columns b, information_schema.columns c"


@pytest.fixture(scope="module")
def mysql() -> Iterator[OwnMySQL]:
    """Start a server, with the tables of these tests."""
    with own_mysql() as server:
        asyncio.run(make_tables(server.url))
        yield server


@pytest.fixture
def url(mysql: OwnMySQL) -> str:
    """Return the URL of its database."""
    return mysql.url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Open it with empty tables."""
    async with opened_empty(url) as database:
        yield database


@pytest.fixture
async def store(database: Database) -> SqlStore:
    """Return the store of an endpoint, whose retention is decided."""
    made = SqlStore(database, "shop")
    await made.prepare()
    return made


def claims(*names: str) -> list[dict[str, bytes]]:
    """Make rows of claims with these keys."""
    return [{"key": name.encode().ljust(16, b"."), "fingerprint": b"12345678"} for name in names]


def added(database: Database, *names: str) -> Any:
    """Return what inserts claims, and returns the names of those that were new."""

    def insert(connection: Connection) -> list[str]:
        rows = database.dialect.insert_absent(connection, tables(database.prefix).claims, claims(*names), key=["key"])
        return [row.key.rstrip(b".").decode() for row in rows]

    return insert


async def test_these_tests_run_on_mysql(url: str) -> None:
    """Its release is pinned."""
    assert MYSQL.packages[0].endswith(await version_of(url))


@pytest.mark.parametrize("level", LEVELS)
async def test_of_a_batch_those_that_are_new_are_claimed(url: str, store: SqlStore, level: str) -> None:
    """All, none, and some."""
    asked = messages(5)
    async with opened(place(url, isolation=level.replace(" ", "%20"))) as other:
        mine = SqlStore(other, "shop")
        await handle(mine, asked[1], asked[3])
        await handle(mine, asked[1], asked[3])
        unit = await mine.begin(asked)
        assert unit.found.new == (asked[0], asked[2], asked[4])
        await unit.commit(records(*unit.found.new))
    assert await look(store, *asked) == {"done": [each.id for each in asked]}


async def test_rows_that_come_between_finding_and_inserting_are_known(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Race here: 1 nothing is found, 2 others commit some of the keys, 3 the count tells, 4 each row is inserted alone."""
    async with database.writing() as connection:
        assert await connection.run_sync(added(database, "b", "d")) == ["b", "d"]
    monkeypatch.setattr(counted_inserts, "find_each", lambda *_, **__: frozenset())
    async with database.writing() as connection:
        assert await connection.run_sync(added(database, "a", "b", "c", "d", "e")) == ["a", "c", "e"]
        assert await connection.run_sync(added(database, "a", "b")) == []


async def test_statements_of_mariadb_do_not_pass(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: a dialect that takes this server for MariaDB is an error of the first claim."""
    monkeypatch.setattr(database.engine.sync_engine.dialect, "insert_returning", True)
    async with database.writing() as connection:
        with pytest.raises(DBAPIError, match="1064"):
            await connection.run_sync(added(database, "a"))


async def test_a_row_behind_a_label_needs_the_label(database: Database) -> None:
    """It is the lowest key of a bucket."""
    label, *rows = claims("0", "a", "b")

    def behind(connection: Connection) -> list[bytes] | None:
        table = tables(database.prefix).claims
        found = database.dialect.insert_behind(connection, table, label, rows, key="key")
        return None if found is None else [row.key for row in found]

    async with database.writing() as connection:
        assert await connection.run_sync(behind) is None
    async with database.writing() as connection:
        assert await connection.run_sync(behind) == [row["key"] for row in rows]


async def test_a_host_that_vanishes_keeps_its_locks_no_longer_than_handlers_may_be_silent(url: str, store: SqlStore) -> None:
    """The server ends the session of a client that is silent in a transaction; to it, a stopped process is the same."""
    async with opened(place(url)) as gone:
        gone.dialect.expect(1)
        vanished = await SqlStore(gone, "shop").begin([A])
        await add(vanished, "a")
        await attempt(vanished, lambda: run(vanished, "SELECT 1"))
        unit = await store.begin([A])  # waits for the claim of the one that is gone; the lock time-out is five seconds
        assert [each.id for each in unit.found.new] == ["a"]
        await unit.commit(records(A))
        with pytest.raises(RetryableError):
            await vanished.commit(records(A))


async def test_a_connection_that_was_idle_in_the_pool_costs_no_attempt(url: str) -> None:
    """The server ends idle sessions as well, so the pool opens another one in time."""
    async with opened(place(url)) as database:
        database.dialect.expect(1)
        store = SqlStore(database, "shop")
        await handle(store, A)
        first = await numbers(url)
        async with asyncio.timeout(60):
            while await numbers(url) & first:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.1)
        await handle(store, B)
        assert await look(store, A, B) == {"done": ["a", "b"]}


async def numbers(url: str) -> set[int]:
    """Return the numbers of the sessions on this server in which nothing runs."""
    async with opened(url, tables=False) as database, database.reading() as connection:
        query = "SELECT id FROM information_schema.processlist WHERE command = 'Sleep'"
        return set(await connection.scalars(text(query)))


async def test_a_lead_outlives_the_limit_of_transactions(database: Database) -> None:
    """Its connection is silent for long; afterwards the limit is set again."""
    database.dialect.expect(7)
    maintenance = database.dialect.maintenance
    async with database.writing() as connection:
        assert await timeout_of(connection) == 7
    async with database.autocommitting() as connection:
        assert await connection.run_sync(maintenance.lead, "shop")
        assert await timeout_of(connection) == 3600
        await connection.run_sync(maintenance.follow, "shop")
    async with database.writing() as connection:
        assert await timeout_of(connection) == 7


async def timeout_of(connection: Any) -> int:
    """Return after how many seconds of silence the server ends this session."""
    return int((await connection.exec_driver_sql("SELECT @@SESSION.wait_timeout")).scalar_one())


async def test_a_users_session_keeps_its_limit(url: str) -> None:
    """It is the user's, and may be silent for as long as it likes."""
    engine = create_async_engine(make_url(url).set(drivername="mysql+asyncmy"))
    async with opened(engine) as database:
        database.dialect.expect(7)
        async with database.writing() as connection:
            assert await timeout_of(connection) == 28800
    await engine.dispose()


async def test_a_transaction_in_a_process_that_opened_nothing_has_a_limit(database: Database, url: str) -> None:
    """Its process may be stopped for ever, while it holds the lock of its key."""
    await look(SqlStore(database, "shop"), A)
    shop = Endpoint("shop", store=place(url), transport=place(url))
    async with shop.transaction(idempotency_key="k1") as tx:
        assert await tx.sql.scalar(text("SELECT @@SESSION.wait_timeout")) == 35


async def test_a_table_in_use_is_not_emptied(database: Database) -> None:
    """TRUNCATE waits a second at most, and the session keeps its time-out."""
    table = tables(database.prefix).claims
    maintenance = database.dialect.maintenance

    async def emptied() -> bool:
        async with database.writing() as connection:
            before = (await connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout")).scalar_one()
            done = await connection.run_sync(lambda it: maintenance.empty(it, table, by_rows=False))
            assert (await connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout")).scalar_one() == before
            return done

    async with database.writing() as connection:
        await connection.run_sync(added(database, "a", "b"))
    async with database.reading() as reader:
        await reader.exec_driver_sql(f"SELECT COUNT(*) FROM {table.name}")  # noqa: S608 - the tests' own table
        assert not await emptied()
    assert await emptied()


async def test_the_server_ends_a_read_after_its_limit(database: Database) -> None:
    """By a hint in the statement."""
    async with database.reading() as connection:
        with limited_reads(0.2), pytest.raises(DBAPIError, match="3024") as raised:
            await connection.exec_driver_sql(ENDLESS)
    assert database.dialect.classify(raised.value) is DatabaseFailure.STATEMENT


@pytest.mark.parametrize("options", ["", "?ssl-mode=VERIFY_CA&ssl-ca={ca}"], ids=["plain", "TLS"])
async def test_a_password_is_sent_safely(mysql: OwnMySQL, options: str) -> None:
    """MySQL's own kind, caching_sha2_password: without TLS the driver encrypts it by the server's key."""
    await on_mariadb(
        "DROP USER IF EXISTS shop",
        "CREATE USER shop IDENTIFIED WITH caching_sha2_password BY 'sécret-pässword'",
        "GRANT ALL ON test.* TO shop",
        url=mysql.url,
    )
    there = f"@127.0.0.1:{mysql.port}/test" + options.format(ca=mysql.data / "ca.pem")
    for _ in range(2):  # the server's cache has it the second time
        await read_nothing(f"mysql://shop:s%C3%A9cret-p%C3%A4ssword{there}")
    with pytest.raises(SetupError, match="rejected this user or password"):
        await read_nothing(f"mysql://shop:wrong{there}")


async def test_commits_that_are_gone_are_noticed(mysql: OwnMySQL, database: Database) -> None:
    """By the set of GTIDs, which grows with each commit."""
    before = await database.dialect.history(database.engine)
    await handle(SqlStore(database, "shop"), message("one more"))
    after = await database.dialect.history(database.engine)
    assert before is not None
    assert after is not None
    assert before.lacks(after)
    assert not after.lacks(before)
    await on_mariadb("RESET BINARY LOGS AND GTIDS", url=mysql.url)
    restored = await database.dialect.history(database.engine)
    assert restored is not None
    assert restored.lacks(after)


UNSAFE: Mapping[str, tuple[str, str]] = {
    "innodb_flush_log_at_trx_commit = 2": ("innodb_flush_log_at_trx_commit = 1", "a power failure loses commits"),
    "sync_binlog = 0": ("sync_binlog = 1", "sync_binlog=0.*set it to 1"),
    "read_only = 1": ("read_only = 0", "use the primary"),
    "sql_mode = ''": ("sql_mode = DEFAULT", "STRICT_TRANS_TABLES"),
}


@pytest.mark.parametrize("unsafe", UNSAFE)
async def test_an_unsafe_server_is_refused(url: str, unsafe: str) -> None:
    """As MariaDB with the same setting is."""
    safe, says = UNSAFE[unsafe]
    await on_mariadb(f"SET GLOBAL {unsafe}", url=url)
    try:
        with pytest.raises(SetupError, match=says):
            await read_nothing(url)
    finally:
        await on_mariadb(f"SET GLOBAL {safe}", url=url)


async def test_a_replica_is_refused(url: str) -> None:
    """Also a writable one: what its source has committed may come later."""
    source = "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1, SOURCE_USER = 'nobody'"
    await on_mariadb(source, "START REPLICA SQL_THREAD", url=url)
    try:
        with pytest.raises(SetupError, match="it is a replica"):
            await read_nothing(url)
    finally:
        await on_mariadb("STOP REPLICA", "RESET REPLICA ALL", url=url)
    await read_nothing(url)
