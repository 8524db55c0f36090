"""One database for all tests on MariaDB; each test empties its tables."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "sql"))  # sql_house serves every SQL database

from mariadb_house import make_tables, opened_empty

from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore


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
def store(database: Database) -> SqlStore:
    """Give the store of an endpoint."""
    return SqlStore(database, "shop")
