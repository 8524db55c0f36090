"""Documents in Azure Table and Azure Blob, what is built on them, and blobs as artifacts keep every promise."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest

from onceonly.conformance.artifact_suite import ArtifactStoreSuite
from onceonly.conformance.dedup_suite import DedupSubject, DedupSuite
from onceonly.conformance.documents_suite import DocumentsSuite
from onceonly.conformance.on_documents import DocumentTransactionSuite, dedup_and_token_subjects
from onceonly.conformance.token_suite import TokenSubject, TokenSuite
from tests.conformance.azure_subjects import AzureArtifacts, AzurePlace
from tests.servers.azurite import Azurite


@pytest.fixture(autouse=True)
def _emulator(request: pytest.FixtureRequest, azurite_storage: Azurite) -> None:
    request.instance.emulator = azurite_storage


class TestAzureTableDocuments(DocumentsSuite):
    """A table of its own for each rule."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 130  # a transaction holds 100 at most
    lapse: ClassVar[int] = 250  # nothing expires here

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a table."""
        async with AzurePlace.open(self.emulator, "table") as subject:
            yield subject


class TestAzureBlobDocuments(DocumentsSuite):
    """A container of its own for each rule, and a folder in it."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100  # a request holds one
    lapse: ClassVar[int] = 250  # nothing expires here

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a container."""
        async with AzurePlace.open(self.emulator, "blob") as subject:
            yield subject


class TestAzureBlobArtifacts(ArtifactStoreSuite):
    """A container of its own for each rule, and a folder in it."""

    emulator: Azurite

    @asynccontextmanager
    async def open_artifacts(self) -> AsyncIterator[AzureArtifacts]:
        """Make a container."""
        async with AzureArtifacts.open(self.emulator, "blob") as subject:
            yield subject


@pytest.mark.slow
class TestDedupInAzureTable(DedupSuite):
    """The dedup store for every service, here."""

    emulator: Azurite

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[DedupSubject]:
        """Make a place."""
        async with AzurePlace.open(self.emulator, "table") as subject:
            yield dedup_and_token_subjects(subject).dedup


@pytest.mark.slow
class TestTokensInAzureTable(TokenSuite):
    """The tokens for every service, here."""

    emulator: Azurite

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[TokenSubject]:
        """Make a place."""
        async with AzurePlace.open(self.emulator, "table") as subject:
            yield dedup_and_token_subjects(subject).tokens


@pytest.mark.slow
class TestDedupInAzureBlob(DedupSuite):
    """The dedup store for every service, here."""

    emulator: Azurite

    @asynccontextmanager
    async def open_dedup(self) -> AsyncIterator[DedupSubject]:
        """Make a place."""
        async with AzurePlace.open(self.emulator, "blob") as subject:
            yield dedup_and_token_subjects(subject).dedup


@pytest.mark.slow
class TestTokensInAzureBlob(TokenSuite):
    """The tokens for every service, here."""

    emulator: Azurite

    @asynccontextmanager
    async def open_tokens(self) -> AsyncIterator[TokenSubject]:
        """Make a place."""
        async with AzurePlace.open(self.emulator, "blob") as subject:
            yield dedup_and_token_subjects(subject).tokens


@pytest.mark.slow
class TestTransactionsInAzureTable(DocumentTransactionSuite):
    """The transactions for every service, here."""

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a place."""
        async with AzurePlace.open(self.emulator, "table") as subject:
            yield subject


@pytest.mark.slow
class TestTransactionsInAzureBlob(DocumentTransactionSuite):
    """The transactions for every service, here."""

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a place."""
        async with AzurePlace.open(self.emulator, "blob") as subject:
            yield subject
