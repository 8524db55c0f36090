"""A place of its own on the RabbitMQ server, a plain client beside the library, and a proxy that cuts connections."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiormq
import pytest
from pamqp import commands as spec

from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.link import RabbitMQLink
from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.adapters.rabbitmq.transport import RabbitMQTransport
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import SystemClock, SystemRandomSource
from tests.log_events import events
from tests.servers.available import RABBITMQ, need

EVENT = "shop.order.v1"
TOPOLOGY = Topology(endpoint="shop", events=(EVENT,))
PATIENCE = 20.0


class Broker:
    """Transports behind one prefix. `levels` of delay are few, for each costs a queue."""

    def __init__(self, stack: AsyncExitStack, *, levels: int, tick: int, server: str = "") -> None:
        self.prefix = f"t{uuid4().hex[:10]}."
        self.names = RabbitMQNames(self.prefix, levels=levels, tick=tick)
        self._server = server or need(RABBITMQ)
        self.url = f"{self._server}?prefix={self.prefix}&timeout=10"
        self._stack = stack

    async def transport(self, endpoint: str = "shop", *, url: str = "", clock: Clock | None = None) -> RabbitMQTransport:
        """Open a transport on a connection of its own."""
        link = RabbitMQLink(read_address(url or self.url), SystemRandomSource())
        self._stack.push_async_callback(link.close)
        transport = RabbitMQTransport(link, endpoint, clock=clock or SystemClock(), names=self.names)
        self._stack.push_async_callback(transport.close)
        return transport

    @asynccontextmanager
    async def plain(self) -> AsyncIterator[Any]:
        """Open a channel past the library."""
        connection = await aiormq.connect(self._server)
        try:
            yield await connection.channel()
        finally:
            await connection.close()

    async def publish(self, body: bytes, *, exchange: str = "", to: str = "shop", **properties: Any) -> None:
        """Publish as a foreign sender would."""
        async with self.plain() as channel:
            key = "" if exchange else self.names.queue(to)
            await channel.basic_publish(
                body, exchange=exchange, routing_key=key, mandatory=True, properties=spec.Basic.Properties(**properties)
            )


@asynccontextmanager
async def opened(*topologies: Topology, levels: int = 1, tick: int = 1000, server: str = "") -> AsyncIterator[Broker]:
    """Declare these queues under a prefix of their own; delete everything at the end."""
    declared = topologies or (TOPOLOGY,)
    async with AsyncExitStack() as stack:
        broker = Broker(stack, levels=levels, tick=tick, server=server)
        first = await broker.transport()
        stack.push_async_callback(first.remove, declared)
        await first.declare(declared)
        yield broker


class Proxy:
    """Stands before the server; `cut` ends what is connected, `refuse` lets nobody in, `inject` speaks as the server."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.refuses = False
        self.swallows = False  # what the server sends
        self.is_deaf = False  # to what clients send
        self.port = 0
        self.accepted = 0

    @classmethod
    @asynccontextmanager
    async def before(cls, url: str, context: ssl.SSLContext | None = None) -> AsyncIterator["Proxy"]:
        """Open a proxy before the server that a URL names; with a TLS context it speaks TLS to its clients."""
        address = read_address(url)
        host, port = address.place.partition("://")[2].partition("/")[0].split(":")
        proxy = cls(host, int(port))
        server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0, ssl=context)
        proxy.port = server.sockets[0].getsockname()[1]
        try:
            yield proxy
        finally:
            server.close()
            proxy.cut()
            await asyncio.sleep(0)

    def through(self, url: str) -> str:
        """Return the URL that leads through here."""
        host, port = self._upstream
        return url.replace(f"{host}:{port}", f"127.0.0.1:{self.port}")

    def cut(self) -> None:
        """End every connection at once, in the middle of whatever it does."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def inject(self, frames: bytes) -> None:
        """Send this to every client, between two frames of the server's."""
        for writer in self._clients:
            writer.write(frames)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            writer.transport.abort()
            return
        self.accepted += 1
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._upstream)
        both = {writer, upstream_writer}
        self._writers |= both
        self._clients.add(writer)
        await asyncio.gather(self._pump(reader, upstream_writer), self._pump(upstream_reader, writer, back=True))
        self._writers -= both
        self._clients.discard(writer)
        for each in both:
            each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, back: bool = False) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if not (self.swallows if back else self.is_deaf):
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()


def message(name: str = "m1") -> Message:
    """Make a message."""
    return Message(id=name, source="till", type=EVENT, body=b'{"total": 1}')


def commands(*names: str, to: str = "shop", due: int = 0) -> list[Send]:
    """Make commands."""
    return [Send(message=message(name), to=to, due=due) for name in names]


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    """Name deliveries."""
    return [dict(delivery.headers)["ce-id"] for delivery in deliveries]


async def take(transport: RabbitMQTransport, count: int) -> list[Delivery]:
    """Receive this many, in as many calls as it takes."""
    got: list[Delivery] = []
    while len(got) < count and (more := await transport.receive(count - len(got), PATIENCE)):
        got += more
    return got


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of our own for 127.0.0.1, and its key; skips the test where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, and makes the certificate")
    key, made = folder / "key.pem", folder / "cert.pem"
    options = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(["openssl", *options.split(), "-keyout", key, "-out", made], check=True, capture_output=True)
    return made, key


def line(caplog: pytest.LogCaptureFixture, words: str) -> Callable[[], bool]:
    """Look whether something was logged."""
    return lambda: words in events(caplog.records)


async def until(told: Callable[[], bool]) -> None:
    """Wait until something was told."""
    async with asyncio.timeout(PATIENCE):
        while not told():  # noqa: ASYNC110 - a log tells nobody
            await asyncio.sleep(0.01)
