"""A response as it is kept for a client's key, and given to every retry.

A response of a class with its own `__call__` makes its body while it is sent. It is sent to a recorder, inside the transaction,
and what it sent is kept.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from onceonly.integrations.stored_responses import (
    MAX_KEPT,
    RECORD_SECONDS,
    IdempotencyResponse,
    decoded,
    encoded,
    endless,
    too_large,
    too_slow,
)
from onceonly.model.errors import TransactionMisused


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
        raise too_slow(name) from error
    finally:
        if background is not None:
            response.background = background
    recorded = recorder.response()
    recorded.background = background
    return recorded


def encode_response(response: Response) -> bytes:
    """Return a complete response as it is stored. Raises TransactionMisused for one that could not be sent, or is too large."""
    return encoded(response.status_code, response.raw_headers, bytes(response.body))


def decode_response(stored: bytes) -> Response:
    """Return the response that was stored, marked as replayed. Raises PermanentFailure for one that another program changed."""
    return response_of(decoded(stored))


def response_of(stored: IdempotencyResponse) -> Response:
    return _response(stored.status, list(stored.headers), stored.body)


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
                raise endless(self._name)
        elif kind == "http.response.body" and self._start is not None and not self._is_complete:
            self._body += message.get("body", b"")
            if len(self._body) > MAX_KEPT:
                raise too_large(len(self._body))
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
