"""Requests and responses: the headers they travel with, and how a service keeps them.

Kept as MessagePack behind one byte that says in which format; docs/http.md describes the wire.
"""

import msgspec

from onceonly.model.errors import SchemaTooNew
from onceonly.model.remote import Request, Response

PROTOCOL, VERSION = "onceonly-http", "1"
"""The header that every request and every answer of the protocol has."""
OPERATION, DEADLINE, STATUS = "onceonly-operation", "onceonly-deadline", "onceonly-status"
"""Headers: what a PUT asks for; when it, or a tombstone, is over, in milliseconds since 1970; a response's status in a GET."""
FORMAT = b"\x01"

_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_response = msgspec.msgpack.Decoder(Response).decode


def encode_request(request: Request) -> bytes:
    """Give the bytes to store."""
    return FORMAT + _encode(request)


def decode_request(stored: bytes) -> Request:
    """Read a request back. Raises SchemaTooNew when a newer onceonly wrote it."""
    return _decode_request(_checked(stored))


def encode_response(response: Response) -> bytes:
    """Give the bytes to store."""
    return FORMAT + _encode(response)


def decode_response(stored: bytes) -> Response:
    """Read a response back. Raises SchemaTooNew when a newer onceonly wrote it."""
    return _decode_response(_checked(stored))


def _checked(stored: bytes) -> memoryview:
    if stored[:1] != FORMAT:
        raise SchemaTooNew(f"stored by a newer onceonly (format {stored[:1].hex()}): upgrade this process")
    return memoryview(stored)[1:]
