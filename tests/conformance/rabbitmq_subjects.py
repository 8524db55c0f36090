"""RabbitMQ as a subject of the suites: each transport has a connection of its own, and names that nobody else has."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, Self
from uuid import uuid4

from pamqp import commands as spec

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import Channel, RabbitMQLink
from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.adapters.rabbitmq.topology import declare_shared
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.errors import OnceOnlyError
from onceonly.runtime.environment import SystemRandomSource
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.suite import ENDPOINT
from tests.servers.available import RABBITMQ, need

SMALL = 4096
TICK = 200  # milliseconds of the server's time that pass for a second of the tests'
LEVELS = 3


class Declared(NamedTuple):
    """The names of queues and exchanges that were declared. `transient` has those that a restart of the server deletes."""

    queues: set[str]
    exchanges: set[str]
    transient: set[str]

    def note(self, frame: object) -> None:
        """Note a declaration that is sent to the server."""
        if isinstance(frame, spec.Queue.Declare | spec.Exchange.Declare) and not frame.passive:
            name = frame.queue if isinstance(frame, spec.Queue.Declare) else frame.exchange
            if name:  # the server gives other names itself, and deletes those queues with the connection
                (self.queues if isinstance(frame, spec.Queue.Declare) else self.exchanges).add(name)
                if not frame.durable:
                    self.transient.add(name)


class RecordingLink(RabbitMQLink):
    """A link that notes what it declares."""

    def __init__(self, url: str, declared: Declared) -> None:
        super().__init__(read_address(url), SystemRandomSource())
        self._declared = declared

    async def channel(self, *, confirms: bool) -> Channel:
        """Open a channel that notes declarations."""
        channel = await super().channel(confirms=confirms)
        call = channel.rpc

        def noted(frame: Any, timeout: Any = None) -> Any:
            self._declared.note(frame)
            return call(frame, timeout=timeout)

        setattr(channel, "rpc", noted)  # noqa: B010 - a method
        return channel


class BreakingLink(RecordingLink):
    """A link whose first connection breaks when it writes for the time `number`. With `arrives` the server gets that, too."""

    def __init__(self, url: str, declared: Declared, number: int, *, arrives: bool) -> None:
        super().__init__(url, declared)
        self._left = number
        self._arrives = arrives
        self.has_broken = False

    async def _connect(self) -> Any:
        connection = await super()._connect()
        writer = connection.streams.writer
        assert writer is not None
        write = writer.write

        def counted(data: bytes) -> None:
            self._left -= 1
            if self._left or self._arrives:
                write(data)
            if not self._left:
                self.has_broken = True
                writer.transport.close()  # what was written is still sent

        if not self.has_broken:
            setattr(writer, "write", counted)  # noqa: B010 - a method
        return connection


class RabbitMQSubject:
    """Everything behind one prefix on a server. The clock is the test's; delays run five times as fast."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.names = RabbitMQNames(f"t{uuid4().hex[:10]}.", levels=LEVELS, tick=TICK)
        self.url = f"{need(RABBITMQ)}?max_body={SMALL}&timeout=10"
        self._declared = Declared(set(), set(), set())
        self._links: list[RabbitMQLink] = []
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
            await subject._remove(subject._declared.queues | subject._declared.exchanges)
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

    async def breaking(self, request: int, *, arrives: bool) -> tuple[RabbitMQTransport, Callable[[], bool]]:
        """Open a transport on a connection that breaks."""
        link = BreakingLink(self.url, self._declared, request, arrives=arrives)
        return self._opened(ENDPOINT, self.clock, link), lambda: link.has_broken

    def _opened(self, endpoint: str, clock: ManualClock, link: RabbitMQLink | None = None) -> RabbitMQTransport:
        self._links.append(link or RecordingLink(self.url, self._declared))
        self._transports.append(RabbitMQTransport(self._links[-1], endpoint, clock=clock, names=self.names, linger=0.1))
        return self._transports[-1]

    async def restart(self) -> None:
        """Delete what is not durable. Other tests use the server, so it is not restarted."""
        await self._remove(self._declared.transient)
        await self.lapse()

    async def reset(self) -> None:
        """Delete everything."""
        await self._remove(self._declared.queues | self._declared.exchanges)
        await self.lapse()

    async def limit(self, endpoint: str, most: int) -> None:
        """Declare a classic queue, whose limit is exact, and what all endpoints share."""
        async with self._administering() as link, link.temporary_channel() as channel:
            await declare_shared(link, self.names)
            limited = {"x-max-length": most, "x-overflow": "reject-publish"}
            await channel.queue_declare(self.names.queue(endpoint), durable=True, arguments=limited)

    async def delete(self, endpoint: str) -> None:
        """Delete the queue with its messages."""
        async with self._administering() as link, link.temporary_channel() as channel:
            await channel.queue_delete(self.names.queue(endpoint))

    @asynccontextmanager
    async def _administering(self) -> AsyncIterator[RabbitMQLink]:
        """Open a connection that no transport uses."""
        link = RecordingLink(self.url, self._declared)
        try:
            yield link
        finally:
            await link.close()

    async def _remove(self, names: set[str]) -> None:
        async with self._administering() as link, link.temporary_channel() as channel:
            for queue in self._declared.queues & names:
                await channel.queue_delete(queue)
            for exchange in self._declared.exchanges & names:
                await channel.exchange_delete(exchange)

    def now(self) -> int:
        """Return the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and wait for as long as the levels take to keep up."""
        self.clock.advance(milliseconds)
        await asyncio.sleep((-(-milliseconds // 1000) * TICK + TICK) / 1000)

    async def lapse(self) -> None:
        """Cut every connection."""
        for link in self._links:
            await link._reconnection.drop()
