"""Queues behind a prefix of their own on a Redis server, and a plain client beside the library."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from onceonly.adapters.redis.address import Keys, read_address
from onceonly.adapters.redis.link import RedisLink
from onceonly.adapters.redis.transport import RedisTransport
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from tests.servers.available import REDIS, need

DATABASE = 11
EVENT = "shop.order.v1"
TOPOLOGY = Topology(endpoint="shop", events=(EVENT,))
PATIENCE = 20.0


class Broker:
    """Transports behind one prefix. `plain` is a client that does not use the library."""

    def __init__(self, stack: AsyncExitStack, server: str, options: str) -> None:
        self.prefix = f"t{uuid4().hex[:10]}:"
        self.server = server
        self.url = f"{server}?prefix={self.prefix}{options}"
        self.keys = Keys(self.prefix)
        self.stream = self.keys.queue("shop").stream
        self.plain: Any = Redis.from_url(server)
        self._stack = stack
        stack.push_async_callback(self._empty)

    async def transport(self, endpoint: str = "shop", *, url: str = "", clock: Clock | None = None) -> RedisTransport:
        """Open a transport on connections of its own."""
        link = RedisLink(read_address(url or self.url))
        self._stack.push_async_callback(link.close)
        transport = RedisTransport(link, endpoint, clock=clock, server_time=clock is None)
        self._stack.push_async_callback(transport.close)
        return transport

    async def _empty(self) -> None:
        async for key in self.plain.scan_iter(match=self.keys.start + b"*", count=1000):
            await self.plain.delete(key)
        await self.plain.aclose()


@asynccontextmanager
async def opened(*topologies: Topology, server: str = "", options: str = "") -> AsyncIterator[Broker]:
    """Declare these queues under a prefix of their own; delete everything at the end."""
    async with AsyncExitStack() as stack:
        broker = Broker(stack, server or f"{need(REDIS).rstrip('/')}/{DATABASE}", options)
        await (await broker.transport()).declare(topologies or (TOPOLOGY,))
        yield broker


def message(name: str = "m1", **fields: Any) -> Message:
    """Make a message."""
    return Message(**{"id": name, "source": "till", "type": EVENT, "body": b'{"total": 1}', **fields})


def commands(*names: str, to: str = "shop", due: int = 0) -> list[Send]:
    """Make commands."""
    return [Send(message=message(name), to=to, due=due) for name in names]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Name deliveries."""
    return [dict(delivery.headers)["ce-id"] for delivery in deliveries]


async def take(transport: RedisTransport, count: int) -> list[Delivery]:
    """Receive this many, in as many calls as it takes."""
    got: list[Delivery] = []
    while len(got) < count and (more := await transport.receive(count - len(got), PATIENCE)):
        got += more
    return got


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a question has the answer yes: a server tells nobody."""
    async with asyncio.timeout(60):
        while not await holds():  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(0.02)
