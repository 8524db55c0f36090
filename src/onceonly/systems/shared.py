"""Things that several endpoints of one process share: opened by the first that needs them, closed by the last."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Artifact = TypeVar("Artifact")


class Shared(Generic[Artifact]):
    """A table of what is open, for each event loop: connections belong to the loop that opened them."""

    def __init__(self, close: Callable[[Artifact], Awaitable[object]]) -> None:
        """Begin empty; `close` ends a thing."""
        self._close = close
        self._open: dict[Hashable, _Entry[Artifact]] = {}

    @asynccontextmanager
    async def use(self, key: Hashable, make: Callable[[], Awaitable[Artifact]]) -> AsyncIterator[Artifact]:
        """Give the thing with this key, made if nobody has it open. Raises what `make` raises."""
        place = (asyncio.get_running_loop(), key)
        entry = self._open.setdefault(place, _Entry())
        entry.users += 1
        try:
            yield await entry.get(make)
        finally:
            entry.users -= 1
            if not entry.users:
                self._open.pop(place, None)
                if entry.artifact is not None:
                    await self._close(entry.artifact)


class _Entry(Generic[Artifact]):
    def __init__(self) -> None:
        self.users = 0
        self.artifact: Artifact | None = None
        self._making = asyncio.Lock()

    async def get(self, make: Callable[[], Awaitable[Artifact]]) -> Artifact:
        async with self._making:
            if self.artifact is None:
                self.artifact = await make()
            return self.artifact
