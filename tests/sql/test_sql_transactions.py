"""Transactions outside of any handler, on SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from enlist_house import Shop, opened_shop
from sql_house import url
from transaction_scenarios import TransactionScenarios

from onceonly.drivers.sql import Database


@pytest.fixture
async def shop(database: Database, file: Path) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the file."""
    async with opened_shop(url(file)) as shop:
        yield shop


@pytest.fixture
def impatient(file: Path) -> str:
    """Name the file for who waits a short while only."""
    return f"{url(file)}?timeout=0.1"


class TestOnSQLite(TransactionScenarios):
    """All of them."""
