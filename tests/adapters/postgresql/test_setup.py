"""Servers that would break the promise are refused at start; schemas, engines of the user's own, and the tables' versions."""

import asyncio
import gc
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import insert, inspect, make_url, text
from sqlalchemy.engine import AdaptedConnection
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine

from onceonly.assembly import Settings, open_store
from onceonly.model.errors import ConflictError, SchemaMissing, SetupError, UnsafeSettings
from onceonly.sql import database as sql
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.schema import check, create, drop, render, upgrade
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly_conformance.clock import ManualClock
from tests.servers.available import on_postgresql
from tests.sql.harness import Order, add, connection_of, handle, look, message, opened, orders, records


def engine_with(url: str, **settings: str) -> AsyncEngine:
    """Make a user's engine whose sessions have these settings."""
    if "asyncpg" in url:
        return create_async_engine(url, connect_args={"server_settings": settings})
    return create_async_engine(url, connect_args={"options": " ".join(f"-c {key}={value}" for key, value in settings.items())})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"synchronous_commit": "off"}, "synchronous_commit=off, so a crash loses commits: set synchronous_commit=on"),
        ({"default_transaction_read_only": "on"}, "allows only reads"),
    ],
)
async def test_sessions_that_break_the_promise_are_refused(url: str, settings: dict[str, str], words: str) -> None:
    """Whoever set it: the server, the database, the role or the engine."""
    engine = engine_with(url, **settings)
    async with opened(engine) as database:
        with pytest.raises(SetupError, match=words):
            await check(database, SCHEMA)
    await engine.dispose()


@pytest.mark.usefixtures("database")
async def test_losing_commits_may_be_accepted(url: str) -> None:
    """By a word in the program."""
    engine = engine_with(url, synchronous_commit="off")
    lax = await open_database(engine, clock=ManualClock(), durable=False)
    await check(lax, SCHEMA)
    await lax.close()
    await engine.dispose()


@pytest.mark.parametrize("whose", ["DATABASE {database}", "ROLE {role}", "ROLE {role} IN DATABASE {database}"])
async def test_losing_commits_is_noticed_while_it_runs(
    url: str, database: Database, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """Sessions that are open still commit durably, and the next one will not: nothing is begun until it is put right."""
    role = f"worker_{uuid4().hex[:8]}"
    place = make_url(url)
    named = whose.format(database=place.database, role=role)
    await on_postgresql(f"CREATE ROLE {role} LOGIN SUPERUSER", url=url)
    monkeypatch.setattr(sql, "CHECK_INTERVAL_SECONDS", 0.0)
    through = place.set(username=role, query={"prefix": database.prefix}).render_as_string(hide_password=False)
    try:
        async with opened(through) as running:
            await check(running, SCHEMA)
            await on_postgresql(f"ALTER {named} SET synchronous_commit = off", url=url)
            for _ in range(2):
                with pytest.raises(UnsafeSettings, match="synchronous_commit=off"):
                    await check(running, SCHEMA)
            await on_postgresql(f"ALTER {named} RESET synchronous_commit", url=url)
            await check(running, SCHEMA)
    finally:
        await on_postgresql(f"ALTER {named} RESET synchronous_commit", f"DROP ROLE {role}", url=url)


async def test_a_database_that_is_not_there_is_a_set_up_error(url: str) -> None:
    """Trying again would not help."""
    async with opened(url.rpartition("/")[0] + "/onceonly_never_made") as nowhere:
        with pytest.raises(SetupError, match="this database does not exist"):
            await check(nowhere, SCHEMA)


@pytest.mark.usefixtures("database")
async def test_tables_that_this_user_may_not_read_are_a_set_up_error(url: str, tmp_path: Path) -> None:
    """It is not waited for: only a person can grant the right."""
    stranger = f"stranger_{uuid4().hex[:8]}"
    await on_postgresql(f"CREATE ROLE {stranger} LOGIN", url=url)
    try:
        store = make_url(url).set(username=stranger).render_as_string(hide_password=False)
        settings = Settings(name="shop", store=store, transport=f"sqlite:///{tmp_path}/q.db")
        with pytest.raises(SetupError, match="permission denied for table onceonly_schema"):
            async with open_store(settings):
                pass
    finally:
        await on_postgresql(f"DROP ROLE {stranger}", url=url)


@pytest.mark.parametrize("option", ["schema=Shop", "schema=a;b", "isolation=none", "prefix=a-b"])
async def test_options_come_from_allow_lists(url: str, option: str) -> None:
    """They are parts of SQL text."""
    with pytest.raises(SetupError):
        await open_database(f"{url}?{option}", clock=ManualClock())


async def test_a_driver_that_cannot_wait_in_the_loop_is_refused() -> None:
    """There are two that can."""
    with pytest.raises(SetupError, match="use asyncpg or psycopg"):
        await open_database("postgresql+psycopg2://root@127.0.0.1/test", clock=ManualClock())


async def test_tables_live_in_the_schema_that_the_url_names(url: str, database: Database) -> None:
    """Made with it; claims there know nothing of claims elsewhere."""
    await handle(SqlStore(database, "shop"), message())
    async with opened(url + "?schema=elsewhere&prefix=own_") as other:
        with pytest.raises(SchemaMissing, match="onceonly schema create"):
            await check(other, SCHEMA)
        await create(other, SCHEMA)
        await upgrade(other, SCHEMA)
        await check(other, SCHEMA)
        async with other.reading() as connection:
            found = await connection.run_sync(lambda it: inspect(it).get_table_names(schema="elsewhere"))
        assert {"own_claims", "own_dead_letters", "own_records", "own_schema"} <= set(found)
        assert await look(SqlStore(other, "shop"), message()) == {"new": ["m1"]}
        await drop(other, SCHEMA)
        async with other.writing() as connection:
            await connection.execute(text("DROP SCHEMA elsewhere"))


async def test_several_processes_may_create_at_once(url: str) -> None:
    """One makes the tables, all find them; CREATE TABLE IF NOT EXISTS alone breaks here."""
    place = url + "?schema=rush"

    async def start() -> None:
        async with opened(place) as database:
            await create(database, SCHEMA)
            await create(database, QUEUE)

    await asyncio.gather(*(start() for _ in range(6)))
    async with opened(place) as database:
        await check(database, SCHEMA)
        await check(database, QUEUE)
        await drop(database, SCHEMA, QUEUE)


async def test_what_is_printed_makes_the_tables(url: str) -> None:
    """The schema as well; a person may run it by hand."""
    async with opened(url + "?schema=printed") as database:
        for statement in (render(database, SCHEMA) + render(database, QUEUE)).split(";\n"):
            async with database.writing() as connection:
                await connection.execute(text(statement))
        await check(database, SCHEMA)
        await check(database, QUEUE)
        await drop(database, SCHEMA, QUEUE)


async def test_a_users_engine_stays_as_it_is(url: str, database: Database) -> None:
    """Its own connections begin and commit as ever, its pool is shared, and it stays open."""
    engine = create_async_engine(url)
    async with opened(engine) as adopted:
        await handle(SqlStore(adopted, "shop"), message())
        async with engine.connect() as connection:
            await connection.execute(insert(Order).values(id="rolled-back", total=1))
            await connection.rollback()
            await connection.execute(insert(Order).values(id="users-own", total=1))
            await connection.commit()
        assert adopted.engine.pool is engine.pool
    assert await orders(database) == ["m1", "users-own"]
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1
    await engine.dispose()


async def test_a_users_factory_brings_its_isolation(url: str, database: Database) -> None:
    """Who made an engine for SERIALIZABLE gets no less."""
    engine = create_async_engine(url, isolation_level="SERIALIZABLE")
    await handle(SqlStore(database, "shop"), message("a"))
    async with opened(async_sessionmaker(engine)) as adopted:
        store = SqlStore(adopted, "shop")
        first, second = await store.begin([message()]), asyncio.create_task(store.begin([message()]))
        async with asyncio.timeout(20):
            while not await is_waiting(database):
                pass
        await add(first, "b")
        await first.commit(records(message()))
        with pytest.raises(ConflictError):
            await second
    await engine.dispose()


async def is_waiting(database: Database) -> bool:
    """Tell whether some statement in this database waits for another transaction."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid'"
    async with database.reading() as connection:
        return bool(await connection.scalar(text(query)))


async def test_an_endpoint_chooses_the_isolation_of_its_units(url: str, database: Database) -> None:
    """For all its handlers: they share units."""
    await check(database, SCHEMA)
    settings = Settings(name="shop", store=url, transport="memory://unused", isolation="repeatable read")
    async with open_store(settings) as opened:
        unit = await opened.store.begin([message()])
        level = await connection_of(unit.resources).scalar(text("SHOW transaction_isolation"))
        unit.abandon()
    assert level == "repeatable read"


async def test_a_start_without_tables_says_what_to_run(url: str) -> None:
    """No server database gets tables by itself."""
    settings = Settings(name="shop", store=url + "?prefix=nothing_", transport="memory://unused")
    with pytest.raises(SchemaMissing, match="onceonly schema create"):
        async with open_store(settings):
            pass


async def test_a_closed_database_keeps_no_connection(url: str) -> None:
    """Its event loop may end before the next look at its connections, as that of `asyncio.run` does."""

    def alive() -> int:
        gc.collect()
        return sum(issubclass(type(each), AdaptedConnection) for each in gc.get_objects())  # `isinstance` asks lazy objects

    before = alive()
    async with opened(url) as database:
        async with database.reading():
            dialect = database.dialect
        assert alive() > before
    del database
    assert dialect.name == "postgresql"
    assert alive() == before
