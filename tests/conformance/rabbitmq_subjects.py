"""RabbitMQ as a subject of the suites: each transport has a connection of its own, and names that nobody else has."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Self
from uuid import uuid4

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import Channel, Link
from onceonly.adapters.rabbitmq.names import TopologyNames
from onceonly.adapters.rabbitmq.topology import declare_shared
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.conformance.clock import ManualClock
from onceonly.conformance.suite import ENDPOINT
from onceonly.model.errors import OnceOnlyError
from onceonly.runtime.environment import SystemRandomSource
from tests.servers.available import RABBITMQ, need

SMALL = 4096
TICK = 200  # milliseconds of the server's time that pass for a second of the tests'
LEVELS = 3


class RecordingLink(Link):
    """A link that adds the names of the queues and exchanges that it declares to `queues` and `exchanges`."""

    def __init__(self, url: str, queues: set[str], exchanges: set[str]) -> None:
        super().__init__(read_address(url), SystemRandomSource())
        self._queues = queues
        self._exchanges = exchanges

    async def channel(self, *, confirms: bool) -> Channel:
        """Open a channel that records declarations."""
        channel = await super().channel(confirms=confirms)
        for method, names in (("queue_declare", self._queues), ("exchange_declare", self._exchanges)):
            setattr(channel, method, _recording(getattr(channel, method), names))
        return channel


def _recording(declare: Callable[..., Awaitable[Any]], names: set[str]) -> Callable[..., Awaitable[Any]]:
    async def recorded(name: str, **options: Any) -> Any:
        if name and not options.get("passive"):
            names.add(name)
        return await declare(name, **options)

    return recorded


class RabbitMQSubject:
    """Everything behind one prefix on a server. The clock is the test's; delays run five times as fast."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.names = TopologyNames(f"t{uuid4().hex[:10]}.", levels=LEVELS, tick=TICK)
        self.url = f"{need(RABBITMQ)}?max_body={SMALL}&timeout=10"
        self._queues: set[str] = set()
        self._exchanges: set[str] = set()
        self._links: list[Link] = []
        self._transports: list[RabbitMQTransport] = []

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Begin with nothing; close every connection at the end, and delete what was made.

        `remove` of the adapter is not used: it would try to delete a hundred names that no rule declared.
        """
        subject = cls()
        try:
            yield subject
        finally:
            await subject._clean_up()
            for transport in subject._transports:
                with suppress(OnceOnlyError):
                    await transport.close()
            for link in subject._links:
                await link.close()

    async def transport(self, endpoint: str = ENDPOINT) -> RabbitMQTransport:
        """Open a transport on a connection of its own."""
        return self._opened(endpoint, self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> RabbitMQTransport:
        """Open a transport on a connection of its own, with a clock of its own."""
        return self._opened(endpoint, ManualClock(self.clock.now() + milliseconds))

    def _opened(self, endpoint: str, clock: ManualClock) -> RabbitMQTransport:
        self._links.append(RecordingLink(self.url, self._queues, self._exchanges))
        self._transports.append(RabbitMQTransport(self._links[-1], endpoint, clock=clock, names=self.names, linger=0.1))
        return self._transports[-1]

    async def limit(self, endpoint: str, most: int) -> None:
        """Declare a classic queue, whose limit is exact, and what all endpoints share."""
        async with self._administering() as link, link.errand() as channel:
            await declare_shared(link, self.names)
            limited = {"x-max-length": most, "x-overflow": "reject-publish"}
            await channel.queue_declare(self.names.queue(endpoint), durable=True, arguments=limited)

    async def delete(self, endpoint: str) -> None:
        """Delete the queue with its messages."""
        async with self._administering() as link, link.errand() as channel:
            await channel.queue_delete(self.names.queue(endpoint))

    @asynccontextmanager
    async def _administering(self) -> AsyncIterator[Link]:
        """Open a connection that no transport uses."""
        link = RecordingLink(self.url, self._queues, self._exchanges)
        try:
            yield link
        finally:
            await link.close()

    async def _clean_up(self) -> None:
        async with self._administering() as link, link.errand() as channel:
            for queue in self._queues:
                await channel.queue_delete(queue)
            for exchange in self._exchanges:
                await channel.exchange_delete(exchange)

    def now(self) -> int:
        """Give the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and wait for as long as the levels take to keep up."""
        self.clock.advance(milliseconds)
        await asyncio.sleep((-(-milliseconds // 1000) * TICK + TICK) / 1000)

    async def lapse(self) -> None:
        """Cut every connection."""
        for link in self._links:
            await link.drop()
