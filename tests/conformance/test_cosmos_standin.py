"""Cosmos DB with atomic batches, on the stand-in: documents in a container of their own, and in one of the application's."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar
from uuid import uuid4

import pytest

from onceonly.adapters.cosmos.documents import create, open_documents
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import DocumentDedupSuite, DocumentTokenSuite
from onceonly_conformance.pending_list_suite import PendingListSuite
from tests.conformance.document_subject import ServiceSubject
from tests.servers.cosmosdb.harness import CosmosStandIn

WRITE = re.compile(rb"(?:POST|PUT|DELETE) [^ ]*/docs[/ ]")
QUERY = re.compile(rb"(?i)x-ms-documentdb-isquery|query\+json")


class OnStandIn:
    """A container of the stand-in, in the form that `options` say."""

    service: ClassVar[str] = "cosmos"
    options: ClassVar[str] = ""
    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100

    @pytest.fixture(autouse=True)
    def _use(self, cosmos_standin: CosmosStandIn) -> None:
        self._server = cosmos_standin

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[ServiceSubject]:
        """Open a container of its own."""
        url = self._server.place(f"t{uuid4().hex[:12]}", self.options)
        await create(url)
        async with ServiceSubject.open(
            open_documents,
            url,
            missing=self._server.place("missing", self.options),
            is_write=lambda data: WRITE.search(data) is not None and QUERY.search(data) is None,
            secured=self._server.secured,
        ) as subject:
            yield subject


class InOneLevel(OnStandIn):
    """A container of the application's, by one path."""

    options = "?partition_key=/tenantId&prefix=shop:"


class InTwoLevels(OnStandIn):
    """One with a hierarchical partition key, of which one path is inside of an object."""

    options = "?partition_key=/tenantId,/address/city"


class TestDocuments(OnStandIn, DocumentsSuite):
    """In a container of their own, which several endpoints share by prefixes."""

    options = "?prefix=shop:"


class TestDocumentsInOneLevel(InOneLevel, DocumentsSuite):
    """In the application's."""


class TestDocumentsInTwoLevels(InTwoLevels, DocumentsSuite):
    """In the application's, hierarchical."""


class TestPending(OnStandIn, PendingListSuite):
    """The list of documents with unsent messages, over several physical partitions."""

    options = "?prefix=shop:"


class TestPendingInTwoLevels(InTwoLevels, PendingListSuite):
    """The same in the application's container."""


class TestDedupInOneLevel(InOneLevel, DocumentDedupSuite):
    """The dedup store for every service, in the application's container."""


class TestTokensInOneLevel(InOneLevel, DocumentTokenSuite):
    """The tokens for every service, in the application's container."""
