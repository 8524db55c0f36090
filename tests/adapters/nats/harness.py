"""A place of its own on the NATS server, and a plain client beside the library."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

import nats
from nats.aio.client import Client

from onceonly.adapters.nats import topology
from onceonly.adapters.nats.address import read_address
from onceonly.adapters.nats.link import NatsLink
from onceonly.adapters.nats.names import NatsNames
from onceonly.adapters.nats.transport import NatsTransport
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock, SystemRandomSource
from tests.servers.available import NATS, need

EVENT = "shop.order.v1"
TOPOLOGY = Topology(endpoint="shop", events=(EVENT,))
PATIENCE = 20.0


class Broker:
    """Transports behind one prefix."""

    def __init__(self, stack: AsyncExitStack, server: str) -> None:
        prefix = f"t{uuid4().hex[:10]}."
        self.names = NatsNames(prefix)
        self.server = server
        self.url = f"{server}?prefix={prefix}&timeout=10"
        self.subject = self.names.queue_subject("shop")
        self.stream = self.names.queue("shop")
        self._stack = stack

    async def link(self, url: str = "") -> NatsLink:
        """Open a connection that no transport uses."""
        link = NatsLink(read_address(url or self.url), SystemRandomSource())
        self._stack.push_async_callback(link.close)
        return link

    async def transport(self, endpoint: str = "shop", *, url: str = "", clock: Clock | None = None) -> NatsTransport:
        """Open a transport on a connection of its own."""
        transport = NatsTransport(await self.link(url), endpoint, clock=clock or SystemClock())
        self._stack.push_async_callback(transport.close)
        return transport

    @asynccontextmanager
    async def plain(self) -> AsyncIterator[Client]:
        """Connect with the driver alone."""
        client = await nats.connect(self.server)
        try:
            yield client
        finally:
            await client.close()

    async def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish to the queue `shop` as a foreign sender does."""
        async with self.plain() as client:
            await client.jetstream().publish(self.subject, body, headers=headers)

    async def change(self, **settings: Any) -> None:
        """Change the stream of the queue as an operator does."""
        link = await self.link()
        found = await link.api(f"STREAM.INFO.{self.stream}")
        assert found is not None
        await link.api(f"STREAM.UPDATE.{self.stream}", found["config"] | settings)


@asynccontextmanager
async def opened(*topologies: Topology, server: str = "") -> AsyncIterator[Broker]:
    """Declare these queues under a prefix of their own; delete everything at the end."""
    declared = topologies or (TOPOLOGY,)
    async with AsyncExitStack() as stack:
        broker = Broker(stack, server or need(NATS))
        link = await broker.link()
        stack.push_async_callback(topology.remove, link, broker.names, declared)
        await topology.declare(link, broker.names, declared)
        yield broker


def message(name: str = "m1") -> Message:
    """Make a message."""
    return Message(id=name, source="till", type=EVENT, body=b'{"total": 1}')


def commands(*names: str, to: str = "shop", due: int = 0) -> list[Send]:
    """Make commands."""
    return [Send(message=message(name), to=to, due=due) for name in names]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Name deliveries."""
    return [dict(delivery.headers)["ce-id"] for delivery in deliveries]


async def take(transport: NatsTransport, count: int) -> list[Delivery]:
    """Receive this many, in as many calls as it takes."""
    got: list[Delivery] = []
    while len(got) < count and (more := await transport.receive(count - len(got), PATIENCE)):
        got += more
    return got
