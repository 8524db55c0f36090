"""Opens queues on RabbitMQ. Connections are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import Link
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared

_LINKS: Shared[Link] = Shared(Link.close)


@asynccontextmanager
async def _opened(url: str, endpoint: str, clock: Clock, chance: RandomSource) -> AsyncIterator[RabbitMQTransport]:
    async def make() -> Link:
        return Link(read_address(url), chance)

    async with _LINKS.use(url, make) as link:
        transport = RabbitMQTransport(link, endpoint, clock=clock)
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
    """Delete these queues, the exchanges of their events, and the delays behind the same prefix, at the end."""
    async with _opened(url, "", clock, chance) as transport:
        try:
            yield
        finally:
            await transport.remove(topologies)
