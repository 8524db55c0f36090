"""A server that is away until a test lets it come: a port on which nobody listens, and later one that passes everything on."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

from tests.servers.available import free_port


class Door:
    """A port of our own before a server. Closed, nobody listens there; `opened` lets clients through."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname or "127.0.0.1", parts.port or 0)
        self.port = free_port()
        self.url = url.replace(f":{parts.port}", f":{self.port}")

    def lead_to(self, url: str) -> None:
        """Lead to another server from the next connection on, as an address does that moves in a fail-over."""
        parts = urlsplit(url)
        self._to = (parts.hostname or "127.0.0.1", parts.port or 0)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let clients through, in a thread of its own; cuts them off at the end."""
        loop, listening = asyncio.new_event_loop(), threading.Event()
        stop = asyncio.Event()
        thread = threading.Thread(target=lambda: loop.run_until_complete(self._serve(listening, stop)))
        thread.start()
        listening.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def _serve(self, listening: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        listening.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_connection(*self._to)
        try:
            with suppress(OSError):
                await asyncio.gather(_pump(reader, downstream), _pump(upstream, writer))
        except asyncio.CancelledError:
            return
        finally:
            for each in (writer, downstream):
                each.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()
