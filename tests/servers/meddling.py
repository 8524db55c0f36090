"""A TCP proxy that meddles: cuts, delays, swallows (a blackhole), and half-closes. It builds on the one that swallows."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from tests.servers.swallowing import Swallower


class Meddler(Swallower):
    """Passes everything on, until it is told otherwise."""

    def __init__(self, place: tuple[str, int]) -> None:
        super().__init__(place)
        self._clients: set[StreamWriter] = set()
        self.delay = 0.0
        """Seconds that each piece of data waits on its way."""
        self.refuses = False
        """Whether new connections are reset at once."""

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        if self.refuses:
            to_client.transport.abort()
            return
        self._clients.add(to_client)
        try:
            await super().serve(_Late(client, self), to_client)
        finally:
            self._clients.discard(to_client)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in tuple(self._clients):
            writer.transport.abort()

    def half_close(self) -> None:
        """Tell every client that the server says no more, and go on listening."""
        for writer in tuple(self._clients):
            with suppress(OSError, RuntimeError):
                writer.write_eof()


class _Late(StreamReader):
    """What a client says, later."""

    def __init__(self, client: StreamReader, meddler: Meddler) -> None:
        super().__init__()
        self._client, self._meddler = client, meddler

    async def read(self, n: int = -1) -> bytes:
        """Read, and hold it back."""
        data = await self._client.read(n)
        if self._meddler.delay:
            await asyncio.sleep(self._meddler.delay)
        return data


@asynccontextmanager
async def meddling(url: str) -> AsyncIterator[tuple[Meddler, str]]:
    """Put a meddler before a server; returns it, and the URL through it."""
    place = urlsplit(url)
    meddler = Meddler((place.hostname or "", place.port or 0))
    server = await asyncio.start_server(meddler.serve, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    try:
        yield meddler, url.replace(f"{place.hostname}:{place.port}", f"127.0.0.1:{port}")
    finally:
        server.close()
        await meddler.end()
