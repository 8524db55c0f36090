"""Behind PgBouncer in transaction mode: every transaction may get another session, so nothing outlives one."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import select, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly.model.errors import CommitRefused, ConflictError, OutcomeUnknown, SetupError
from onceonly.model.message import Send
from onceonly.ports.transport import Topology
from onceonly.sql.database import Database
from onceonly.sql.queue import SqlTransport
from onceonly.sql.store import SqlRing, SqlStore
from onceonly.sql.translation import translated
from tests.servers.pgbouncer import pgbouncer
from tests.sql.harness import Order, add, handle, look, message, opened, orders, records, session_of


@pytest.fixture(scope="module")
def pooler(postgresql_url: str) -> Iterator[str]:
    """Run PgBouncer; gives the URL through it."""
    with pgbouncer(postgresql_url) as through:
        yield through


@pytest.fixture
def pooled(url: str, pooler: str) -> str:
    """Name the database through PgBouncer, with each driver."""
    return make_url(pooler).set(drivername=make_url(url).drivername).render_as_string(hide_password=False)


@pytest.fixture
async def far(pooled: str, database: Database) -> AsyncIterator[Database]:
    """Open the database through PgBouncer."""
    async with opened(pooled) as far:
        assert database.prefix == far.prefix
        yield far


async def test_units_work_behind_a_pooler(far: Database, database: Database) -> None:
    """Many at once, with statements of handlers, so that sessions change hands all the time."""
    store = SqlStore(far, "shop")

    async def work(number: int) -> None:
        for step in range(5):
            each = message(f"m{number}-{step}")
            unit = await store.begin([each])
            session = session_of(unit.resources)
            assert (await session.scalars(select(Order.id).where(Order.id == each.id))).all() == []
            session.add(Order(id=each.id, total=number))
            await unit.commit(records(each))
            await store.forget(records(each))
            assert await look(store, each) == {"done": [each.id]}

    await asyncio.gather(*(work(number) for number in range(20)))
    assert len(await orders(database)) == 100


async def test_nothing_of_a_transaction_is_left_in_the_session(far: Database) -> None:
    """Neither a prepared statement, nor a setting, nor an advisory lock: the next client of the session would have it."""
    store, ring = SqlStore(far, "shop"), SqlRing(far)
    far.dialect.expect(30.0)
    for number in range(20):
        await handle(store, message(f"m{number}"))
    async with ring.leading() as is_leader:
        assert is_leader
    await far.settle()
    for _ in range(20):  # as many sessions as there are, one after the other
        async with far.reading() as connection:
            prepared = await connection.scalar(text("SELECT count(*) FROM pg_prepared_statements WHERE name <> ''"))
            locks = await connection.scalar(
                text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
            )
            assert (prepared, locks) == (0, 0)


async def test_one_janitor_leads_behind_a_pooler(far: Database, database: Database) -> None:
    """The lock belongs to a transaction; a janitor that is not behind the pooler sees it as well."""
    async with SqlRing(far).leading() as first, SqlRing(far).leading() as second, SqlRing(database).leading() as third:
        assert (first, second, third) == (True, False, False)
    await far.settle()
    async with SqlRing(database).leading() as again:
        assert again


async def test_the_queue_works_behind_a_pooler(far: Database) -> None:
    """Send, receive and settle."""
    transport = SqlTransport(far, "shop")
    await transport.declare([Topology(endpoint="shop")])
    await transport.send([Send(message=message(f"m{number}"), to="shop") for number in range(50)])
    seen: list[str] = []
    while deliveries := await transport.receive(7, 0.2):
        seen += [dict(delivery.headers)["ce-id"] for delivery in deliveries]
        await transport.ack(deliveries)
    assert sorted(seen) == sorted(f"m{number}" for number in range(50))


@pytest.mark.usefixtures("database")
async def test_a_lock_is_waited_for_as_long_as_the_url_says(pooled: str) -> None:
    """Behind a pooler it is said with each transaction."""
    async with opened(f"{pooled}?timeout=0.7") as far:
        unit = await SqlStore(far, "shop").begin([message()])
        assert await session_of(unit.resources).scalar(text("SHOW lock_timeout")) == "700ms"
        unit.abandon()


async def test_a_pooler_that_swallows_settings_is_found_out(url: str, postgresql_url: str, database: Database) -> None:
    """An administrator may have it ignore them; so a connection that works says nothing about what is between."""
    ignoring = "ignore_startup_parameters = lock_timeout,options,tcp_user_timeout,extra_float_digits"
    with pgbouncer(postgresql_url, more=ignoring) as through:
        place = make_url(through).set(drivername=make_url(url).drivername).render_as_string(hide_password=False)
        async with opened(place) as far:
            await add(unit := await SqlStore(far, "shop").begin([message()]), "a")
            await unit.commit(records(message()))
            assert not far.dialect.autocommits
        async with opened(f"{place}?pgbouncer=true") as far:
            assert await look(SqlStore(far, "shop"), message()) == {"done": ["m1"]}
    assert database.dialect.autocommits, "without a pooler all is as before"


@pytest.mark.usefixtures("database")
async def test_a_set_up_that_cannot_work_names_the_option(pooled: str) -> None:
    """It was tried again and again."""
    async with opened(f"{pooled}?pgbouncer=false") as far:
        with pytest.raises(SetupError, match="pgbouncer=true"):
            await far.ready()


@pytest.mark.usefixtures("database")
async def test_an_engine_of_the_users_that_prepares_statements_is_refused(pooled: str) -> None:
    """It would fail now and then; the error says how to make it."""
    engine = create_async_engine(pooled)
    try:
        async with opened(engine) as far:
            with pytest.raises(SetupError, match="connect_args="):
                await far.ready()
    finally:
        await engine.dispose()


async def test_an_engine_of_the_users_that_is_made_for_it_works(pooled: str, database: Database) -> None:
    """As the error says."""
    arguments: dict[str, dict[str, object]] = {
        "asyncpg": {"statement_cache_size": 0, "prepared_statement_cache_size": 0, "prepared_statement_name_func": str},
        "psycopg": {"prepare_threshold": None},
    }
    engine = create_async_engine(pooled, connect_args=arguments[make_url(pooled).drivername.partition("+")[2]])
    try:
        async with opened(engine) as far:
            await handle(SqlStore(far, "shop"), message())
        assert await orders(database) == ["m1"]
    finally:
        await engine.dispose()


async def test_a_statement_that_a_pooler_lost_names_the_option(database: Database) -> None:
    """A pooler may come between after the start. No message is to blame."""
    cause = type("ServerError", (Exception,), {"sqlstate": "26000"})('prepared statement "__asyncpg_stmt_1__" does not exist')
    error = translated(DBAPIError("SELECT", None, cause), database.dialect, locked=ConflictError, refused=CommitRefused)
    assert type(error) is OutcomeUnknown
    assert "pgbouncer=true" in str(error)


async def test_no_pooler_no_extra_setting(url: str) -> None:
    """The option is one of PostgreSQL's alone, and true or false."""
    with pytest.raises(SetupError, match="pgbouncer"):
        async with opened(f"{url}?pgbouncer=perhaps"):
            pass
    with pytest.raises(SetupError, match="PostgreSQL only"):
        async with opened("sqlite:///shop.db?pgbouncer=true"):
            pass
