"""A TCP proxy that passes everything on, until it cuts a connection: before the server gets something, or after its answer."""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

Inspector = Callable[[bytes], str]
"""Decides about bytes of a client: `before` or `after` cuts the connection there, `hold` delays them, empty passes them on."""


class Secured(NamedTuple):
    """TLS on both sides of the proxy."""

    serving: ssl.SSLContext
    asking: ssl.SSLContext


class Proxy:
    """Passes bytes between clients and one server. A subclass that cuts connections overrides `inspector`."""

    def __init__(self, place: tuple[str, int], secured: Secured | None = None) -> None:
        self._place = place
        self.secured = secured
        self._serving: set[asyncio.Task[None] | None] = set()
        self._writers: set[StreamWriter] = set()

    def inspector(self) -> Inspector:
        """Return what inspects the bytes of one connection."""
        return lambda _: ""

    async def hold(self) -> None:
        """Wait until what is held up may go on."""

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        self._serving.add(asyncio.current_task())
        self._writers.add(to_client)
        server, to_server = await asyncio.open_connection(*self._place, ssl=self.secured.asking if self.secured else None)
        is_cut = asyncio.Event()
        passing = [
            asyncio.create_task(self._up(client, to_server, is_cut)),
            asyncio.create_task(self._down(server, to_client, is_cut)),
        ]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        for writer in (to_client, to_server):
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def end(self) -> None:
        """Close every connection."""
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.gather(*(task for task in self._serving if task is not None))

    async def _up(self, client: StreamReader, server: StreamWriter, is_cut: asyncio.Event) -> None:
        inspect = self.inspector()
        while data := await client.read(1 << 16):
            moment = inspect(data)
            if moment == "before":
                return
            if moment == "hold":
                await self.hold()
            elif moment:
                is_cut.set()
            server.write(data)
            await server.drain()

    async def _down(self, server: StreamReader, client: StreamWriter, is_cut: asyncio.Event) -> None:
        while data := await server.read(1 << 16):
            if is_cut.is_set():
                return  # the server has answered; the client never hears of it
            client.write(data)
            await client.drain()


SomeProxy = TypeVar("SomeProxy", bound=Proxy)


@asynccontextmanager
async def listening(proxy: SomeProxy) -> AsyncIterator[tuple[SomeProxy, int]]:
    """Listen on a free port; gives the proxy and the port."""
    serving = proxy.secured.serving if proxy.secured else None
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, ssl=serving)
    try:
        yield proxy, int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await proxy.end()
