"""Opens queues on SQS. Clients are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from onceonly.adapters.aws.sqs_address import read_sqs
from onceonly.adapters.aws.sqs_client import Link
from onceonly.adapters.aws.sqs_transport import SqsTransport
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared

_LINKS: Shared[Link] = Shared(Link.close)


@asynccontextmanager
async def _opened(url: str, endpoint: str, clock: Clock) -> AsyncIterator[SqsTransport]:
    async def make() -> Link:
        return await Link.open(read_sqs(url))

    async with _LINKS.use(url, make) as link:
        transport = SqsTransport(link, endpoint, clock=clock)
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
    """Open the queue of one endpoint. It connects at its first use."""
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
    """Delete these queues, and the topics of their events, at the end."""
    async with _opened(url, "", clock) as transport:
        try:
            yield
        finally:
            await transport.remove(topologies)
