"""A response as it is kept for a client's key, and given to every retry.

A response of a class with its own `__call__` makes its body while it is sent. It is sent to a recorder, inside the transaction,
and what it sent is kept.
"""

import asyncio
import re
from collections.abc import MutableMapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import PermanentFailure, TransactionMisused

MAX_KEPT = 1 << 20
"""Bytes of a response's body that can be kept."""
RECORD_SECONDS = 10.0
"""Seconds that a response may take to make its body, because the transaction waits for it."""
REPLAYED = (b"idempotent-replayed", b"true")
"""The header by which a client can tell a retry's response from the first; nothing else about them differs."""
UNKEPT = frozenset({b"set-cookie", b"date", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
"""Headers that are not kept: a cookie is a secret that would lie in the database, the others are about one connection."""

_WITHOUT_BODY = frozenset({204, 205, 304})
_is_name = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_is_value = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch


class IdempotencyResponse(msgspec.Struct, frozen=True):
    """What is stored. New fields get defaults, so that what older versions stored can be read."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(IdempotencyResponse).decode


async def complete(response: Any, request: Request) -> Response:
    """Return a response with its whole body: itself, or what it sends. Its background task runs when the result was sent.

    `response` is Starlette's, or any ASGI application. Raises TransactionMisused for one that is too large, takes too long, or
    sends something else than a response.
    """
    if isinstance(response, Response) and type(response).__call__ is Response.__call__:
        return response
    background, name = getattr(response, "background", None), type(response).__name__
    recorder = _Recorder(name)
    if background is not None:
        response.background = None
    try:
        async with asyncio.timeout(RECORD_SECONDS):
            await response(_scope(request), _nothing, recorder.send)
    except TimeoutError as error:
        raise TransactionMisused(
            f"a {name} took more than {RECORD_SECONDS:g} s to make its body, and the transaction waits for it: return a "
            "response with a complete body, or use another route class"
        ) from error
    finally:
        if background is not None:
            response.background = background
    recorded = recorder.response()
    recorded.background = background
    return recorded


def encode_response(response: Response) -> bytes:
    """Return a complete response as it is stored. Raises TransactionMisused for one that could not be sent, or is too large."""
    body = bytes(response.body)
    if problem := _problem(response.status_code, response.raw_headers, body):
        raise TransactionMisused(f"the response cannot be stored, because no server could send it: {problem}")
    if len(body) > MAX_KEPT:
        raise _too_large(len(body))
    headers = tuple((name, value) for name, value in response.raw_headers if name.lower() not in UNKEPT)
    return _encode(IdempotencyResponse(response.status_code, headers, body))


def decode_response(stored: bytes) -> Response:
    """Return the response that was stored, marked as replayed. Raises PermanentFailure for one that another program changed."""
    try:
        kept = _decode(stored)
    except UNDECODABLE as error:
        raise PermanentFailure(f"the stored response of this idempotency key cannot be sent: {error}") from error
    if problem := _problem(kept.status, kept.headers, kept.body):
        raise PermanentFailure(f"the stored response of this idempotency key cannot be sent: {problem}")
    return _response(kept.status, [*kept.headers, REPLAYED], kept.body)


class _Recorder:
    def __init__(self, name: str) -> None:
        self._name = name
        self._start: MutableMapping[str, Any] | None = None
        self._body = bytearray()
        self._is_complete = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Take one event of ASGI. Raises TransactionMisused for one that belongs to no response with a body."""
        kind = message["type"]
        if kind == "http.response.debug":
            return  # what a template was made of, for test clients
        if kind == "http.response.start" and self._start is None:
            self._start = message
            if any(name.lower() == b"content-type" and b"text/event-stream" in value for name, value in message["headers"]):
                raise TransactionMisused(f"a {self._name} of text/event-stream has no end, so it cannot be stored")
        elif kind == "http.response.body" and self._start is not None and not self._is_complete:
            self._body += message.get("body", b"")
            if len(self._body) > MAX_KEPT:
                raise _too_large(len(self._body))
            self._is_complete = not message.get("more_body", False)
        else:
            raise TransactionMisused(f"a {self._name} sent {kind!r}, which cannot be stored for a repeated request here")

    def response(self) -> Response:
        """Return what was sent. Raises TransactionMisused if that is not a whole response."""
        if self._start is None or not self._is_complete:
            raise TransactionMisused(f"a {self._name} ended before its body was complete")
        headers = [(bytes(name), bytes(value)) for name, value in self._start.get("headers", ())]
        return _response(self._start["status"], headers, bytes(self._body))


def _response(status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> Response:
    response = Response(body, status)
    response.raw_headers = headers
    return response


def _scope(request: Request) -> MutableMapping[str, Any]:
    """Return a scope in which a response sends all of its body itself, in this task: of ASGI 2.4, without extensions."""
    return {**request.scope, "extensions": {}, "asgi": {"version": "3.0", "spec_version": "2.4"}}


async def _nothing() -> MutableMapping[str, Any]:
    """Wait for an event that does not come: the request was read, and its client cannot be seen from here."""
    await asyncio.Event().wait()
    raise AssertionError


def _too_large(size: int) -> TransactionMisused:
    return TransactionMisused(
        f"the response is {size:,} bytes long; the limit for a stored response is {MAX_KEPT:,}. Return a URL"
    )


def _problem(status: object, headers: Any, body: bytes) -> str:
    if not isinstance(status, int) or not 200 <= status <= 599:  # noqa: PLR2004 - what can be a final response
        return f"its status is {status!r}, not a number from 200 to 599"
    for name, value in headers:
        if not _is_name(name) or not _is_value(value):
            return f"its header {name[:80]!r} has characters that no header can have"
    lengths = {value for name, value in headers if name.lower() == b"content-length"}
    if lengths - {str(len(body)).encode()} and status not in _WITHOUT_BODY:
        return f"its Content-Length is {', '.join(map(repr, sorted(lengths)))[:80]}, and its body has {len(body):,} bytes"
    if body and status in _WITHOUT_BODY:
        return f"it has a body, and status {status} has none"
    return ""
