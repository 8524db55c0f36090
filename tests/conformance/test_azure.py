"""Documents in Azure Table and Azure Blob, what is built on them, and blobs as artifacts keep every promise."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import pytest

from onceonly.formats.partitions import PartitionValues, split_key
from onceonly.ports.documents import DocumentAddress
from onceonly_conformance.artifact_suite import ArtifactStoreSuite
from onceonly_conformance.documents_suite import DocumentsSuite
from onceonly_conformance.on_documents import (
    DocumentDedupSuite,
    DocumentProjectionSuite,
    DocumentTokenSuite,
    DocumentTransactionSuite,
)
from onceonly_conformance.saves_together_suite import KEYS, Key, SavesTogetherSuite
from tests.conformance.azure_subjects import AzureArtifacts, AzurePlace
from tests.servers.azurite import Azurite


@pytest.fixture(autouse=True)
def _emulator(request: pytest.FixtureRequest, azurite_storage: Azurite) -> None:
    request.instance.emulator = azurite_storage


class InAzureTable:
    """A table of its own for each rule."""

    service: ClassVar[str] = "azure-table"

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a table."""
        async with AzurePlace.open(self.emulator, "table") as subject:
            yield subject


class InAzureBlob:
    """A container of its own for each rule, and a folder in it."""

    service: ClassVar[str] = "azure-blob"

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a container."""
        async with AzurePlace.open(self.emulator, "blob") as subject:
            yield subject


class TestAzureTableDocuments(InAzureTable, DocumentsSuite):
    """Documents themselves."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 130  # a transaction holds 100 at most
    lapse: ClassVar[int] = 250  # nothing expires here


class TestSavedTogetherInAzureTable(InAzureTable, SavesTogetherSuite):
    """Entities of the application, each in the partition of its message."""

    rounds: ClassVar[int] = 6
    lapse: ClassVar[int] = 250  # nothing expires here
    separates: ClassVar[bool] = True
    partitions: ClassVar[tuple[PartitionValues, ...]] = (
        ("acme",),
        ("Acme",),
        ("it's, 東京 & co",),
        (17,),
        ("a", "b"),
        ("a", "c"),
    )
    keys: ClassVar[tuple[Key, ...]] = (*KEYS, (17,), ("it's",), ("100%",), ("a+b&c=d",), ("~5b",), ("entity.Account.A",))
    cannot_hold: ClassVar[Mapping[str, str]] = {
        "integers beyond 64 bits": "there is no such type",
        "null": "a property that is null is none",
        "objects": "properties are flat",
        "lists": "properties are flat",
        "names": "names of properties are those of identifiers",
        "unusual names": "names of properties are those of identifiers",
    }

    def key_fields(self, key: str, address: DocumentAddress) -> Mapping[str, Any]:
        """Return both keys of the entity, which are texts."""
        return {"PartitionKey": "|".join(map(str, split_key(key).values)), "RowKey": str(address.key[0])}


class TestAzureBlobDocuments(InAzureBlob, DocumentsSuite):
    """Documents themselves."""

    rounds: ClassVar[int] = 6
    many: ClassVar[int] = 100  # a request holds one
    lapse: ClassVar[int] = 250  # nothing expires here


class TestProjectionsInAzureTable(InAzureTable, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInAzureTable(InAzureTable, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInAzureTable(InAzureTable, DocumentTokenSuite):
    """The tokens for every service, here."""


class TestTransactionsInAzureTable(InAzureTable, DocumentTransactionSuite):
    """The transactions for every service, here."""


class TestProjectionsInAzureBlob(InAzureBlob, DocumentProjectionSuite):
    """Projections for every service, here."""


class TestDedupInAzureBlob(InAzureBlob, DocumentDedupSuite):
    """The dedup store for every service, here."""


class TestTokensInAzureBlob(InAzureBlob, DocumentTokenSuite):
    """The tokens for every service, here."""


class TestTransactionsInAzureBlob(InAzureBlob, DocumentTransactionSuite):
    """The transactions for every service, here."""


class TestAzureBlobArtifacts(ArtifactStoreSuite):
    """A container of its own for each rule, and a folder in it."""

    emulator: Azurite

    @asynccontextmanager
    async def open_artifacts(self) -> AsyncIterator[AzureArtifacts]:
        """Make a container."""
        async with AzureArtifacts.open(self.emulator, "blob") as subject:
            yield subject
