"""One database for all tests on MariaDB; each test empties its tables."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from tests.adapters.mariadb.harness import make_tables, opened_empty
from tests.servers.mariadb import own_mariadb


@pytest.fixture(scope="session")
def url(mariadb_url: str) -> str:
    """Make the tables once."""
    asyncio.run(make_tables(mariadb_url))
    return mariadb_url


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """Empty and open them."""
    async with opened_empty(url) as database:
        yield database


@pytest.fixture
async def store(database: Database) -> SqlStore:
    """Return the store of an endpoint, whose retention is decided."""
    made = SqlStore(database, "shop")
    await made.prepare()
    return made


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server that no other process uses. Tests that change its settings restore them."""
    with own_mariadb(tmp_path_factory.mktemp("mariadb")) as url:
        yield url
