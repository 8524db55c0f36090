"""Transactions in memory and in SQL databases as subjects of their suite."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from onceonly.adapters.memory.transactions import MemoryAttempts, MemoryTransactions
from onceonly.model.record import Record
from onceonly.ports.transactions import OpenTransaction
from onceonly_conformance.on_sql import SqlAttemptSubject, SqlTransactionSubject, found_in
from onceonly_conformance.suite import ENDPOINT
from tests.conformance.memory_subjects import MemoryStores
from tests.conformance.sql_subjects import SqlSubject


class MemoryTransacting(MemoryStores):
    """Transactions of the memory store; its notes are the business data."""

    async def transactions(self, endpoint: str = ENDPOINT) -> MemoryTransactions:
        """Open them."""
        return MemoryTransactions(self.driver, endpoint, clock=self.clock, blocking=self._blocking)

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:  # type: ignore[override]
        """Write a note."""
        await super().write(opened.resources, key, value)

    async def record(self, record: Record) -> Record | None:
        """Find it."""
        return await found_in(await self.store(), record)


class MemoryAttempting(MemoryTransacting):
    """Transactions of the memory store that control messages finish."""

    async def transactions(self, endpoint: str = ENDPOINT) -> MemoryTransactions:
        """Open them."""
        return MemoryTransactions(self.driver, endpoint, clock=self.clock, blocking=self._blocking, has_controls=True)

    async def attempts(self) -> MemoryAttempts:
        """Open what control messages check."""
        return MemoryAttempts(self.driver)


class SqlTransacting(SqlTransactionSubject):
    """Transactions of a SQL database."""

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Path | str) -> AsyncIterator[Self]:
        """Open a database that has the tables, and empty it."""
        async with SqlSubject.open(place) as subject:
            await subject.empty()
            yield cls(subject)


class SqlAttempting(SqlAttemptSubject, SqlTransacting):
    """Transactions of a SQL database that control messages finish."""
