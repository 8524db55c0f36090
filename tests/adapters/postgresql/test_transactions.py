"""Transactions outside of any handler, on PostgreSQL, with both drivers."""

from collections.abc import AsyncIterator

import pytest

from onceonly.sql.database import Database
from tests.sql.enlist_harness import Shop, opened_shop
from tests.sql.known_key_scenarios import KnownKeyScenarios
from tests.sql.transaction_scenarios import TransactionScenarios


@pytest.fixture
async def shop(database: Database, url: str) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the database."""
    async with opened_shop(url) as shop:
        yield shop


@pytest.fixture
def impatient(url: str) -> str:
    """Name the database for who waits a short while only."""
    return f"{url}?timeout=0.1"


class TestOnPostgresql(TransactionScenarios):
    """All of them."""


class TestKnownKeysOnPostgresql(KnownKeyScenarios):
    """All of them."""
