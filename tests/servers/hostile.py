"""A port of our own before a server: closed, hostile in several ways, or passing everything on."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from urllib.parse import urlsplit

from tests.servers.available import free_port

GARBAGE = b"\x00\xff\x15\x03HTTP/1.1 999 \xfe\xfd\r\n\r\n" + bytes(range(256))
NO_LINGER = struct.pack("ii", 1, 0)


class Behaviour(StrEnum):
    """What happens to a client that connects."""

    RESETS = "resets"
    CLOSES = "closes"
    GARBAGE = "garbage"
    SILENT = "silent"
    REFUSES = "refuses"
    PASSES = "passes"


HOSTILE = tuple(behaviour for behaviour in Behaviour if behaviour is not Behaviour.PASSES)


class Hostile:
    """Listens before a server, in a thread of its own: what it does to a client does not wait for the client's event loop."""

    def __init__(self) -> None:
        self.port = free_port()
        self.connections = 0
        self._to = ("127.0.0.1", 0)
        self._behaviour = Behaviour.REFUSES
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def behave(self, behaviour: Behaviour) -> None:
        """Treat clients like this from now on; whoever is connected is cut off."""
        asyncio.run_coroutine_threadsafe(self._behave(behaviour), self._loop).result()

    @contextmanager
    def listening(self) -> Iterator["Hostile"]:
        """Run its thread; at the end whoever is connected is cut off."""
        self._thread.start()
        try:
            yield self
        finally:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def before(self, url: str) -> str:
        """Return the URL of a server through this port."""
        place = urlsplit(url)
        self._to = (place.hostname or "127.0.0.1", place.port or 0)
        return url.replace(f":{place.port}", f":{self.port}", 1)

    async def _behave(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        for writer in self._writers:
            writer.transport.abort()
        if behaviour is Behaviour.REFUSES:
            server, self._server = self._server, None
            if server is not None:
                server.close()
        elif self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _end(self) -> None:
        await self._behave(Behaviour.REFUSES)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await self._treat(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _treat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._behaviour is Behaviour.RESETS:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        elif self._behaviour is Behaviour.GARBAGE:
            writer.write(GARBAGE)
            await writer.drain()
            await reader.read(1)
        elif self._behaviour is Behaviour.SILENT:
            while await reader.read(1 << 16):
                """Swallow it."""
        elif self._behaviour is Behaviour.PASSES:
            server, to_server = await asyncio.open_connection(*self._to)
            try:
                await asyncio.gather(_pump(reader, to_server), _pump(server, writer))
            finally:
                to_server.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
