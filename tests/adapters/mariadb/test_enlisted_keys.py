"""A key in a transaction that the caller owns, on MariaDB."""

from collections.abc import AsyncIterator

import pytest

from onceonly.sql.database import Database
from tests.adapters.mariadb.harness import place
from tests.sql.enlist_harness import Shop, opened_shop
from tests.sql.enlisted_key_servers import ServerKeyScenarios


@pytest.fixture
async def shop(database: Database, url: str) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the database."""
    async with opened_shop(place(url)) as shop:
        yield shop


class TestOnMariaDB(ServerKeyScenarios):
    """All of them."""
