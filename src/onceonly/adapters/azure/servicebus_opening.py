"""Opens queues on Azure Service Bus. Connections for sending are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.azure.servicebus import ServiceBusTransport
from onceonly.adapters.azure.servicebus_address import read_servicebus
from onceonly.adapters.azure.servicebus_link import Link
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared

_LINKS: Shared[Link] = Shared(Link.close)


@asynccontextmanager
async def _opened(url: str, endpoint: str) -> AsyncIterator[ServiceBusTransport]:
    async def make() -> Link:
        return Link(read_servicebus(url))

    async with _LINKS.use(url, make) as link:
        transport = ServiceBusTransport(link, endpoint)
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def open_transport(
    url: str,
    endpoint: str,
    *,
    clock: Clock,  # noqa: ARG001 - the clock of the service decides
    chance: RandomSource,  # noqa: ARG001 - it has no use for it
) -> AsyncIterator[Transport]:
    """Open the queue of one endpoint. It connects at its first use."""
    async with _opened(url, endpoint) as transport:
        yield transport


@asynccontextmanager
async def temporary_transport(
    url: str,
    topologies: Sequence[Topology],
    *,
    clock: Clock,  # noqa: ARG001 - see above
    chance: RandomSource,  # noqa: ARG001 - see above
) -> AsyncIterator[None]:
    """Delete these queues, and the subscriptions to their events, at the end."""
    async with _opened(url, "") as transport:
        try:
            yield
        finally:
            await transport.remove(topologies)
