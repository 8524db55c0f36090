"""Opens queues on Redis. Connections are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.redis.address import read_address
from onceonly.adapters.redis.link import Link
from onceonly.adapters.redis.transport import RedisTransport
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared

_LINKS: Shared[Link] = Shared(Link.close)


@asynccontextmanager
async def _opened(url: str, endpoint: str) -> AsyncIterator[RedisTransport]:
    async def make() -> Link:
        return Link(read_address(url))

    async with _LINKS.use(url, make) as link:
        transport = RedisTransport(link, endpoint)
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def open_transport(
    url: str,
    endpoint: str,
    *,
    clock: Clock,  # noqa: ARG001 - the server's clock decides
    chance: RandomSource,  # noqa: ARG001 - it has no use for it
) -> AsyncIterator[Transport]:
    """Open the queue of one endpoint. It connects at its first use, and follows the clock of the server."""
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
