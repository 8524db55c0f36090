"""A connection that is made when it is needed, and again after it was lost."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from onceonly.model.errors import CommitFailed, OnceOnlyError
from onceonly.ports.environment import RandomSource

__all__ = ["LONGEST_PAUSE_SECONDS", "Reconnection"]

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
"""The first and the longest pause between two attempts to connect."""


class _Reconnectable(Protocol):
    @property
    def is_open(self) -> bool:
        """Whether it can be used."""


_Opened = TypeVar("_Opened", bound=_Reconnectable)


class Reconnection(Generic[_Opened]):
    """One connection, shared by what a process has at a broker.

    Attempts are spaced by a growing pause with jitter. A call within a pause fails as the last attempt did, without waiting.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[_Opened]],
        disconnect: Callable[[_Opened], Awaitable[object]],
        random: RandomSource,
    ) -> None:
        """Use these functions: `connect` raises an OnceOnlyError, `disconnect` nothing."""
        self.current: _Opened | None = None
        self.is_closed = False
        self._connect = connect
        self._disconnect = disconnect
        self._random = random
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._not_before = 0.0
        self._last: OnceOnlyError | None = None

    async def get(self) -> _Opened:
        """Return the connection; make it if need be. Raises what `connect` raises, and CommitFailed after `close`."""
        async with self._connecting:
            if self.is_closed:
                raise CommitFailed("the connection was closed by this process")
            if self.current is not None and self.current.is_open:
                return self.current
            clock = asyncio.get_running_loop().time
            if self._last is not None and clock() < self._not_before:
                raise type(self._last)(str(self._last))
            await self.drop()
            try:
                made = await self._connect()
            except OnceOnlyError as error:
                self._failures, self._last = self._failures + 1, error
                pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 30))
                self._not_before = clock() + pause * (1 + self._random.fraction()) / 2
                raise
            self._failures, self._last, self.current = 0, None, made
            if self.is_closed:  # meanwhile, and whoever closed could not know of this one
                await self.drop()
                raise CommitFailed("the connection was closed by this process")
            return made

    async def drop(self) -> None:
        """Close the connection; the next call makes a new one."""
        known, self.current = self.current, None
        if known is not None:
            await self._disconnect(known)

    async def close(self) -> None:
        self.is_closed = True
        await self.drop()
