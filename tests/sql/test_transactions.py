"""Transactions outside of any handler, on SQLite."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onceonly import ConflictError
from onceonly.sql.database import Database
from tests.sql.enlist_harness import Shop, opened_shop
from tests.sql.harness import url
from tests.sql.known_key_scenarios import KnownKeyScenarios
from tests.sql.transaction_scenarios import Block, TransactionScenarios


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


async def test_who_has_waited_in_vain_for_another_process_is_told_at_once(database: Database, file: Path) -> None:
    """It still stands in line for the write lock, behind the other process; the look for the key's answer waits for neither."""
    async with opened_shop(f"{url(file)}?timeout=100") as patient, patient.endpoint.opened():
        async with database.writing(), asyncio.timeout(30):
            with pytest.raises(ConflictError, match="nothing was committed, so the call can be repeated"):
                await patient.endpoint.transact(Block("A"), idempotency_key="k1", wait=0.05)
        assert await patient.endpoint.transact(Block("A"), idempotency_key="k1") == {"placed": ["A"]}


class TestKnownKeysOnSQLite(KnownKeyScenarios):
    """All of them."""
