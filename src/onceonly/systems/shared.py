"""Connections that several endpoints of a process share. The first user opens one, the last user closes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

__all__ = ["Shared"]

_Opened = TypeVar("_Opened")


class Shared(Generic[_Opened]):
    """The open connections of a system, by key. Make one for each system, at module level.

    A connection belongs to the event loop that opened it, so each loop has its own.
    """

    def __init__(self, close: Callable[[_Opened], Awaitable[object]]) -> None:
        """Use `close` to close what `make` of `use` has opened."""
        self._close = close
        self._open: dict[Hashable, _Entry[_Opened]] = {}

    @asynccontextmanager
    async def use(self, key: Hashable, make: Callable[[], Awaitable[_Opened]]) -> AsyncIterator[_Opened]:
        """Return the connection of a key, for a block. `make` is awaited if it is not open. Closes it after the last block.

        Users that enter at the same time wait for one `make`. The key is typically the URL. Raises what `make` raises.
        """
        place = (asyncio.get_running_loop(), key)
        entry = self._open.setdefault(place, _Entry())
        entry.users += 1
        try:
            yield await entry.get(make)
        finally:
            entry.users -= 1
            if not entry.users:
                self._open.pop(place, None)
                if entry.opened is not None:
                    await self._close(entry.opened)


class _Entry(Generic[_Opened]):
    def __init__(self) -> None:
        self.users = 0
        self.opened: _Opened | None = None
        self._making = asyncio.Lock()

    async def get(self, make: Callable[[], Awaitable[_Opened]]) -> _Opened:
        async with self._making:
            if self.opened is None:
                self.opened = await make()
            return self.opened
