"""A connection that never answers: what waits for it fails within seconds, and everything else goes on."""

import asyncio
import time
from collections.abc import AsyncIterator

import asyncpg
import psycopg
import pytest
from sqlalchemy import text

from onceonly.adapters.postgresql import drivers as postgresql_drivers
from onceonly.adapters.postgresql import watch as postgresql_watch
from onceonly.model.errors import OutcomeUnknown, RetryableError
from onceonly.sql import silence
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from tests.servers.pgbouncer import pgbouncer
from tests.servers.swallowing import swallowing
from tests.sql.harness import add, handle, look, message, opened, orders, records, session_of

pytestmark = pytest.mark.slow

PATIENCE = 60.0
"""Seconds; far more than any of this takes, and far less than without a limit."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubt sooner: the tests wait for it."""
    monkeypatch.setattr(postgresql_watch, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(silence, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(postgresql_drivers, "CONNECT_SECONDS", 3)


@pytest.mark.parametrize(("about", "down"), [(b"BEGIN", False), (b"BEGIN", True), (b"claim", True)])
async def test_a_begin_that_is_not_answered_ends(url: str, store: SqlStore, about: bytes, down: bool) -> None:  # noqa: FBT001
    """Crash here: 1 the claim is asked for, 2 no answer comes, 3 the server ends the session, 4 the next try has it."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        await far.ready()
        swallower.break_connections(about, up=not down)
        near = SqlStore(far, "shop")
        with pytest.raises(RetryableError):
            await near.begin([message()])
        assert swallower.swallowed.is_set()
        swallower.keep_connections()
        await handle(near, message())
        assert await look(store, message()) == {"done": ["m1"]}


@pytest.mark.parametrize(("down", "found"), [(False, {"new": ["m1"]}), (True, {"pending": ["m1"]})])
async def test_a_commit_that_is_not_answered_is_unknown(
    url: str,
    store: SqlStore,
    down: bool,  # noqa: FBT001
    found: dict[str, list[str]],
) -> None:
    """What became of it shows at the next try."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        near = SqlStore(far, "shop")
        unit = await near.begin([message()])
        await add(unit, "a")
        swallower.break_connections(b"COMMIT", up=not down)
        with pytest.raises(OutcomeUnknown):
            await unit.commit(records(message(), decided=True))
        swallower.keep_connections()
        assert await look(near, message()) == found
        assert await look(store, message()) == found


@pytest.mark.parametrize("down", [False, True])
async def test_a_rollback_that_is_not_answered_holds_nobody_up(url: str, database: Database, down: bool) -> None:  # noqa: FBT001
    """Its claim is free again, and other messages are handled on other connections."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        near = SqlStore(far, "shop")
        unit = await near.begin([message()])
        await add(unit, "lost")
        swallower.break_connections(b"ROLLBACK", up=not down)
        unit.abandon()
        await swallower.swallowed.wait()
        swallower.keep_connections()
        await handle(near, message("m2"))
        await handle(near, message())
        assert await orders(database) == ["m1", "m2"]


async def test_a_handlers_statement_that_is_not_answered_ends(url: str, database: Database) -> None:
    """It fails like any lost connection."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        near = SqlStore(far, "shop")
        unit = await near.begin([message()])
        swallower.break_connections(b"handler")
        with pytest.raises(Exception, match="connection"):
            await session_of(unit.resources).execute(text("SELECT 'handler'"))
        unit.abandon()
        swallower.keep_connections()
        await handle(near, message())
        assert await orders(database) == ["m1"]


async def test_arguments_that_never_arrive_end_the_statement(url: str, database: Database) -> None:
    """The server has the statement and waits for its arguments. It reports such a session as active."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        near = SqlStore(far, "shop")
        unit = await near.begin([message()])
        swallower.break_connections(b"lost argument")
        with pytest.raises(Exception, match="connection"):
            await session_of(unit.resources).execute(text("SELECT CAST(:argument AS text)"), {"argument": "lost argument"})
        unit.abandon()
        swallower.keep_connections()
        await handle(near, message())
        assert await orders(database) == ["m1"]


async def test_a_copy_from_a_slow_source_is_left_alone(database: Database) -> None:
    """The server waits for data, because the client has none yet."""

    async def rows() -> AsyncIterator[bytes]:
        yield b"first\n"
        await asyncio.sleep(2.5)
        yield b"second\n"

    async with database.engine.connect() as connection:
        await connection.execute(text("CREATE TEMPORARY TABLE copied (name text)"))
        driver = (await connection.get_raw_connection()).driver_connection
        if isinstance(driver, asyncpg.Connection):
            await driver.copy_to_table("copied", source=rows())
        else:
            assert isinstance(driver, psycopg.AsyncConnection)
            async with driver.cursor() as cursor, cursor.copy("COPY copied FROM STDIN") as copy:
                async for row in rows():
                    await copy.write(row)
        assert (await connection.execute(text("SELECT count(*) FROM copied"))).scalar() == 2


@pytest.mark.slow
async def test_a_cancelled_statement_that_is_not_answered_ends(url: str, database: Database) -> None:
    """As after a handler's time-out; asking the server to cancel it is swallowed as well."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        near = SqlStore(far, "shop")
        unit = await near.begin([message()])
        swallower.break_connections()
        with pytest.raises((TimeoutError, Exception)):
            async with asyncio.timeout(0.2):
                await session_of(unit.resources).execute(text("SELECT 1"))
        unit.abandon()
        await far.settle()
        swallower.keep_connections()
        await handle(near, message())
        assert await orders(database) == ["m1"]


@pytest.mark.slow
async def test_a_long_statement_is_left_alone(database: Database, store: SqlStore) -> None:
    """The server executes it; it takes as long as it takes."""
    unit = await store.begin([message()])
    await session_of(unit.resources).execute(text("SELECT pg_sleep(2.5)"))
    await add(unit, "a")
    await unit.commit(records(message()))
    assert await orders(database) == ["a"]


@pytest.mark.slow
async def test_a_long_statement_behind_a_pooler_is_left_alone(url: str, postgresql_url: str, database: Database) -> None:
    """The session cannot be found there; but the pooler answers."""
    with pgbouncer(postgresql_url) as through:
        place = f"{url.partition(':')[0]}:{through.partition(':')[2]}"
        async with opened(place) as far:
            unit = await SqlStore(far, "shop").begin([message()])
            await session_of(unit.resources).execute(text("SELECT pg_sleep(2.5)"))
            await add(unit, "a")
            await unit.commit(records(message()))
    assert await orders(database) == ["a"]


async def test_a_blocked_event_loop_is_no_silence(database: Database, store: SqlStore) -> None:
    """What came meanwhile is read before anything is dropped."""
    unit = await store.begin([message()])
    asking = asyncio.ensure_future(session_of(unit.resources).execute(text("SELECT pg_sleep(0.5)")))
    await asyncio.sleep(0.1)
    time.sleep(1.5)  # noqa: ASYNC251 - that is the point
    await asking
    await add(unit, "a")
    await unit.commit(records(message()))
    assert await orders(database) == ["a"]


@pytest.mark.slow
async def test_a_server_that_is_silent_altogether(url: str, database: Database) -> None:
    """Whatever is under way fails; new connections as well; and later all goes on."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through), opened(through) as far:
        near = SqlStore(far, "shop")
        unit = await near.begin([message()])
        swallower.break_connections()
        with pytest.raises(RetryableError):
            await unit.commit(records(message(), decided=True))
        with pytest.raises(RetryableError):
            await near.begin([message("m2")])
        swallower.keep_connections()
        await far.settle()
        await handle(near, message())
        assert await orders(database) == ["m1"]


@pytest.mark.slow
async def test_closing_does_not_wait_for_a_silent_server(url: str) -> None:
    """Idle connections, and one in a transaction; a process has some seconds to end."""
    async with asyncio.timeout(PATIENCE), swallowing(url) as (swallower, through):
        async with opened(through) as far:
            near = SqlStore(far, "shop")
            units = [await near.begin([message(f"m{number}")]) for number in range(5)]
            for unit in units[:4]:
                unit.abandon()
            await far.settle()
            swallower.break_connections()
            units[4].abandon()
            since = time.monotonic()
        assert time.monotonic() - since < 10, "each connection by itself would take longer"
