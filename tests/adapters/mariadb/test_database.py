"""A MariaDB database: which servers are refused, how a user's engine is adopted, and how tables are made."""

import asyncio

import pytest
from msgspec.structs import replace
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from onceonly.adapters.mariadb.dialect import MariaDB
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import CommitFailed, CommitRefused, RetryableError, SetupError
from onceonly.model.record import Record
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.schema import check, create, drop, render
from onceonly.sql.store import SCHEMA, ClaimMode, SqlDeadLetters, SqlStore
from onceonly.sql.store.tables import tables
from onceonly_conformance.clock import ManualClock
from tests.adapters.mariadb.harness import A, B, is_mysql, place, sockets_closed
from tests.servers.available import on_mariadb
from tests.sql.harness import (
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
    session_of,
)


async def read_nothing(url: str, *, durable: bool = True) -> None:
    """Open a database as a process of its own would, and make its first transaction."""
    async with sockets_closed():
        database = await open_database(url, clock=ManualClock(), durable=durable)
        try:
            async with database.reading():
                pass
        finally:
            await database.close()


@pytest.mark.parametrize(
    ("user", "database", "says"),
    [("root", "never_made", "this database does not exist"), ("nobody:geheim", "test", "rejected this user or password")],
)
async def test_a_database_that_cannot_be_entered_is_a_set_up_error(url: str, user: str, database: str, says: str) -> None:
    """Trying again would not help. A server that is away may come back."""
    server = make_url(url)
    with pytest.raises(SetupError, match=says) as refused:
        await read_nothing(f"mysql://{user}@{server.host}:{server.port}/{database}")
    assert "geheim" not in repr(refused.value)
    with pytest.raises(RetryableError):
        await read_nothing(f"mysql://{user}@{server.host}:1/{database}")


@pytest.mark.parametrize(
    ("unsafe", "safe", "says"),
    [
        (
            "innodb_flush_log_at_trx_commit = 2",
            "innodb_flush_log_at_trx_commit = 1",
            "innodb_flush_log_at_trx_commit=2.*set it to 1",
        ),
        ("innodb_flush_log_at_trx_commit = 0", "innodb_flush_log_at_trx_commit = 1", "a power failure loses commits"),
        ("sync_binlog = 0", "sync_binlog = 1", "sync_binlog=0.*set it to 1"),
    ],
)
async def test_a_server_that_loses_commits_is_refused(own: str, unsafe: str, safe: str, says: str) -> None:
    """Unless losing them is accepted."""
    await read_nothing(own)
    await on_mariadb(f"SET GLOBAL {unsafe}", url=own)
    try:
        with pytest.raises(SetupError, match=says):
            await read_nothing(own)
        await read_nothing(own, durable=False)
    finally:
        await on_mariadb(f"SET GLOBAL {safe}", url=own)


@pytest.mark.parametrize(
    ("unsafe", "safe", "says"),
    [
        ("read_only = 1", "read_only = 0", "use the primary"),
        ("sql_mode = ''", "sql_mode = DEFAULT", "STRICT_TRANS_TABLES"),
    ],
)
async def test_a_server_that_cannot_be_written_properly_is_refused(own: str, unsafe: str, safe: str, says: str) -> None:
    """A read-only one lets an administrator write; one that is not strict cuts what does not fit."""
    await on_mariadb(f"SET GLOBAL {unsafe}", url=own)
    try:
        with pytest.raises(SetupError, match=says):
            await read_nothing(own, durable=False)
    finally:
        await on_mariadb(f"SET GLOBAL {safe}", url=own)


async def test_a_replica_is_refused(own: str) -> None:
    """Also a writable one: what its source has committed may come later."""
    source = "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1, MASTER_USER = 'nobody'"
    await on_mariadb(source, "START SLAVE SQL_THREAD", url=own)
    try:
        with pytest.raises(SetupError, match="it is a replica"):
            await read_nothing(own)
    finally:
        await on_mariadb("STOP SLAVE", "RESET SLAVE ALL", url=own)
    await read_nothing(own)


async def test_a_user_without_privileges_can_work(own: str) -> None:
    """Who may not ask whether it is a replica is believed."""
    await on_mariadb(
        "CREATE OR REPLACE USER 'shop'@'localhost' IDENTIFIED BY 'sécret-pässword'",
        "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, INDEX, ALTER ON test.* TO 'shop'@'localhost'",
        url=own,
    )
    async with opened(own.replace("root@", "shop:s%C3%A9cret-p%C3%A4ssword@"), tables=False) as database:
        await create(database, SCHEMA)
        store = SqlStore(database, "shop")
        await (await store.begin([A])).commit(records(A))
        assert await look(store, A) == {"done": ["a"]}


@pytest.mark.parametrize("wrong", ["shop:hunter2@127.0.0.1", "shop:hunter2@127.0.0.1:1"])
async def test_no_error_repeats_a_password(own: str, wrong: str) -> None:
    """A wrong one, and a server that is not there."""
    port = own.rpartition(":")[2].partition("/")[0]
    place = f"mysql://{wrong if ':1' in wrong[-2:] else f'{wrong}:{port}'}/test"
    with pytest.raises((CommitFailed, SetupError)) as failed:
        await read_nothing(place)
    causes: list[BaseException | None] = [failed.value]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__ or causes[-1].__context__)
    assert "hunter2" not in " ".join(f"{each!s} {each!r}" for each in causes)


async def test_a_url_names_a_database(mariadb_url: str) -> None:
    """There is none to fall back on."""
    with pytest.raises(SetupError, match="mysql://user@host/database"):
        await open_database(mariadb_url.rpartition("/")[0] + "/", clock=ManualClock())


@pytest.mark.parametrize("scheme", ["mysql", "mariadb"])
async def test_both_schemes_name_it(url: str, database: Database, scheme: str) -> None:
    """They are the same."""
    await handle(SqlStore(database, "shop"), A)
    async with opened(place(url).replace("mysql", scheme, 1)) as other:
        assert await look(SqlStore(other, "shop"), A) == {"done": ["a"]}


@pytest.mark.parametrize("system", ["mysql", "mariadb"])
@pytest.mark.parametrize("as_factory", [False, True])
async def test_a_users_engine_is_adopted_and_left_as_it_was(
    url: str,
    database: Database,
    system: str,
    as_factory: bool,  # noqa: FBT001 - pytest passes it
) -> None:
    """Its own transactions begin by themselves as before; it is not disposed."""
    if system == "mariadb" and is_mysql(database):
        pytest.skip("SQLAlchemy refuses an engine for mariadb:// on MySQL")
    engine = create_async_engine(f"{system}+asyncmy://{url.partition('://')[2]}")
    source = async_sessionmaker(engine, expire_on_commit=False) if as_factory else engine
    adopted = await open_database(source, clock=ManualClock(), prefix="own_")
    try:
        store = SqlStore(adopted, "shop")
        await handle(store, A, decided=True)
        await handle(store, A, B)
        assert await look(SqlStore(database, "shop"), A, B) == {"pending": ["a"], "done": ["b"]}
        await adopted.close()
        async with AsyncSession(engine) as session:
            await session.execute(text("INSERT INTO orders (id) VALUES ('of the user')"))
            await session.rollback()
        assert await orders(database) == ["a", "b"]
    finally:
        await engine.dispose()


async def test_copies_cause_no_warnings_on_a_users_engine(
    url: str, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Asyncmy logs each duplicate of INSERT IGNORE. A handler's own statement still has its warning."""
    engine = create_async_engine(f"mysql+asyncmy://{url.partition('://')[2]}")
    adopted = await open_database(engine, clock=ManualClock(), prefix="own_")
    twice = text("INSERT IGNORE INTO orders (id) VALUES ('twice'), ('twice')")

    def warned() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name == "asyncmy" and "Duplicate" in each.getMessage()]

    try:
        store = SqlStore(adopted, "shop")
        await handle(store, A, B)
        await handle(store, A, B)
        assert await look(SqlStore(database, "shop"), A, B) == {"done": ["a", "b"]}
        assert warned() == []
        unit = await store.begin([message("other")])
        try:
            await session_of(unit.resources).execute(twice)
        finally:
            unit.abandon()
        assert len(warned()) == 1
    finally:
        await adopted.close()
        await engine.dispose()


async def test_an_engine_with_another_driver_is_refused() -> None:
    """The status flag is read from asyncmy."""
    with pytest.raises(SetupError, match="mysql\\+asyncmy"):
        MariaDB().adopt(_with_driver("pymysql"))


def _with_driver(name: str) -> "object":
    class OtherDriver:
        class sync_engine:  # noqa: N801 - SQLAlchemy's name
            class dialect:  # noqa: N801 - SQLAlchemy's name
                driver = name

    return OtherDriver()


async def test_units_have_the_isolation_that_was_asked_for(url: str) -> None:
    """The next transaction on the same connection has its own again."""
    seen = []
    async with opened(place(url, isolation="SERIALIZABLE")) as serializable:
        for database in (serializable,):
            unit = await SqlStore(database, "shop").begin([])
            await connection_of(unit.resources).execute(text("SELECT COUNT(*) FROM orders"))
            seen.append(await _level(unit))
            unit.abandon()
            unit = await SqlStore(database, "shop", isolation="READ COMMITTED").begin([])
            await connection_of(unit.resources).execute(text("SELECT COUNT(*) FROM orders"))
            seen.append(await _level(unit))
            unit.abandon()
    assert seen == ["SERIALIZABLE", "READ COMMITTED"]


async def _level(unit: object) -> str:
    query = "SELECT trx_isolation_level FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = CONNECTION_ID()"
    await asyncio.sleep(0.15)  # the view is refreshed every 0.1 s
    return str((await connection_of(unit.resources).execute(text(query))).scalar_one())  # type: ignore[attr-defined]


async def test_an_unknown_isolation_is_refused(url: str) -> None:
    """Reading what is not committed is none that a unit may have."""
    with pytest.raises(SetupError, match="REPEATABLE READ"):
        await open_database(place(url, isolation="READ%20UNCOMMITTED"), clock=ManualClock())


async def test_several_processes_may_create_at_once(mariadb_url: str) -> None:
    """DDL commits by itself here, so they take turns by a lock with a name."""
    place = f"{mariadb_url}?prefix=race_"

    async def start() -> None:
        async with opened(place) as database:
            await create(database, SCHEMA)
            await create(database, QUEUE)
            await check(database, SCHEMA)

    await asyncio.gather(*(start() for _ in range(6)))
    async with opened(place) as database:
        await create(database, SCHEMA)
        await drop(database, SCHEMA, QUEUE)


async def test_what_is_printed_makes_the_tables(mariadb_url: str) -> None:
    """In InnoDB, with keys of sixteen bytes, and names compared exactly."""
    async with opened(f"{mariadb_url}?prefix=printed_") as database:
        printed = render(database, SCHEMA)
        await on_mariadb(*(each for each in printed.split(";\n") if each.strip()), url=mariadb_url)
        await check(database, SCHEMA)
        assert await counted(database, "claims") == 0
        await drop(database, SCHEMA)
    assert "`key` BINARY(16) NOT NULL" in printed
    of_store = SCHEMA.tables("printed_", None).tables
    assert printed.count("CREATE TABLE") == printed.count("ENGINE=InnoDB") == len(of_store) + 1  # and that of the versions


async def test_what_is_too_long_for_its_column_is_never_cut(database: Database) -> None:
    """INSERT IGNORE would cut it."""
    claims = tables(database.prefix).claims
    async with database.writing() as connection:
        with pytest.raises(SetupError, match="16"):
            await connection.run_sync(
                database.dialect.insert_absent, claims, [{"key": b"x" * 17, "fingerprint": b"x" * 8}], key=["key"]
            )
    assert await counted(database, "claims") == 0


async def test_letters_of_any_size_are_kept_whole(database: Database) -> None:
    """Far beyond the 64 KiB of a plain BLOB."""
    letters = SqlDeadLetters(database)
    body = b"\0\xff'\\\"%s" * 200_000
    large = DeadLetter(endpoint="shop", reason="too large", headers=(), body=body, message=message(body=body), attempts=1)
    await letters.add(large)
    await letters.add(large)
    found = await letters.get(large.key)
    assert found is not None
    assert found.message == large.message


async def test_without_history_everything_is_always_new(database: Database) -> None:
    """Off is honest at-least-once."""
    store = SqlStore(database, "shop", claim_mode=ClaimMode.NOTHING)
    for name in ("x", "y"):
        unit = await store.begin([A])
        assert unit.found.new == (A,)
        await add(unit, name)
        await unit.commit(records(A, decided=True))
    assert await orders(database) == ["x", "y"]
    assert (await counted(database, "claims"), await counted(database, "records")) == (0, 0)


async def test_a_server_without_returning_counts_its_claims(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on MySQL, and on a connection of Django: the row count tells whether rows are new."""
    await orders(database)
    monkeypatch.setattr(database.engine.sync_engine.dialect, "insert_returning", False)
    store = SqlStore(database, "shop")
    await handle(store, *messages(3), decided=True)
    assert await look(store, *messages(5)) == {"new": ["m3", "m4"], "pending": ["m0", "m1", "m2"]}


async def test_a_record_that_no_packet_can_hold_is_the_messages_own_fault(database: Database) -> None:
    """The server says so, and closes the connection."""
    store = SqlStore(database, "shop")
    large = replace(ONE_EFFECT[0], message=message(body=b"x" * 17_000_000))
    unit = await store.begin([A])
    with pytest.raises(CommitRefused, match="max_allowed_packet"):
        await unit.commit([Record(A.identity, (large,))])
    assert await look(store, A) == {"new": ["a"]}
