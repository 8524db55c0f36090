"""A response as it is kept: what comes back is what was sent, and what cannot come back is refused."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)

from onceonly.errors import TransactionMisused
from onceonly.integrations import idempotency_responses
from onceonly.integrations.idempotency_responses import complete, decode_response, encode_response
from onceonly.integrations.stored_responses import MAX_KEPT, IdempotencyResponse, _encode
from onceonly.model.errors import PermanentFailure
from tests.fuzzing import Inputs


class Announcing(PlainTextResponse):
    """Has its body, and does something else while it is sent."""

    async def __call__(self, *arguments: Any) -> None:
        """Send."""
        await super().__call__(*arguments)


def test_a_response_comes_back_byte_for_byte() -> None:
    """Headers that come twice, in their order, in no encoding of ours; only the mark is added."""
    response = JSONResponse({"a": "\N{SNOWMAN}"}, 201)
    response.raw_headers += [(b"x-twice", b"1"), (b"x-twice", b"\xff")]
    replayed = decode_response(encode_response(response))
    assert (replayed.status_code, replayed.body) == (201, response.body)
    assert replayed.raw_headers == [*response.raw_headers, (b"idempotent-replayed", b"true")]


@pytest.mark.parametrize("name", [b"Set-Cookie", b"set-cookie", b"Connection", b"Date"])
def test_what_is_of_one_response_only_is_not_kept(name: bytes) -> None:
    """However it is written."""
    response = Response(b"x")
    response.raw_headers.append((name, b"value"))
    assert name.decode() not in decode_response(encode_response(response)).headers


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"garbage",
        _encode(IdempotencyResponse(200, ((b"a\r\nb", b"1"),), b"")),
        _encode(IdempotencyResponse(200, ((b"a", b"1\r\nb: 2"),), b"")),
        _encode(IdempotencyResponse(10**12, (), b"")),
        _encode(IdempotencyResponse(200, ((b"content-length", b"9"),), b"")),
    ],
)
def test_a_stored_response_that_no_server_can_send_is_refused(stored: bytes) -> None:
    """Another program has changed it: a line break in a header would begin a second response."""
    with pytest.raises(PermanentFailure, match="the stored response of this idempotency key cannot be sent"):
        decode_response(stored)


def test_fuzz_stored_responses() -> None:
    """Each is what a server can send, or refused."""
    inputs = Inputs()
    plain = encode_response(JSONResponse({"a": 1}, headers={"x-a": "b"}))
    for _ in inputs.rounds():
        try:
            found = decode_response(inputs.changed(plain))
        except PermanentFailure:
            continue
        assert 200 <= found.status_code <= 599
        assert not [1 for each in found.raw_headers for text in each if b"\n" in text or b"\r" in text]


class Raw:
    """An ASGI application in the place of a response."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages

    async def __call__(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Send the messages as they are."""
        for message in self.messages:
            await send(message)


def start(status: int = 200, **headers: str) -> dict[str, Any]:
    """Return the first event of a response."""
    found = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return {"type": "http.response.start", "status": status, "headers": found}


def body(part: bytes, *, more: bool = False) -> dict[str, Any]:
    """Return a part of a body."""
    return {"type": "http.response.body", "body": part, "more_body": more}


def request() -> Request:
    """Return a request of a server that offers extensions."""
    extensions = {"http.response.pathsend": {}, "http.response.debug": {}}
    return Request({"type": "http", "method": "POST", "path": "/", "headers": [], "extensions": extensions})


async def chunks(count: int = 2) -> AsyncIterator[bytes]:
    """Make a body while it is sent."""
    for _ in range(count):
        await asyncio.sleep(0)
        yield b"ab"


COMPLETE = [
    (lambda: JSONResponse({"a": 1}, 201), 201, b'{"a":1}'),
    (lambda: HTMLResponse("<p>"), 200, b"<p>"),
    (lambda: RedirectResponse("/a", 303), 303, b""),
    (lambda: StreamingResponse(iter("ab")), 200, b"ab"),
    (lambda: StreamingResponse(chunks(), 202), 202, b"abab"),
    (lambda: FileResponse(Path(__file__)), 200, Path(__file__).read_bytes()),
    (lambda: Announcing("text"), 200, b"text"),
    (lambda: Raw(start(201, x_a="b"), body(b"a", more=True), body(b"b")), 201, b"ab"),
    (lambda: Raw({"type": "http.response.debug", "info": {}}, start(), body(b"")), 200, b""),
]


@pytest.mark.parametrize(("make", "status", "content"), COMPLETE)
async def test_what_a_response_sends_is_kept(make: Any, status: int, content: bytes) -> None:
    """Whatever its class does to make it."""
    response = await complete(make(), request())
    kept = decode_response(encode_response(response))
    assert (kept.status_code, kept.body) == (response.status_code, response.body) == (status, content)


async def test_a_background_task_waits_for_the_real_response() -> None:
    """It does not run while the response is recorded, inside the transaction."""
    ran: list[str] = []
    response = await complete(Announcing("text", background=BackgroundTask(ran.append, "x")), request())
    assert (ran, response.background is not None) == ([], True)


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (Raw(start(), body(b"a", more=True)), "ended before its body was complete"),
        (Raw(), "ended before its body"),
        (Raw(body(b"a")), "sent 'http.response.body'"),
        (Raw(start(), body(b"a"), body(b"b")), "sent 'http.response.body'"),
        (Raw(start(), start()), "sent 'http.response.start'"),
        (Raw(start(), {"type": "http.response.pathsend", "path": "/a"}), "sent 'http.response.pathsend'"),
        (Raw(start(content_type="text/event-stream")), "has no end"),
        (StreamingResponse(iter([bytes(MAX_KEPT), b"x"])), "the limit for a stored response"),
    ],
)
async def test_what_is_no_whole_response_is_refused(response: Any, words: str) -> None:
    """Nothing is committed then."""
    with pytest.raises(TransactionMisused, match=words):
        await complete(response, request())


async def test_a_response_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction waits for it."""
    monkeypatch.setattr(idempotency_responses, "RECORD_SECONDS", 0.01)

    async def endless() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    with pytest.raises(TransactionMisused, match="took more than"):
        await complete(StreamingResponse(endless()), request())


@pytest.mark.parametrize(
    ("response", "words"),
    [
        (Raw(start(99), body(b"")), "its status is 99"),
        (Raw(start(x="a\r\nb: c"), body(b"")), "header b'x' has characters"),
        (Raw({"type": "http.response.start", "status": 200, "headers": [(b"a b", b"")]}, body(b"")), "header b'a b' has"),
        (Raw(start(content_length="3"), body(b"ab")), "its Content-Length is b'3', and its body has 2 bytes"),
        (Raw(start(204), body(b"ab")), "it has a body, and status 204 has none"),
    ],
)
async def test_what_no_server_could_send_is_refused(response: Any, words: str) -> None:
    """Every later request with the key would fail."""
    with pytest.raises(TransactionMisused, match=words):
        encode_response(await complete(response, request()))


def test_the_largest_response_is_kept_and_a_larger_one_is_refused() -> None:
    """What would be too much for a database is found before the commit."""
    assert decode_response(encode_response(Response(bytes(MAX_KEPT)))).body == bytes(MAX_KEPT)
    with pytest.raises(
        TransactionMisused, match=f"is {MAX_KEPT + 1:,} bytes long; the limit for a stored response is {MAX_KEPT:,}"
    ):
        encode_response(Response(bytes(MAX_KEPT + 1)))
