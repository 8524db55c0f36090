"""The toy broker keeps every promise of a transport."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly_toymq.broker import LEASE_SECONDS, Broker, ToyTransport

from onceonly.ports.transport import Transport
from onceonly.testing import RunClock
from onceonly_conformance import TransportSuite


class Place:
    """One broker, under test. Its clock is moved by the rules."""

    def __init__(self) -> None:
        self.broker = Broker()
        self.clock = RunClock()

    async def transport(self, endpoint: str = "shop") -> Transport:
        """Open the queue of an endpoint."""
        return ToyTransport(self.broker, endpoint, self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> Transport:
        """Open it in a process whose clock is ahead. The broker has a clock of its own."""
        return await self.transport(endpoint)

    def now(self) -> int:
        """Return milliseconds since 1970."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Move the clock."""
        self.clock.advance(milliseconds / 1000)

    async def lapse(self) -> None:
        """End every lease."""
        self.clock.advance(LEASE_SECONDS)


class TestTransport(TransportSuite):
    """The queue of an endpoint."""

    @asynccontextmanager
    async def open_transport(self) -> AsyncIterator[Place]:
        """Start a broker."""
        yield Place()
