"""Transactions outside of any handler, on MariaDB."""

from collections.abc import AsyncIterator

import pytest

from onceonly.sql.database import Database
from tests.adapters.mariadb.harness import place
from tests.sql.enlist_harness import Shop, opened_shop
from tests.sql.known_key_scenarios import KnownKeyScenarios
from tests.sql.transaction_scenarios import TransactionScenarios


@pytest.fixture
async def shop(database: Database, url: str) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the database."""
    async with opened_shop(place(url)) as shop:
        yield shop


@pytest.fixture
def impatient(url: str) -> str:
    """Name the database for who waits a short while only: a whole second is the shortest here."""
    return place(url, timeout=1)


class TestOnMariaDB(TransactionScenarios):
    """All of them."""


class TestKnownKeysOnMariaDB(KnownKeyScenarios):
    """All of them."""
