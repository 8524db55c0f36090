"""A proxy before an HTTP service that cuts a client off once, at its next write: before it arrived, or after its answer."""

import asyncio
from asyncio import IncompleteReadError, StreamReader, StreamWriter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from onceonly_conformance.documents_subject import Moment

_LONGEST_HEAD = 1 << 16


class Request(NamedTuple):
    """The head of a request; names of headers in small letters."""

    method: str
    target: str
    headers: Mapping[str, str]


class HttpCutter:
    """Passes requests on, and counts those that are writes; `cut` is what happens to the next of them, once."""

    def __init__(self, host: str, port: int, is_write: Callable[[Request], bool]) -> None:
        self.cut: Moment | None = None
        self.writes = 0
        self._place, self._is_write = (host, port), is_write
        self._serving: dict[asyncio.Task[None], tuple[StreamWriter, StreamWriter]] = {}

    async def serve(self, client: StreamReader, to_client: StreamWriter) -> None:
        """Stand between one connection and the service."""
        task = asyncio.current_task()
        assert task is not None
        server, to_server = await asyncio.open_connection(*self._place)
        self._serving[task] = (to_client, to_server)
        with suppress(OSError, IncompleteReadError):
            while await self._pass_one(client, to_client, server, to_server):
                pass
        for writer in (to_client, to_server):
            writer.close()
        for writer in (to_client, to_server):
            with suppress(OSError):
                await writer.wait_closed()
        del self._serving[task]

    async def end(self) -> None:
        """Close every connection."""
        for writers in self._serving.values():
            for writer in writers:
                writer.transport.abort()
        await asyncio.gather(*self._serving)

    async def _pass_one(
        self, client: StreamReader, to_client: StreamWriter, server: StreamReader, to_server: StreamWriter
    ) -> bool:
        raw = await _head(client)
        request = _request(raw)
        moment: Moment | None = None
        if self._is_write(request):
            self.writes += 1
            moment, self.cut = self.cut, None
        if moment == "before":
            return False
        to_server.write(raw)
        if request.headers.get("expect", "").lower() == "100-continue":
            to_client.write(await _head(server))
        await _copy_body(request.headers, client, to_server)
        answer = await _head(server)
        if moment == "after":
            return False  # done, and the client never hears of it
        to_client.write(answer)
        is_empty = request.method == "HEAD" or answer.split(b" ", 2)[1] in {b"204", b"304"}
        await _copy_body({} if is_empty else _headers(answer), server, to_client)
        return True


@asynccontextmanager
async def cutting_http(url: str, is_write: Callable[[Request], bool]) -> AsyncIterator[tuple[HttpCutter, str]]:
    """Put a cutter before a service; gives it, and its address."""
    place = urlsplit(url)
    cutter = HttpCutter(place.hostname or "", place.port or 80, is_write)
    server = await asyncio.start_server(cutter.serve, "127.0.0.1", 0, limit=_LONGEST_HEAD)
    try:
        yield cutter, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await cutter.end()


async def _head(reader: StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


def _request(raw: bytes) -> Request:
    method, target, _ = raw.decode("latin-1").split(" ", 2)
    return Request(method, target, _headers(raw))


def _headers(raw: bytes) -> dict[str, str]:
    lines = raw.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if line)
    return {name.lower(): value.strip() for name, _, value in pairs}


async def _copy_body(headers: Mapping[str, str], source: StreamReader, target: StreamWriter) -> None:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        await _copy_chunks(source, target)
    else:
        await _copy(int(headers.get("content-length", "0")), source, target)
    await target.drain()


async def _copy_chunks(source: StreamReader, target: StreamWriter) -> None:
    while True:
        line = await source.readuntil(b"\r\n")
        target.write(line)
        size = int(line.split(b";")[0], 16)
        if not size:
            break
        await _copy(size + 2, source, target)
    while line != b"\r\n":  # trailers
        line = await source.readuntil(b"\r\n")
        target.write(line)


async def _copy(size: int, source: StreamReader, target: StreamWriter) -> None:
    while size:
        data = await source.read(min(size, 1 << 16))
        if not data:
            raise IncompleteReadError(b"", size)
        size -= len(data)
        target.write(data)
        await target.drain()
