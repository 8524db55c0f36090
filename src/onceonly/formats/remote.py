"""Requests and responses: the headers they travel with, and how a service keeps them.

Kept as MessagePack behind one byte that says in which format; docs/explanation/http.md describes the wire.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import PermanentFailure, UpgradeRequired
from onceonly.model.remote import Request, Response

PROTOCOL, VERSION = "onceonly-http", "1"
"""The header that every request and every answer of the protocol has."""
OPERATION, DEADLINE, STATUS = "onceonly-operation", "onceonly-deadline", "onceonly-status"
"""Headers: what a PUT asks for; when it, or a tombstone, is over, in milliseconds since 1970; a response's status in a GET."""
FORMAT = b"\x01"

Decoded = TypeVar("Decoded")

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_response = msgspec.msgpack.Decoder(Response).decode


def encode_request(request: Request) -> bytes:
    return FORMAT + _encode(request)


def decode_request(stored: bytes) -> Request:
    """Read a request back. Raises PermanentFailure when it cannot be read, UpgradeRequired when a newer onceonly wrote it."""
    return _decoded("request", stored, _decode_request)


def encode_response(response: Response) -> bytes:
    return FORMAT + _encode(response)


def decode_response(stored: bytes) -> Response:
    """Read a response back. Raises as `decode_request`."""
    return _decoded("response", stored, _decode_response)


def _decoded(what: str, stored: bytes, decode: Callable[[memoryview], Decoded]) -> Decoded:
    found = bytes(stored[:1])
    if found > FORMAT:
        raise UpgradeRequired(f"the stored {what} was written by a newer onceonly (format {found.hex()}): upgrade this process")
    try:
        return decode(memoryview(stored)[1:])
    except UNDECODABLE as error:
        raise PermanentFailure(f"the stored {what} cannot be read: {error}. Delete it, or restore it from a backup") from error
