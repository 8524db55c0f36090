"""A response as it is kept for a client's key, and given to every retry."""

import msgspec
from starlette.responses import Response

from onceonly.model.errors import TransactionMisused

MAX_KEPT = 1 << 20
"""Bytes of a response's body that can be kept."""
REPLAYED = (b"idempotent-replayed", b"true")
"""The header by which a client can tell a retry's response from the first; nothing else about them differs."""
UNKEPT = frozenset({b"set-cookie", b"date", b"connection", b"keep-alive", b"transfer-encoding", b"upgrade"})
"""Headers that are not kept: a cookie is a secret that would lie in the database, the others are about one connection."""


class IdempotencyResponse(msgspec.Struct, frozen=True):
    """What is stored. New fields get defaults, so that what older versions stored can be read."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(IdempotencyResponse).decode


def encode_response(response: Response) -> bytes:
    """Give a response as it is stored. Raises TransactionMisused for one that cannot be: it streams, or is too large."""
    if type(response).__call__ is not Response.__call__:
        raise TransactionMisused(
            f"a {type(response).__name__} produces its body after the transaction has ended, so it cannot be stored for a"
            " repeated request: return a response with a complete body, or use another route class"
        )
    body = bytes(response.body)
    if len(body) > MAX_KEPT:
        raise TransactionMisused(
            f"the response is {len(body):,} bytes long; the limit for a stored response is {MAX_KEPT:,}. Return a URL"
        )
    headers = tuple((name, value) for name, value in response.raw_headers if name.lower() not in UNKEPT)
    return _encode(IdempotencyResponse(response.status_code, headers, body))


def decode_response(stored: bytes) -> Response:
    """Give the response that was stored, marked as replayed."""
    kept = _decode(stored)
    response = Response(kept.body, kept.status)
    response.raw_headers = [*kept.headers, REPLAYED]
    return response
