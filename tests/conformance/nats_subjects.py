"""NATS JetStream as a subject of the suites: each transport has a connection of its own, and names that nobody else has."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self
from uuid import uuid4

from onceonly.adapters.nats import topology
from onceonly.adapters.nats.address import read_address
from onceonly.adapters.nats.link import NatsLink
from onceonly.adapters.nats.names import CONSUMER, NatsNames
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.model.errors import OnceOnlyError
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemRandomSource
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT, OTHER
from tests.servers.available import NATS, need

QUEUES = (ENDPOINT, OTHER, "audit", "idle")
TICK_SECONDS = 0.15
"""After this time the server looks for leases that have ended, when the lease of a consumer is changed."""


class NatsSubject:
    """Everything behind one prefix on a server. The clock is the test's. Leases end when a test says so.

    With `runs` the leases are short and end by themselves, and time that passes is real.
    """

    def __init__(self, *, server: str = "", lease: float = 3600.0, runs: bool = False) -> None:
        self.clock = ManualClock()
        self._prefix = f"t{uuid4().hex[:10]}."
        self.names = NatsNames(self._prefix)
        self.url = f"{server or need(NATS)}?prefix={self._prefix}&lease={lease:g}&timeout=10"
        self._lease = lease
        self._runs = runs
        self._clocks = [self.clock]
        self._links: list[NatsLink] = []
        self._transports: list[NatsTransport] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, *, lease: float = 3600.0, runs: bool = False) -> AsyncIterator[Self]:
        """Begin with nothing; close every connection at the end, and delete what was made."""
        subject = cls(lease=lease, runs=runs)
        try:
            yield subject
        finally:
            await subject.close(removes=True)

    async def close(self, *, removes: bool) -> None:
        """Close every connection, and delete what was made if `removes`."""
        for transport in self._transports:
            with suppress(OnceOnlyError):
                await transport.close()
        if removes:
            await topology.remove(await self._admin(), self.names, [Topology(endpoint=name) for name in QUEUES])
        for link in self._links:
            await link.close()

    async def transport(self, endpoint: str = ENDPOINT) -> NatsTransport:
        """Open a transport on a connection of its own."""
        return await self._open(endpoint, self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> NatsTransport:
        """Open a transport on a connection of its own, with a clock of its own."""
        self._clocks.append(ManualClock(self.clock.now() + milliseconds))
        return await self._open(endpoint, self._clocks[-1])

    async def limit(self, endpoint: str, most: int) -> None:
        """Create the queue, then limit its stream."""
        link = await self._admin()
        await topology.declare(link, self.names, [Topology(endpoint=endpoint)])
        found = await link.api(f"STREAM.INFO.{self.names.queue(endpoint)}")
        assert found is not None
        await link.api(f"STREAM.UPDATE.{self.names.queue(endpoint)}", found["config"] | {"max_msgs": most})

    async def delete(self, endpoint: str) -> None:
        """Delete the queue with its messages."""
        await (await self._admin()).api(f"STREAM.DELETE.{self.names.queue(endpoint)}")

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        for clock in self._clocks:
            clock.advance(milliseconds)
        if self._runs:
            await asyncio.sleep(milliseconds / 1000)

    async def lapse(self) -> None:
        """End all leases: by a lease that is over at once, for a moment."""
        for clock in self._clocks:
            clock.advance(int(self._lease * 1000))
        link = await self._admin()
        for endpoint in QUEUES:
            stream = self.names.queue(endpoint)
            if await topology.consumer_of(link, stream) is not None:
                found = await link.api(f"CONSUMER.INFO.{stream}.{CONSUMER}", {})
                for nanoseconds in (1_000_000, found["config"]["ack_wait"]):
                    config = found["config"] | {"ack_wait": nanoseconds}
                    asked = {"stream_name": stream, "config": config}
                    await link.api(f"CONSUMER.DURABLE.CREATE.{stream}.{CONSUMER}", asked)
                    await asyncio.sleep(TICK_SECONDS)

    async def _open(self, endpoint: str, clock: ManualClock) -> NatsTransport:
        return self._opened(self.url, endpoint, clock)

    def _opened(self, url: str, endpoint: str, clock: ManualClock) -> NatsTransport:
        self._links.append(NatsLink(read_address(url), SystemRandomSource()))
        self._transports.append(NatsTransport(self._links[-1], endpoint, clock=clock))
        return self._transports[-1]

    async def _admin(self) -> NatsLink:
        self._links.append(NatsLink(read_address(self.url), SystemRandomSource()))
        return self._links[-1]
