"""What the document databases of real services share as subjects: clients of their own, a cutter before them, the real time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Self
from urllib.parse import urlsplit

from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.runtime.environment import SystemClock
from tests.servers.cutting_writes import cutting_writes
from tests.servers.proxy import Secured

Opens = Callable[..., AbstractAsyncContextManager[Documents]]


class ServiceSubject:
    """One place of a service, by the URL of its adapter; the time is the world's."""

    def __init__(self, opens: Opens, url: str, missing: str, is_write: Callable[[bytes], bool]) -> None:
        self.url = url
        self.secured: Secured | None = None
        self._opens, self._missing, self._is_write = opens, missing, is_write
        self._clock: Clock = SystemClock()
        self._open = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def open(
        cls, opens: Opens, url: str, *, missing: str, is_write: Callable[[bytes], bool], secured: Secured | None = None
    ) -> AsyncIterator[Self]:
        """Begin; close every client at the end."""
        subject = cls(opens, url, missing, is_write)
        subject.secured = secured
        async with subject._open:
            yield subject

    async def documents(self) -> Documents:
        """Open the place with a client of its own."""
        return await self._open.enter_async_context(self._opens(self.url, clock=self._clock))

    async def cut(self, moment: str) -> Documents:
        """Open the place with a client whose next write is cut off once."""
        parts = urlsplit(self.url)
        place = (parts.hostname or "", parts.port or 0)
        cutter, port = await self._open.enter_async_context(cutting_writes(place, self._is_write, self.secured))
        through = self.url.replace(f":{parts.port}", f":{port}", 1)
        cutter.armed = moment
        return await self._open.enter_async_context(self._opens(through, clock=self._clock))

    async def missing(self) -> Documents:
        """Open a place that was never made."""
        return await self._open.enter_async_context(self._opens(self._missing, clock=self._clock))

    def now(self) -> int:
        """Return the time."""
        return self._clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Wait for it."""
        await asyncio.sleep(milliseconds / 1000)
