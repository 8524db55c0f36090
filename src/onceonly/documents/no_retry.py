"""Keeping aiohttp from sending a write again.

When a connection is closed before an answer came, aiohttp sends PUT and DELETE again on its own, below every retry setting of
the libraries that use it, and without a setting of its own. A write with a condition that was applied the first time then
answers "another version" to itself.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.request import getproxies

from aiohttp import ClientHandlerType, ClientRequest, ClientResponse, ClientSession, DummyCookieJar

_READS = frozenset({"GET", "HEAD"})


class SentTwiceError(Exception):
    """A write was about to be sent again."""


_sending: ContextVar[list[str] | None] = ContextVar("onceonly_sending", default=None)


@contextmanager
def sent_once() -> Iterator[list[str]]:
    """Allow the enclosed block one request, through sessions that have `refuse_second`; returns what was sent.

    A read may be sent again. Raises SentTwiceError at a second write.
    """
    sent: list[str] = []
    token = _sending.set(sent)
    try:
        yield sent
    finally:
        _sending.reset(token)


async def refuse_second(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """The middleware of a session, which aiohttp calls for each time it sends."""
    sent = _sending.get()
    if sent is not None:
        if sent and request.method not in _READS:
            raise SentTwiceError(f"{request.method} got no answer, and it must not be sent twice")
        sent.append(request.method)
    return await handler(request)


def session() -> ClientSession:
    """Make a session as azure-core makes its own, but that it sends no write twice inside `sent_once`.

    Without a proxy there is nothing in the environment to be asked; it would take two threads for each request.
    """
    return ClientSession(
        trust_env=bool(getproxies()), cookie_jar=DummyCookieJar(), auto_decompress=False, middlewares=(refuse_second,)
    )
