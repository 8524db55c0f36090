"""The RabbitMQ adapter, put together: connections are shared by URL within a process."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from onceonly.drivers.rabbitmq import Link, read_address
from onceonly.ports.surroundings import Clock
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.surroundings import SystemChance
from onceonly.transports.rabbitmq import RabbitMQTransport
from onceonly.wiring.shared import Shared

_LINKS: Shared[Link] = Shared(Link.close)


@asynccontextmanager
async def _opened(setting: str, endpoint: str, clock: Clock) -> AsyncIterator[RabbitMQTransport]:
    async def make() -> Link:
        return Link(read_address(setting), SystemChance())

    async with _LINKS.use(setting, make) as link:
        transport = RabbitMQTransport(link, endpoint, clock=clock)
        try:
            yield transport
        finally:
            await transport.close()


@asynccontextmanager
async def open_transport(setting: Any, endpoint: str, *, clock: Clock) -> AsyncIterator[Transport]:
    """Give the queue of one endpoint; connects when it is used."""
    async with _opened(setting, endpoint, clock) as transport:
        yield transport


@asynccontextmanager
async def temporary_transport(setting: Any, topologies: Sequence[Topology], *, clock: Clock) -> AsyncIterator[None]:
    """Delete these queues, the exchanges of their events, and the delays behind the same prefix, at the end."""
    async with _opened(setting, "", clock) as transport:
        try:
            yield
        finally:
            await transport.remove(topologies)
