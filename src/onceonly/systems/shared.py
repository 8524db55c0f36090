"""Connections that several endpoints of a process share. The first user opens one, the last user closes it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import Generic, Protocol, TypeVar

from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport

__all__ = ["BrokerConnection", "QueueClass", "RemovableTransport", "Shared", "SharedQueues"]

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


class BrokerConnection(Protocol):
    """A connection to a broker, or a client of one. It may connect at its first use."""

    async def close(self) -> None:
        """Close it. It is not used afterwards."""


class RemovableTransport(Transport, Protocol):
    """A transport that can delete queues, as `SharedQueues` needs it."""

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues, their messages and their subscriptions. Called by demos and tests only."""

    async def close(self) -> None:
        """End what the transport does in the background. The connection stays open."""


_Connection = TypeVar("_Connection", bound=BrokerConnection)


class QueueClass(Protocol[_Connection]):
    """The class of a broker's transports. Its instances share a connection."""

    async def connect(self, url: str, random: RandomSource, /) -> _Connection:
        """Make the connection of a URL. A static method of the class. Raises SetupError."""

    def __call__(self, connection: _Connection, endpoint: str, /, *, clock: Clock) -> RemovableTransport:
        """Return the transport of an endpoint, without I/O. A broker with a clock of its own does not need `clock`."""


class SharedQueues(Generic[_Connection]):
    """Opens the queues of a broker. The endpoints of a process that have the same URL share one connection.

    It is the `TransportService` of a system, as `queues` makes it.
    """

    def __init__(self, queue: QueueClass[_Connection]) -> None:
        """Use a class to connect, and to make the transports of endpoints."""
        self._queue = queue
        self._connections: Shared[_Connection] = Shared(_close)

    @asynccontextmanager
    async def open_transport(
        self, url: str, endpoint: str, *, clock: Clock, random: RandomSource
    ) -> AsyncIterator[RemovableTransport]:
        """Open the queue of one endpoint, for a block. Raises what `connect` raises."""

        async def make() -> _Connection:
            return await self._queue.connect(url, random)

        async with self._connections.use(url, make) as connection:
            transport = self._queue(connection, endpoint, clock=clock)
            try:
                yield transport
            finally:
                await transport.close()

    @asynccontextmanager
    async def temporary_transport(
        self, url: str, topologies: Sequence[Topology], *, clock: Clock, random: RandomSource
    ) -> AsyncIterator[None]:
        """Delete these queues at the end of a block. The endpoints declare them."""
        async with self.open_transport(url, "", clock=clock, random=random) as transport:
            try:
                yield
            finally:
                await transport.remove(topologies)


async def _close(connection: BrokerConnection) -> None:
    await connection.close()
