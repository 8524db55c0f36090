"""Opens queues on NATS JetStream. Connections are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.nats.address import read_address
from onceonly.adapters.nats.link import Link
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared

_LINKS: Shared[Link] = Shared(Link.close)


@asynccontextmanager
async def _opened(url: str, endpoint: str, clock: Clock, chance: RandomSource) -> AsyncIterator[NatsTransport]:
    async def make() -> Link:
        return Link(read_address(url), chance)

    async with _LINKS.use(url, make) as link:
        transport = NatsTransport(link, endpoint, clock=clock)
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def open_transport(url: str, endpoint: str, *, clock: Clock, chance: RandomSource) -> AsyncIterator[Transport]:
    """Open the queue of one endpoint. It connects at its first use."""
    async with _opened(url, endpoint, clock, chance) as transport:
        yield transport


@asynccontextmanager
async def temporary_transport(
    url: str, topologies: Sequence[Topology], *, clock: Clock, chance: RandomSource
) -> AsyncIterator[None]:
    """Delete these queues, and all subscriptions and delayed messages behind the same prefix, at the end."""
    async with _opened(url, "", clock, chance) as transport:
        try:
            yield
        finally:
            await transport.remove(topologies)
