"""Transactions in memory and in SQL databases as subjects of their suite."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from onceonly.adapters.memory.transactions import MemoryTransactions
from onceonly.model.record import Record
from onceonly.ports.store import PendingRecords
from onceonly.ports.transactions import OpenTransaction
from onceonly.sql.store import SqlTransactions
from onceonly.testing.store_subject import WholeStore
from onceonly.testing.suite import ENDPOINT
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


class SqlTransacting:
    """Transactions of a SQL database. Its own clock judges what is late, so time is waited for."""

    def __init__(self, inner: SqlSubject) -> None:
        self.inner = inner
        self.read = inner.read

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Path | str) -> AsyncIterator["SqlTransacting"]:
        """Open a database that has the tables, and empty it."""
        async with SqlSubject.open(place) as subject:
            await subject.empty()
            yield cls(subject)

    async def transactions(self, endpoint: str = ENDPOINT) -> SqlTransactions:
        """Open them."""
        return SqlTransactions(await self.inner.database(), endpoint)

    async def store(self) -> WholeStore:
        """Open the store."""
        return await self.inner.store()

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:
        """Add a row in the transaction's session."""
        await self.inner.write(opened.resources, key, value)

    async def record(self, record: Record) -> Record | None:
        """Find it."""
        return await found_in(await self.store(), record)

    async def pass_time(self, milliseconds: int) -> None:
        """Wait for it."""
        await asyncio.sleep(milliseconds / 1000)


async def found_in(store: PendingRecords, record: Record) -> Record | None:
    """Find a record by its identity."""
    return next(iter(await store.find([record.identity])), None)
