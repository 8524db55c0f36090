"""A new SQLite file for each test, with all tables. A conftest that imports these fixtures has them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from tests.sql.harness import opened, url


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Name the file."""
    return tmp_path / "shop.db"


@pytest.fixture
async def database(file: Path) -> AsyncIterator[Database]:
    """Open it."""
    async with opened(url(file), tables=True) as database:
        yield database


@pytest.fixture
async def store(database: Database) -> SqlStore:
    """Return the store of an endpoint, whose retention is decided."""
    made = SqlStore(database, "shop")
    await made.prepare()
    return made
