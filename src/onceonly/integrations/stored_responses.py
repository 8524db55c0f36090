"""A response as it is kept for a client's key, and given to every retry, whichever framework has made it."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

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


def encoded(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    """Return a complete response as it is stored. Raises TransactionMisused for one that could not be sent, or is too large."""
    given = tuple(headers)
    if problem := _problem(status, given, body):
        raise TransactionMisused(f"the response cannot be stored, because no server could send it: {problem}")
    if len(body) > MAX_KEPT:
        raise too_large(len(body))
    return _encode(IdempotencyResponse(status, tuple(each for each in given if each[0].lower() not in UNKEPT), body))


def decoded(stored: bytes) -> IdempotencyResponse:
    """Return the response that was stored, marked as replayed. Raises PermanentFailure for one that another program changed."""
    try:
        kept = _decode(stored)
    except UNDECODABLE as error:
        raise PermanentFailure(f"the stored response of this idempotency key cannot be sent: {error}") from error
    if problem := _problem(kept.status, kept.headers, kept.body):
        raise PermanentFailure(f"the stored response of this idempotency key cannot be sent: {problem}")
    return IdempotencyResponse(kept.status, (*kept.headers, REPLAYED), kept.body)


def too_large(size: int) -> TransactionMisused:
    return TransactionMisused(
        f"the response is {size:,} bytes long; the limit for a stored response is {MAX_KEPT:,}. Return a URL"
    )


def too_slow(name: str) -> TransactionMisused:
    return TransactionMisused(
        f"a {name} took more than {RECORD_SECONDS:g} s to make its body, and the transaction waits for it: return a "
        "response with a complete body, or serve it without idempotency keys"
    )


def endless(name: str) -> TransactionMisused:
    return TransactionMisused(f"a {name} of text/event-stream has no end, so it cannot be stored")


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
