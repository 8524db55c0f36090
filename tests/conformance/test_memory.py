"""The memory adapters keep every promise of their ports."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import ClassVar

from onceonly_conformance.dead_letter_suite import DeadLetterSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from onceonly_conformance.pending_suite import PendingRecordsSuite
from onceonly_conformance.ring_suite import RingSuite
from onceonly_conformance.saves_together_suite import KEYS, Key, SavesTogetherSuite
from onceonly_conformance.store_suite import StoreSuite
from onceonly_conformance.transport_suite import TransportSuite
from tests.conformance.memory_subjects import MemoryLetters, MemoryPlace, MemoryRings, MemoryStores, MemoryTransports


class TestBlockingMemoryStore(StoreSuite, PendingRecordsSuite):
    """One that waits in `begin`, like SQL."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[MemoryStores]:
        """Open a new world."""
        yield MemoryStores(blocking=True)


class TestOptimisticMemoryStore(StoreSuite, PendingRecordsSuite):
    """One that conflicts at commit, like a document store."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[MemoryStores]:
        """Open a new world."""
        yield MemoryStores(blocking=False)


class TestBlockingMemoryRing(RingSuite, StoreSuite, PendingRecordsSuite):
    """One that forgets, and waits in `begin`."""

    @asynccontextmanager
    async def open_ring(self) -> AsyncIterator[MemoryRings]:
        """Open a new world."""
        yield MemoryRings(blocking=True)

    open_store = open_ring


class TestOptimisticMemoryRing(RingSuite, StoreSuite, PendingRecordsSuite):
    """One that forgets, and conflicts at commit."""

    @asynccontextmanager
    async def open_ring(self) -> AsyncIterator[MemoryRings]:
        """Open a new world."""
        yield MemoryRings(blocking=False)

    open_store = open_ring


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


class TestPendingInMemory(PendingListSuite):
    """The list of documents with unsent messages."""

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[MemoryPlace]:
        """Open a new world."""
        yield MemoryPlace()


class TestMemoryDocuments(DocumentsSuite):
    """Documents of the kit and of the model checker."""

    waived: ClassVar[dict[str, str]] = {"test_a_missing_place_is_a_setup_error": "memory is never missing"}

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[MemoryPlace]:
        """Open a new world."""
        yield MemoryPlace()


class TestSavedTogetherInMemory(SavesTogetherSuite):
    """Documents of the application, in any collection, with keys of any number of parts."""

    keys: ClassVar[tuple[Key, ...]] = (*KEYS, (7,), (-1,), ("a", "b"), ("a", "b", 7), ("a", 7), ("a", "7"), ("b", "a"))

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[MemoryPlace]:
        """Open a new world."""
        yield MemoryPlace()

    def collections(self) -> Sequence[str]:
        """Name some."""
        return ("", "receipts", "Receipts")
