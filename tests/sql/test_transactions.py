"""Transactions outside of any handler, on SQLite."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import text

from onceonly import ConflictError
from onceonly.errors import SchemaMissing
from onceonly.sql.database import Database
from onceonly.sql.schema import upgrade
from onceonly.sql.store import SCHEMA
from tests.sql.enlist_harness import Shop, opened_shop
from tests.sql.harness import url
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


async def test_an_upgrade_of_older_tables_brings_the_keys(database: Database, shop: Shop) -> None:
    """What version 1 had stays, and transactions work on it."""
    async with database.writing() as connection:
        for later in ("keys", "entities", "register", "tokens"):
            await connection.execute(text(f"DROP TABLE {database.prefix}{later}"))
        await connection.execute(text(f"UPDATE {database.prefix}schema SET version = 1 WHERE component = 'store'"))  # noqa: S608 - its own name
    with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
        await shop.endpoint.transact(Block("A"), idempotency_key="k1")
    await upgrade(database, SCHEMA)
    assert await shop.endpoint.transact(Block("A"), idempotency_key="k1") == {"placed": ["A"]}


async def test_who_has_waited_in_vain_for_another_process_is_told_at_once(database: Database, file: Path) -> None:
    """It still stands in line for the write lock, behind the other process; the look for the key's answer waits for neither."""
    async with opened_shop(f"{url(file)}?timeout=100") as patient, patient.endpoint.opened():
        async with database.writing(), asyncio.timeout(30):
            with pytest.raises(ConflictError, match="nothing was committed, so the call can be repeated"):
                await patient.endpoint.transact(Block("A"), idempotency_key="k1", wait=0.05)
        assert await patient.endpoint.transact(Block("A"), idempotency_key="k1") == {"placed": ["A"]}
