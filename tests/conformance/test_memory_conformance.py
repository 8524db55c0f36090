"""The memory adapters keep every promise of their ports."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from memory_subjects import MemoryLetters, MemoryStores, MemoryTransports

from onceonly.testing.dead_letter_suite import DeadLetterSuite
from onceonly.testing.store_suite import StoreSuite
from onceonly.testing.transport_suite import TransportSuite


class TestBlockingMemoryStore(StoreSuite):
    """One that waits in `begin`, like SQL."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[MemoryStores]:
        """Open a new world."""
        yield MemoryStores(blocking=True)


class TestOptimisticMemoryStore(StoreSuite):
    """One that conflicts at commit, like a document store."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[MemoryStores]:
        """Open a new world."""
        yield MemoryStores(blocking=False)


class TestMemoryTransport(TransportSuite):
    """The queue of the kit and of the model checker."""

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[MemoryTransports]:
        """Open a new world."""
        yield MemoryTransports()


class TestMemoryDeadLetters(DeadLetterSuite):
    """Dead letters in memory."""

    @asynccontextmanager
    async def open_dead_letters(self) -> AsyncIterator[MemoryLetters]:
        """Open a new world."""
        yield MemoryLetters()
