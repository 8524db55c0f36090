"""A server of the tests that gives the answers it is told to, as RavenDB writes them."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from onceonly.adapters.ravendb.documents import RavenDBDocuments, open_documents
from onceonly_conformance.clock import ManualClock
from tests.servers.available import free_port

VERSION = "4.1.0.41001"


class Reply(NamedTuple):
    """An answer: its status, its body as bytes or as JSON, None for an empty one, and further headers."""

    status: int
    content: object = None
    headers: Mapping[str, str] = {}

    @classmethod
    def error(cls, status: int, kind: str) -> "Reply":
        """Return an answer as RavenDB reports an exception."""
        return cls(status, {"Url": "/", "Type": kind, "Message": f"a message of {kind}\nmore", "Error": "at line 1"})


class Request(NamedTuple):
    """What was asked."""

    method: str
    path: str
    options: Mapping[str, str]
    condition: str | None
    content: Any


Answers = Callable[[Request], Reply | None]


@asynccontextmanager
async def scripted(
    answers: Answers, *, tls: SSLContext | None = None, version: str = VERSION
) -> AsyncIterator[tuple[int, list[Request]]]:
    """Answer each request; without an answer the connection is closed. Gives the port, and what was asked."""
    asked: list[Request] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        body = await request.read()
        content = msgspec.json.decode(body) if body else None
        found = Request(request.method, request.path, dict(request.query), request.headers.get("If-Match"), content)
        asked.append(found)
        reply = answers(found)
        if reply is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        own = {"Raven-Server-Version": version, "Content-Type": "application/json"} if version else {}
        empty = b"" if reply.content is None else msgspec.json.encode(reply.content)
        text = reply.content if isinstance(reply.content, bytes) else empty
        return web.Response(body=text, status=reply.status, headers={**own, **reply.headers})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
    try:
        yield port, asked
    finally:
        await runner.cleanup()


@asynccontextmanager
async def opened(answers: Answers, **options: object) -> AsyncIterator[tuple[RavenDBDocuments, list[Request]]]:
    """Open documents on such a server, with these options of the URL; gives them, and what was asked."""
    async with scripted(answers) as (port, asked), open_documents(url_of(port, **options), clock=ManualClock()) as documents:
        yield documents, asked


def url_of(port: int, **options: object) -> str:
    """Return the URL of a database there."""
    return f"ravendb://127.0.0.1:{port}/shop?" + "&".join(f"{name}={value}" for name, value in options.items())
