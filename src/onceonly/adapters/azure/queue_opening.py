"""Opens queues in Azure storage. Connections are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.azure.queue_address import read_queue
from onceonly.adapters.azure.queue_client import QueueLink
from onceonly.adapters.azure.queue_transport import AzureQueueTransport
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared

_LINKS: Shared[QueueLink] = Shared(QueueLink.close)


@asynccontextmanager
async def _opened(url: str, endpoint: str, clock: Clock) -> AsyncIterator[AzureQueueTransport]:
    async def make() -> QueueLink:
        return await QueueLink(read_queue(url)).open()

    async with _LINKS.use(url, make) as link:
        transport = AzureQueueTransport(link, endpoint, clock=clock)
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def open_transport(
    url: str,
    endpoint: str,
    *,
    clock: Clock,
    chance: RandomSource,  # noqa: ARG001 - it has no use for it
) -> AsyncIterator[Transport]:
    """Open the queue of one endpoint. It connects at its first request. Raises SetupError, DriverMissing."""
    async with _opened(url, endpoint, clock) as transport:
        yield transport


@asynccontextmanager
async def temporary_transport(
    url: str,
    topologies: Sequence[Topology],
    *,
    clock: Clock,
    chance: RandomSource,  # noqa: ARG001 - see above
) -> AsyncIterator[None]:
    """Delete these queues, and the subscriptions of these endpoints, at the end."""
    async with _opened(url, "", clock) as transport:
        try:
            yield
        finally:
            await transport.remove(topologies)
