"""A TCP proxy before a document database that cuts one write: before the server gets it, or after it has applied it."""

import asyncio
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple


class Secured(NamedTuple):
    """TLS on both sides of the proxy."""

    serving: ssl.SSLContext
    asking: ssl.SSLContext


class WriteCutter:
    """Passes everything on, but cuts the connection of the first write it is armed for; what comes later gets through.

    `is_write` knows a write by its bytes.
    """

    def __init__(self, place: tuple[str, int], is_write: Callable[[bytes], bool], secured: Secured | None = None) -> None:
        self.armed = ""
        self.cuts = 0
        self._place = place
        self._is_write = is_write
        self._secured = secured
        self._serving: set[asyncio.Task[None] | None] = set()
        self._writers: set[StreamWriter] = set()

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        self._serving.add(asyncio.current_task())
        self._writers.add(to_client)
        server, to_server = await asyncio.open_connection(*self._place, ssl=self._secured.asking if self._secured else None)
        is_cut = asyncio.Event()
        passing = [
            asyncio.create_task(self._up(client, to_server, is_cut)),
            asyncio.create_task(self._down(server, to_client, is_cut)),
        ]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for each in passing:
            each.cancel()
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
        tail = b""
        while data := await client.read(1 << 16):
            tail = tail[-200:] + data
            if self.armed and self._is_write(tail):
                moment, self.armed = self.armed, ""
                self.cuts += 1
                if moment == "before":
                    return
                is_cut.set()
            server.write(data)
            await server.drain()

    async def _down(self, server: StreamReader, client: StreamWriter, is_cut: asyncio.Event) -> None:
        while data := await server.read(1 << 16):
            if is_cut.is_set():
                return  # the server has answered; the client never hears of it
            client.write(data)
            await client.drain()


@asynccontextmanager
async def cutting_writes(
    place: tuple[str, int], is_write: Callable[[bytes], bool], secured: Secured | None = None
) -> AsyncIterator[tuple[WriteCutter, int]]:
    """Put a cutter before a server; gives it, and the port it listens on."""
    cutter = WriteCutter(place, is_write, secured)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0, ssl=secured.serving if secured else None)
    try:
        yield cutter, int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await cutter.end()
