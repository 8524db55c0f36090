"""Transactions in memory and in SQL databases keep every promise of their port."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from onceonly_conformance.transaction_suite import AttemptSuite, EntitySuite, TransactionSuite
from tests.conformance.sql_subjects import make_tables
from tests.conformance.transaction_subjects import MemoryAttempting, MemoryTransacting, SqlAttempting, SqlTransacting


class TestBlockingTransactionsInMemory(TransactionSuite, AttemptSuite):
    """Those that wait for a key."""

    @asynccontextmanager
    async def open_transactions(self) -> AsyncIterator[MemoryTransacting]:
        """Open a new world."""
        yield MemoryTransacting(blocking=True)

    @asynccontextmanager
    async def open_attempts(self) -> AsyncIterator[MemoryAttempting]:
        """Open a new world."""
        yield MemoryAttempting(blocking=True)


class TestOptimisticTransactionsInMemory(TransactionSuite):
    """Those that find out at their commit."""

    @asynccontextmanager
    async def open_transactions(self) -> AsyncIterator[MemoryTransacting]:
        """Open a new world."""
        yield MemoryTransacting(blocking=False)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the tables once; each test works on a copy."""
    file = tmp_path_factory.mktemp("empty") / "transactions.db"
    asyncio.run(make_tables(file))
    return file


class TestTransactionsInSqlite(TransactionSuite, EntitySuite, AttemptSuite):
    """In a file of their own."""

    @pytest.fixture(autouse=True)
    def _place(self, tmp_path: Path, empty: Path) -> None:
        self.file = Path(shutil.copy(empty, tmp_path))

    def open_transactions(self) -> AbstractAsyncContextManager[SqlTransacting]:
        """Open it."""
        return SqlTransacting.open(self.file)

    def open_attempts(self) -> AbstractAsyncContextManager[SqlAttempting]:
        """Open it."""
        return SqlAttempting.open(self.file)


@pytest.fixture(scope="module")
def postgresql_place(postgresql_url: str) -> str:
    """Make the tables once; each test empties them."""
    place = f"{postgresql_url}?schema=transactions"
    asyncio.run(make_tables(place))
    return place


class TestTransactionsInPostgresql(TransactionSuite, EntitySuite, AttemptSuite):
    """In a schema of their own."""

    @pytest.fixture(autouse=True)
    def _place(self, postgresql_place: str) -> None:
        self.url = postgresql_place

    def open_transactions(self) -> AbstractAsyncContextManager[SqlTransacting]:
        """Open the database, and empty it."""
        return SqlTransacting.open(self.url)

    def open_attempts(self) -> AbstractAsyncContextManager[SqlAttempting]:
        """Open the database, and empty it."""
        return SqlAttempting.open(self.url)
