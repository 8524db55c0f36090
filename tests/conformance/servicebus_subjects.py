"""Azure Service Bus as a subject of the suites: the stand-in, with the test's clock, and connections for each transport."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from onceonly.adapters.azure.servicebus.address import read_servicebus
from onceonly.adapters.azure.servicebus.link import ServiceBusLink
from onceonly.adapters.azure.servicebus.transport import ServiceBusTransport
from onceonly.ports.transport import Topology
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT
from tests.servers.servicebus.standin import StandIn, standin


class ServiceBusSubject:
    """A namespace of its own. The clock of the service is the test's."""

    def __init__(self, server: StandIn, clock: ManualClock, options: str) -> None:
        self.server = server
        self.clock = clock
        self.url = server.url + options
        self._links: list[ServiceBusLink] = []
        self._transports: list[ServiceBusTransport] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, options: str = "&lease=60&timeout=10") -> AsyncIterator[Self]:
        """Begin with nothing; close every connection at the end."""
        clock = ManualClock()
        async with standin(clock.now) as server:
            subject = cls(server, clock, options)
            try:
                yield subject
            finally:
                await asyncio.gather(*(transport.close() for transport in subject._transports))
                await asyncio.gather(*(link.close() for link in subject._links))

    async def transport(self, endpoint: str = ENDPOINT) -> ServiceBusTransport:
        """Open a transport on connections of its own."""
        self._links.append(ServiceBusLink(read_servicebus(self.url)))
        self._transports.append(ServiceBusTransport(self._links[-1], endpoint))
        return self._transports[-1]

    async def ahead(self, endpoint: str, milliseconds: int) -> ServiceBusTransport:
        """Open a transport: the clock of its process has no part."""
        return await self.transport(endpoint)

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.clock.advance(milliseconds)
        self.server.broker.pump()

    async def lapse(self) -> None:
        """End all locks."""
        self.server.broker.namespace.end_locks()
        self.server.broker.pump()

    async def limit(self, endpoint: str, most: int) -> None:
        """Create the queue, then limit it: the service does so by size alone."""
        await (await self.transport()).declare([Topology(endpoint=endpoint)])
        self.server.broker.namespace.queues[endpoint].limit = most

    async def delete(self, endpoint: str) -> None:
        """Delete the queue with its messages."""
        del self.server.broker.namespace.queues[endpoint]
