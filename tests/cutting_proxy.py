"""A TCP proxy that cuts a connection at its COMMIT, before the server gets it or after it has answered, or holds it up."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url

COMMITS = (b"COMMIT\0", b"\x03COMMIT", b"; COMMIT")
"""How a COMMIT looks on its way to PostgreSQL, to MariaDB, and to both behind another statement."""
READING = b"READ ONLY"
"""What a transaction says at its begin whose COMMIT is of no interest."""


class Cutter:
    """Passes everything on, until it is told to cut the next COMMIT `before` or `after` the server has done it.

    `decide` says it of each COMMIT anew; by itself it says what `cut` is. When it says `hold`, `holds` is set, and the COMMIT
    goes on once `may_go` is.
    """

    def __init__(self, host: str, port: int) -> None:
        self.cut = ""
        self.decide: Callable[[], str] = lambda: self.cut
        self.holds, self.may_go = asyncio.Event(), asyncio.Event()
        self._place = (host, port)
        self._serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        self._serving.add(asyncio.current_task())
        server, to_server = await asyncio.open_connection(*self._place)
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
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def end(self) -> None:
        """Wait until every connection is closed."""
        await asyncio.gather(*(task for task in self._serving if task is not None))

    async def _up(self, client: StreamReader, server: StreamWriter, is_cut: asyncio.Event) -> None:
        reads = False
        while data := await client.read(1 << 16):
            is_commit = any(commit in data for commit in COMMITS)
            moment = self.decide() if is_commit and not reads else ""
            reads = READING in data or (reads and not is_commit)
            if moment == "before":
                return
            if moment == "hold":
                self.holds.set()
                await self.may_go.wait()
            elif moment:
                is_cut.set()
            server.write(data)
            await server.drain()

    async def _down(self, server: StreamReader, client: StreamWriter, is_cut: asyncio.Event) -> None:
        while data := await server.read(1 << 16):
            if is_cut.is_set():
                return  # the server has answered COMMIT; the client never hears of it
            client.write(data)
            await client.drain()


@asynccontextmanager
async def cutting(url: str, kind: type[Cutter] = Cutter) -> AsyncIterator[tuple[Cutter, str]]:
    """Put a cutter before a database; gives it, and the URL through it."""
    place = urlsplit(url)
    cutter = kind(place.hostname or "", place.port or 5432)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    through = make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    try:
        yield cutter, through
    finally:
        server.close()
        await cutter.end()
