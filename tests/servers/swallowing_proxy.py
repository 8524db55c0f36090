"""A TCP proxy that stops passing bytes on without closing anything, as a firewall that forgets a connection does."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url

from tests.servers.proxy import Proxy, listening


class Swallower(Proxy):
    """Passes everything on, until it is to swallow: `everything`, or from now on a connection whose client says `about`.

    `down` has what the client says reach the server, and swallows the answers alone. `swallowed` is set with the first bytes
    that are gone. A connection that was swallowed once stays so.
    """

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port))
        self.everything = False
        self.about = b""
        self.down = False
        self.swallowed = asyncio.Event()

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        self._serving.add(asyncio.current_task())
        self._writers.add(to_client)
        server, to_server = await asyncio.open_connection(*self._place)
        gone = asyncio.Event()
        passing = [
            asyncio.create_task(self._pass(client, to_server, gone, is_up=True)),
            asyncio.create_task(self._pass(server, to_client, gone, is_up=False)),
        ]
        await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)
        for writer in (to_client, to_server):
            writer.transport.abort()

    async def _pass(self, reader: StreamReader, writer: StreamWriter, gone: asyncio.Event, *, is_up: bool) -> None:
        while data := await reader.read(1 << 16):
            if self.everything or (is_up and self.about and self.about in data):
                gone.set()
                self.swallowed.set()
            if not gone.is_set() or (is_up and self.down):
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def swallowing(url: str) -> AsyncIterator[tuple[Swallower, str]]:
    """Put one before a server; gives it, and the URL through it."""
    place = urlsplit(url)
    async with listening(Swallower(place.hostname or "", place.port or 5432)) as (swallower, port):
        if place.scheme.startswith("amqp"):
            yield swallower, url.replace(f":{place.port}", f":{port}") if place.port else url
        else:
            yield swallower, make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
