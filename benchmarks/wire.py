"""A TCP proxy between a worker and a server: it may hold the answers back for a while, and count what passes."""

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

CHUNK = 1 << 16
Listener = Callable[[bytes], None]


class Ears:
    """What listens to one connection: to what the client says and to what the server says. Deaf unless overridden."""

    def client(self, data: bytes) -> None:
        """Hear the client."""

    def server(self, data: bytes) -> None:
        """Hear the server."""

    def answer(self, data: bytes) -> bytes | None:
        """Return what the proxy itself answers to the client's first words, instead of passing them on."""
        return None


class Proxy:
    """Passes everything on, the server's answers `delay` seconds late."""

    def __init__(self, host: str, port: int, *, delay: float, listen: Callable[[], Ears]) -> None:
        """Stand before a server; `listen` makes ears for each connection."""
        self._place = (host, port)
        self._delay = delay
        self._listen = listen
        self._serving: set[asyncio.Task[None] | None] = set()

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one client and the server."""
        self._serving.add(asyncio.current_task())
        try:
            with suppress(asyncio.CancelledError):  # by `end`; asyncio would print it
                await self._serve(client, to_client)
        finally:
            to_client.close()

    async def _serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(*self._place)
        ears = self._listen()
        passing = [
            asyncio.create_task(self._up(client, to_server, to_client, ears)),
            asyncio.create_task(self._down(server, to_client, ears)),
        ]
        try:
            await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in passing:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
            for writer in (to_client, to_server):
                writer.close()
            for writer in (to_client, to_server):
                with suppress(OSError):
                    await writer.wait_closed()

    async def end(self) -> None:
        """Close every connection."""
        tasks = [task for task in self._serving if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _up(self, client: StreamReader, server: StreamWriter, to_client: StreamWriter, ears: Ears) -> None:
        while data := await client.read(CHUNK):
            if (own := ears.answer(data)) is not None:
                to_client.write(own)
                continue
            ears.client(data)
            server.write(data)

    async def _down(self, server: StreamReader, client: StreamWriter, ears: Ears) -> None:
        loop = asyncio.get_running_loop()
        while data := await server.read(CHUNK):
            ears.server(data)
            if self._delay:
                loop.call_later(self._delay, _write, client, data)  # equal delays keep their order
            else:
                client.write(data)


def _write(writer: StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)


@asynccontextmanager
async def proxied(url: str, *, delay: float = 0.0, listen: Callable[[], Ears] = Ears) -> AsyncIterator[str]:
    """Put a proxy before a server; gives the URL through it. `delay` is in seconds for each round trip."""
    place = urlsplit(url)
    proxy = Proxy(place.hostname or "127.0.0.1", place.port or _PORTS[place.scheme], delay=delay, listen=listen)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    user = place.netloc.rpartition("@")[0]
    try:
        yield place._replace(netloc=f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}").geturl()
    finally:
        server.close()
        await proxy.end()


_PORTS = {"postgresql": 5432, "mariadb": 3306, "amqp": 5672}
