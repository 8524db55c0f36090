"""One database for all tests on PostgreSQL, with both drivers; each test empties its tables."""

from collections.abc import AsyncIterator

import pytest

from onceonly.sql.database import Database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA as STORE
from onceonly.sql.store import SqlStore
from tests.sql.emptying import empty
from tests.sql.harness import Base, opened


@pytest.fixture(params=["asyncpg", "psycopg"])
def url(request: pytest.FixtureRequest, postgresql_url: str) -> str:
    """Name the database with each driver."""
    return f"postgresql+{request.param}:{postgresql_url.partition(':')[2]}"


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Open it, with all tables, all of them empty."""
    async with opened(url, tables=True) as database:
        await create(database, QUEUE)
        own = [*STORE.tables(database.prefix, None).sorted_tables, *QUEUE.tables(database.prefix, None).sorted_tables]
        await empty(database, (*reversed(Base.metadata.sorted_tables), *own))
        yield database


@pytest.fixture
async def store(database: Database) -> SqlStore:
    """Return the store of an endpoint, whose retention is decided."""
    made = SqlStore(database, "shop")
    await made.prepare()
    return made
