"""Azure storage as a subject of the suites: a table, or a prefix in a container, that nobody else has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from types import ModuleType
from typing import Self
from uuid import uuid4

from msgspec import structs

from onceonly.adapters.azure.blob import documents as azure_blob
from onceonly.adapters.azure.blob.artifacts import open_artifacts
from onceonly.adapters.azure.table import documents as azure_table
from onceonly.ports.documents import Documents
from onceonly.ports.effects import ArtifactStore
from onceonly.runtime.environment import SystemClock
from onceonly_conformance.documents_subject import Moment
from tests.servers.azurite import Azurite
from tests.servers.cutting_http import Request, cutting_http

EMULATED = structs.replace(azure_table.LIMITS, body=700 * 1024)
"""What the emulator holds: it counts an entity in Base64, where the service counts bytes."""
WRITES = frozenset({"POST", "PUT", "DELETE"})
SERVICES: dict[str, ModuleType] = {"table": azure_table, "blob": azure_blob}


class AzurePlace:
    """One place of one service. Its time is the world's."""

    def __init__(self, emulator: Azurite, service: str, stack: AsyncExitStack) -> None:
        self.path = f"onceonly{uuid4().hex[:12]}"
        if service == "blob":
            self.path += "/some/folder"
        self._emulator, self._service, self._stack = emulator, service, stack
        self._module = SERVICES[service]

    @classmethod
    @asynccontextmanager
    async def open(cls, emulator: Azurite, service: str) -> AsyncIterator[Self]:
        """Make the place; it goes with the emulator."""
        async with AsyncExitStack() as stack:
            subject = cls(emulator, service, stack)
            await subject._module.create(subject.url())
            yield subject

    def url(self, through: str = "") -> str:
        """Return its URL, through a proxy or directly."""
        return self._emulator.url(self._service, self.path, through=through)

    async def documents(self) -> Documents:
        """Open it by a client of its own."""
        return await self._open(self.url())

    async def cut(self, moment: Moment) -> Documents:
        """Open it through a proxy that cuts the next write. The client has read before, so its connection is used anew."""
        address = self._emulator.blob if self._service == "blob" else self._emulator.table
        cutter, through = await self._stack.enter_async_context(cutting_http(address, _is_write))
        documents = await self._open(self.url(through))
        await documents.load(["nothing"])
        cutter.cut = moment
        return documents

    async def missing(self) -> Documents:
        """Open what was never made."""
        return await self._open(self._emulator.url(self._service, f"missing{uuid4().hex[:12]}"))

    def now(self) -> int:
        """Return the time."""
        return SystemClock().now()

    async def pass_time(self, milliseconds: int) -> None:
        """Wait."""
        await asyncio.sleep(milliseconds / 1000)

    async def _open(self, url: str) -> Documents:
        opened = self._module.open_documents(url, clock=SystemClock())
        documents: Documents = await self._stack.enter_async_context(opened)
        if isinstance(documents, azure_table.AzureTableDocuments):
            documents.limits = EMULATED
        return documents


def _is_write(request: Request) -> bool:
    return request.method in WRITES


class AzureArtifacts(AzurePlace):
    """Blobs in a folder."""

    async def artifacts(self) -> ArtifactStore:
        """Open it by a client of its own."""
        opened: ArtifactStore = await self._stack.enter_async_context(open_artifacts(self.url()))
        return opened
