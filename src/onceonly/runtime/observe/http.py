"""A few lines of HTTP: short answers to GET and HEAD, for whoever watches a process. Strict, and never for long.

One request a connection. What is not understood is refused, what takes too long or is too large is cut off, and so are
connections beyond a number: this is not a web server.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import NamedTuple

from onceonly.model.errors import SetupError
from onceonly.model.escaping import to_json
from onceonly.systems.urls import Address

MOST_BYTES = 8192
"""Bytes that a request may have, all its headers included."""
MOST_CONNECTIONS = 32
REQUEST_SECONDS = 5.0
"""Seconds for a request to come, and for its answer to go."""

_REQUEST = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~\x80-\xff]*")
_END = b"\r\n\r\n"


class TextBody(NamedTuple):
    content_type: str
    content: bytes


class HealthReply(NamedTuple):
    """An answer: its status, and what its body says in JSON, or a `TextBody`."""

    status: HTTPStatus
    body: object


Pages = Mapping[str, Callable[[], HealthReply | Awaitable[HealthReply]]]
"""What is answered, by path. Called in the event loop. One that waits has less than `REQUEST_SECONDS` for it."""


@asynccontextmanager
async def serving(address: Address, pages: Pages) -> AsyncIterator[Address]:
    """Answer at this address as long as the block lasts. Yields the address, with the port that the system chose.

    Raises SetupError if the address cannot be used.
    """
    site = _Site(pages)
    try:
        server = await asyncio.start_server(site.answer, address.host, address.port, limit=MOST_BYTES)
    except OSError as error:
        raise SetupError(
            f"cannot listen at {address} for health checks: {error.strerror or error}. Use another address"
        ) from error
    try:
        yield Address(address.host, server.sockets[0].getsockname()[1])
    finally:  # does not wait for open connections
        server.close()
        site.cut_off()


class _Site:
    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._open: set[asyncio.StreamWriter] = set()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= MOST_CONNECTIONS:
            writer.transport.abort()
            return
        self._open.add(writer)
        try:
            with suppress(TimeoutError, OSError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._converse(reader, writer)
        finally:
            self._open.discard(writer)
            writer.transport.abort()  # what was to be flushed is

    def cut_off(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await reader.readuntil(_END)
        except asyncio.LimitOverrunError:
            method, reply = b"", _problem(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return  # it sent nothing: a check whether the port is open
            method, reply = b"", _problem(HTTPStatus.BAD_REQUEST)
        else:
            method, reply = await self._route(request)
        writer.write(_written(reply, with_body=method != b"HEAD"))
        await writer.drain()
        writer.write_eof()
        with suppress(OSError):
            while await reader.read(MOST_BYTES):  # until the other side has read the answer, and closes
                pass

    async def _route(self, request: bytes) -> tuple[bytes, HealthReply]:
        line, *headers = request[: -len(_END)].split(b"\r\n")
        found = _REQUEST.fullmatch(line)
        if found is None or not all(_HEADER.fullmatch(header) for header in headers):
            return b"", _problem(HTTPStatus.BAD_REQUEST)
        method, path = found[1], found[2].partition(b"?")[0].decode()
        if method not in (b"GET", b"HEAD"):
            return method, _problem(HTTPStatus.METHOD_NOT_ALLOWED)
        page = self._pages.get(path)
        if page is None:
            return method, _problem(HTTPStatus.NOT_FOUND, there_is=sorted(self._pages))
        reply = page()
        return method, reply if isinstance(reply, HealthReply) else await reply


def _problem(status: HTTPStatus, **more: object) -> HealthReply:
    return HealthReply(status, {"error": status.phrase, **more})


def _written(reply: HealthReply, *, with_body: bool) -> bytes:
    if isinstance(reply.body, TextBody):
        content_type, body = reply.body
    else:
        content_type, body = "application/json", to_json(reply.body, indent=2).encode() + b"\n"
    allow = "allow: GET, HEAD\r\n" if reply.status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    head = (
        f"HTTP/1.1 {reply.status.value} {reply.status.phrase}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\ncache-control: no-store\r\n{allow}connection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
