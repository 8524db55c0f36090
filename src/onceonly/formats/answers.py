"""What is kept for a client's key: the answer, and what tells one request from another. Bytes stay bytes, all else is JSON."""

from typing import Any

import msgspec

from onceonly.formats.bodies import BodyError, encode_body, is_anonymous, is_supported
from onceonly.formats.body_differences import untyped_difference
from onceonly.model.identity import hash_of

_BYTES, _JSON = b"\x00", b"\x01"
_encode = msgspec.json.Encoder(order="deterministic").encode


def encode_answer(answer: object) -> bytes | None:
    """Give an answer as it is stored; None stays None. Raises BodyError for what clients would get as something else.

    Clients get JSON's own types: an object of a class is a dict for them.
    """
    if answer is None:
        return None
    kind, encoded = _written(answer)
    is_class = is_supported(type(answer)) and not is_anonymous(type(answer))
    if kind == _JSON and not is_class and (difference := untyped_difference(answer)) is not None:
        raise BodyError(str(difference))
    return kind + encoded


def decode_answer(stored: bytes | None) -> Any:
    """Give what a client gets, the first time as every other: bytes, or what JSON has."""
    if stored is None:
        return None
    return stored[1:] if stored[:1] == _BYTES else msgspec.json.decode(stored[1:])


def request_fingerprint(request: object, scope: str | None = None) -> bytes:
    """Return 16 bytes that identify a request, and its scope where it has one. The order of keys in a dict is ignored.

    Raises BodyError.
    """
    parts = () if request is None else _written(request)
    return hash_of(b"request", *parts) if scope is None else hash_of(b"scoped request", scope.encode(), *parts)


def _written(value: object) -> tuple[bytes, bytes]:
    if isinstance(value, bytes | bytearray | memoryview):
        return _BYTES, bytes(value)
    if is_supported(type(value)) and not isinstance(value, dict | list):
        return _JSON, encode_body(value)[0]
    try:
        return _JSON, _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise BodyError(f"{type(value).__name__} cannot be encoded as JSON: {error}") from error
