"""A TCP proxy that swallows bytes: connections stay open, and nothing that is sent on them arrives."""

import asyncio
from asyncio import Event, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

from sqlalchemy.engine import make_url


class Swallower:
    """Passes everything on. While it swallows, `up` loses the bytes of clients, `down` those of the server.

    `swallowed` is set with the first bytes that are lost.
    """

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[StreamWriter] = set()
        self._up: set[StreamWriter] = set()
        self._down: set[StreamWriter] = set()
        self._gap_up: set[StreamWriter] = set()
        self._gap_down: set[StreamWriter] = set()
        self._also_new = (False, False)
        self._breaking: bytes | None = None
        self._breaks_up = True
        self._broken: set[StreamWriter] = set()
        self.swallowed = Event()

    def swallow(self, *, up: bool = True, down: bool = True, new: bool = True) -> None:
        """Swallow what is said from now on; with `new` on connections that are made from now on as well."""
        self.swallowed.clear()
        self._up = set(self._open) if up else set()
        self._down = set(self._open) if down else set()
        self._also_new = (up and new, down and new)

    def pass_on(self, *, after_gaps: bool = True) -> None:
        """Pass on what is said from now on; what was swallowed is lost.

        Without `after_gaps`, nothing more is passed on in a direction in which a connection lost something. This is how TCP
        behaves: it never delivers bytes after a gap.
        """
        self._up = set() if after_gaps else self._up & self._gap_up
        self._down = set() if after_gaps else self._down & self._gap_down
        self._also_new = (False, False)

    def break_connections(self, about: bytes = b"", *, up: bool = True) -> None:
        """From now on, break each connection that carries bytes, or whose client sends `about`.

        A broken connection loses everything and stays broken, as when a firewall forgets it. Without `up`, its client's bytes
        still reach the server.
        """
        self._breaking, self._breaks_up = about, up

    def keep_connections(self) -> None:
        """Break no more connections."""
        self._breaking = None

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._open.add(to_client)
        for swallowing, also in zip((self._up, self._down), self._also_new, strict=True):
            if also:
                swallowing.add(to_client)
        writers, passing = [to_client], list[asyncio.Task[None]]()
        try:
            server, to_server = await asyncio.open_connection(*self._place)
            writers.append(to_server)
            up = self._pass(client, to_server, lambda data: self._is_lost_up(to_client, data))
            down = self._pass(server, to_client, lambda _: self._is_lost_down(to_client))
            passing += [asyncio.create_task(up), asyncio.create_task(down)]
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        except (asyncio.CancelledError, OSError):
            return  # by `end`, or the server is away
        finally:
            for writer in writers:
                writer.transport.abort()  # before anything is awaited: `end` may cancel that
            for direction in passing:
                direction.cancel()
            for each in (self._open, self._gap_up, self._gap_down, self._broken):
                each.discard(to_client)
            try:
                await asyncio.gather(*passing, return_exceptions=True)
            finally:
                self._tasks.discard(task)

    async def end(self) -> None:
        """Close every connection."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _is_lost_up(self, client: StreamWriter, data: bytes) -> bool:
        if self._breaking is not None and self._breaking in data:
            self._break(client)
        return _is_lost(client, self._up, self._gap_up) or (client in self._broken and self._breaks_up)

    def _is_lost_down(self, client: StreamWriter) -> bool:
        if self._breaking == b"":
            self._break(client)
        return _is_lost(client, self._down, self._gap_down) or client in self._broken

    def _break(self, client: StreamWriter) -> None:
        self._broken.add(client)
        self.swallowed.set()

    async def _pass(self, reader: StreamReader, writer: StreamWriter, is_lost: Callable[[bytes], bool]) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if is_lost(data):
                    self.swallowed.set()
                else:
                    writer.write(data)
                    await writer.drain()


def _is_lost(client: StreamWriter, swallowing: set[StreamWriter], gaps: set[StreamWriter]) -> bool:
    """Return whether data that was read just now is swallowed, and note the gap."""
    if client in swallowing:
        gaps.add(client)
    return client in swallowing


@asynccontextmanager
async def swallowing(url: str) -> AsyncIterator[tuple[Swallower, str]]:
    """Put a proxy that swallows bytes before a server; gives it, and the URL through it."""
    place = urlsplit(url)
    swallower = Swallower((place.hostname or "", place.port or 0))
    server = await asyncio.start_server(swallower.serve, "127.0.0.1", 0)
    port = int(server.sockets[0].getsockname()[1])
    try:
        if place.scheme.startswith("amqp"):
            yield swallower, url.replace(f":{place.port}", f":{port}")
        else:
            yield swallower, make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
    finally:
        server.close()
        await swallower.end()
