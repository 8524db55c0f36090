"""The store on documents keeps the promises about entities. Those of SQL databases are with their other suites."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.documents.store import DocumentStore
from onceonly_conformance.entity_suite import EntityStoreSuite
from onceonly_conformance.suite import ENDPOINT
from tests.conformance.document_store_subjects import WEEK, DocumentStores


class SeparateEntities(DocumentStores):
    """Document stores whose messages name their own entities."""

    async def store(self, endpoint: str = ENDPOINT) -> DocumentStore:  # type: ignore[override]  # it cannot be searched
        """Open a store."""
        return DocumentStore(await self.documents(), endpoint, clock=self.clock, history=WEEK)


class TestEntitiesInDocuments(EntityStoreSuite):
    """Each entity is a document, and each document a unit."""

    @asynccontextmanager
    async def open_store(self) -> AsyncIterator[SeparateEntities]:
        """Open a new world."""
        yield SeparateEntities(history=WEEK)
