"""Documents in Azure Table and in Azure Blob keep every promise of their port, on the emulator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from azure_subjects import AzurePlace, AzureThings

from azurite_server import Azurite
from onceonly.testing.documents_suite import DocumentsSuite
from onceonly.testing.things_suite import ThingsSuite


@pytest.fixture(autouse=True)
def _emulator(request: pytest.FixtureRequest, azurite_storage: Azurite) -> None:
    request.instance.emulator = azurite_storage


class TestAzureTableDocuments(DocumentsSuite):
    """A table of its own for each rule."""

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a table."""
        async with AzurePlace.open(self.emulator, "table") as subject:
            yield subject


class TestAzureBlobDocuments(DocumentsSuite):
    """A container of its own for each rule, and a folder in it."""

    emulator: Azurite

    @asynccontextmanager
    async def open_documents(self) -> AsyncIterator[AzurePlace]:
        """Make a container."""
        async with AzurePlace.open(self.emulator, "blob") as subject:
            yield subject


class TestAzureBlobThings(ThingsSuite):
    """A container of its own for each rule, and a folder in it."""

    emulator: Azurite

    @asynccontextmanager
    async def open_things(self) -> AsyncIterator[AzureThings]:
        """Make a container."""
        async with AzureThings.open(self.emulator, "blob") as subject:
            yield subject
