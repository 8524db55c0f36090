"""A response as it is kept: what comes back is what was sent, and what cannot come back is refused."""

from pathlib import Path
from typing import Any

import pytest
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse

from onceonly.errors import TransactionMisused
from onceonly.integrations.idempotency_responses import MAX_KEPT, decode_response, encode_response


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


@pytest.mark.parametrize("response", [StreamingResponse(iter("ab")), FileResponse(Path(__file__)), Announcing("text")])
def test_a_response_that_makes_its_body_while_it_is_sent_is_refused(response: Response) -> None:
    """With words that say what to do."""
    with pytest.raises(
        TransactionMisused,
        match=rf"{type(response).__name__} produces its body after the transaction has ended.*another route class",
    ):
        encode_response(response)


def test_the_largest_response_is_kept_and_a_larger_one_is_refused() -> None:
    """What would be too much for a database is found before the commit."""
    assert decode_response(encode_response(Response(bytes(MAX_KEPT)))).body == bytes(MAX_KEPT)
    with pytest.raises(
        TransactionMisused, match=f"is {MAX_KEPT + 1:,} bytes long; the limit for a stored response is {MAX_KEPT:,}"
    ):
        encode_response(Response(bytes(MAX_KEPT + 1)))
