"""DynamoDB and S3 as subjects of the suites: places of their own on an emulator, and a proxy that cuts a client off."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import NamedTuple, Self
from uuid import uuid4

from onceonly.ports.documents import Documents
from onceonly_conformance.documents_subject import Moment
from tests.servers.cutting_http import Request, cutting_http

KEYS = "test:test@"


class Service(NamedTuple):
    """How to write the URL of a place, open it and make it, and how a write looks on its way."""

    url: Callable[[str, str], str]
    open: Callable[[str], AbstractAsyncContextManager[Documents]]
    create: Callable[[str], Awaitable[None]]
    is_write: Callable[[Request], bool]


class AwsSubject:
    """One place on the emulator, that nobody else has. Its clock is the world's."""

    def __init__(self, service: Service, endpoint: str, stack: AsyncExitStack) -> None:
        self._service, self._endpoint, self._stack = service, endpoint, stack
        self._name = f"t{uuid4().hex[:16]}"
        self.url = service.url(self._name, endpoint)

    @classmethod
    @asynccontextmanager
    async def open(cls, service: Service, endpoint: str) -> AsyncIterator[Self]:
        """Make the place; it goes with its emulator."""
        async with AsyncExitStack() as stack:
            subject = cls(service, endpoint, stack)
            await service.create(subject.url)
            yield subject

    async def documents(self) -> Documents:
        """Open the place with a client of its own."""
        return await self._stack.enter_async_context(self._service.open(self.url))

    async def cut(self, moment: Moment) -> Documents:
        """Open the place through a proxy, by a connection that was used already: a driver may treat that one differently."""
        cutter, endpoint = await self._stack.enter_async_context(cutting_http(self._endpoint, self._service.is_write))
        documents = await self._stack.enter_async_context(self._service.open(self._service.url(self._name, endpoint)))
        await documents.load(["never there"])
        cutter.cut = moment
        return documents

    async def missing(self) -> Documents:
        """Open a place that was never made."""
        return await self._stack.enter_async_context(self._service.open(self._service.url(f"{self._name}-no", self._endpoint)))

    def now(self) -> int:
        """Return the time."""
        return time.time_ns() // 1_000_000

    async def pass_time(self, milliseconds: int) -> None:
        """Wait for the time to pass."""
        await asyncio.sleep(milliseconds / 1000)
