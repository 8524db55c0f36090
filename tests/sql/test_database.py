"""A database: how its connections are set up, how its transactions end, and how a user's own engine is left alone."""

import asyncio
import gc
from pathlib import Path
from weakref import ref

import pytest
from sqlalchemy import insert, inspect, select, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from onceonly.model.errors import CommitFailed, SetupError
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly_conformance.clock import ManualClock
from tests.sql.harness import Order, add, handle, message, opened, orders, records, session_of, url


class ShopSession(AsyncSession):
    """A session class of the user's own."""


async def pragma(database: Database, name: str) -> object:
    """Read a setting of a connection."""
    async with database.reading() as connection:
        return (await connection.execute(text(f"PRAGMA {name}"))).scalar_one()


async def test_connections_are_durable_and_strict(database: Database) -> None:
    """WAL, fsync at every commit, foreign keys, and a time-out for locks."""
    found = [await pragma(database, name) for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")]
    assert found == ["wal", 2, 1, 5000]


async def test_writing_commits_at_the_end(file: Path, database: Database) -> None:
    """Another process sees it then, and not before."""
    async with opened(url(file)) as other:
        async with database.writing() as connection:
            await connection.execute(insert(Order).values(id="a", total=1))
            assert await orders(other) == []
        assert await orders(other) == ["a"]


async def test_writing_that_fails_leaves_nothing(database: Database) -> None:
    """DDL included; the error comes through."""

    async def write() -> None:
        async with database.writing() as connection:
            await connection.execute(insert(Order).values(id="a", total=1))
            await connection.execute(text("CREATE TABLE more (id INTEGER)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await write()
    assert await orders(database) == []
    async with database.reading() as connection:
        assert not await connection.run_sync(lambda it: inspect(it).has_table("more"))


async def test_reading_sees_one_state(database: Database) -> None:
    """Whatever is committed meanwhile, without waiting for it."""
    async with database.reading() as reader:
        before = (await reader.scalars(select(Order.id))).all()
        async with database.writing() as connection:
            await connection.execute(insert(Order).values(id="a", total=1))
        assert (await reader.scalars(select(Order.id))).all() == before == []


async def test_many_writers_in_one_process_take_turns(database: Database) -> None:
    """None is refused, none is lost."""

    async def write(number: int) -> None:
        async with database.writing() as connection:
            await connection.execute(insert(Order).values(id=f"o{number:02}", total=1))

    await asyncio.gather(*(write(number) for number in range(20)))
    assert len(await orders(database)) == 20


async def test_a_users_engine_stays_as_it_is(file: Path) -> None:
    """Its own connections begin and commit as ever, its pool is shared, and it stays open."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    async with opened(engine, tables=True) as database:
        store = SqlStore(database, "shop")
        await handle(store, message("m1"))
        async with engine.connect() as connection:
            await connection.execute(insert(Order).values(id="rolled-back", total=1))
            await connection.rollback()
            await connection.execute(insert(Order).values(id="users-own", total=1))
            await connection.commit()
            raw = await connection.get_raw_connection()
            assert raw.driver_connection.isolation_level is not None
        assert await orders(database) == ["m1", "users-own"]
        assert database.engine.pool is engine.pool
    async with engine.connect() as connection:
        assert len((await connection.execute(select(Order.id))).all()) == 2
    await engine.dispose()


async def test_a_users_engine_with_one_connection_works(file: Path) -> None:
    """Nothing here needs two at a time."""
    engine = create_async_engine(
        f"sqlite+aiosqlite:///{file}", poolclass=AsyncAdaptedQueuePool, pool_size=1, max_overflow=0, pool_timeout=1
    )
    async with opened(engine, tables=True) as database:
        await handle(SqlStore(database, "shop"), message("m1"))
        unit = await SqlStore(database, "shop").begin([message("m2")])
        with pytest.raises(CommitFailed, match="no free connection in the pool"):
            await orders(database)
        unit.abandon()
        assert await orders(database) == ["m1"]
    await engine.dispose()


async def test_a_users_session_factory_makes_the_units_session(file: Path) -> None:
    """With its class and its settings."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}")
    factory = async_sessionmaker(engine, class_=ShopSession, info={"shop": 7}, autoflush=False)
    async with opened(factory, tables=True) as database:
        unit = await SqlStore(database, "shop").begin([message()])
        session = unit.resources.get(ShopSession)
        assert isinstance(session, ShopSession)
        assert session is session_of(unit.resources)
        assert (session.info, session.autoflush) == ({"shop": 7}, False)
        await add(unit, "a")
        await unit.commit(records(message()))
        assert await orders(database) == ["a"]
    await engine.dispose()


async def test_an_engine_that_loses_commits_is_refused(file: Path) -> None:
    """Unless the user says that it may."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=AsyncAdaptedQueuePool, pool_size=1)
    async with engine.connect() as connection:
        await connection.exec_driver_sql("PRAGMA synchronous = OFF")
    lax = await open_database(engine, clock=ManualClock(), durable=False)
    await create_user_tables(lax, Order.metadata)
    strict = await open_database(engine, clock=ManualClock())
    with pytest.raises(SetupError, match="power failure"):
        await create(strict, SCHEMA)
    await engine.dispose()


async def test_factories_and_engines_that_cannot_work_are_refused() -> None:
    """At once, with what to do."""
    for source in (async_sessionmaker(), create_async_engine("sqlite+aiosqlite://")):
        with pytest.raises(SetupError):
            await open_database(source, clock=ManualClock())


@pytest.mark.parametrize("driver", ["postgresql+asyncpg", "postgresql+psycopg"])
async def test_a_closed_database_is_not_kept_by_the_dialect_of_its_engine(driver: str) -> None:
    """SQLAlchemy caches queries of `has_table` with their dialect, for the last 128 dialects of a process."""
    database = await open_database(f"{driver}://nobody@127.0.0.1:1/nowhere", clock=ManualClock())
    dialect, found = database.engine.sync_engine.dialect, ref(database)
    await database.close()
    del database
    gc.collect()
    assert dialect.name == "postgresql"
    assert found() is None
