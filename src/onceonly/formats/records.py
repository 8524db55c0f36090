"""Records as stored: MessagePack behind one byte that says in which format."""

import msgspec

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SchemaTooNew
from onceonly.model.identity import Identity
from onceonly.model.message import Headers
from onceonly.model.record import Effect, Record
from onceonly.model.remote import RemoteRequest
from onceonly.model.token import Token

FORMAT = b"\x01"

_Pending = tuple[tuple[Effect, ...], str, tuple[Token, ...], tuple[RemoteRequest, ...]]

_encode = msgspec.msgpack.Encoder().encode
_decode_pending = msgspec.msgpack.Decoder(_Pending).decode
_decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
_decode_headers = msgspec.json.Decoder(Headers).decode
_encode_headers = msgspec.json.Encoder().encode


def encode_record(record: Record) -> bytes:
    """Return the bytes to store of what a record still has pending; their size is what a record costs."""
    return FORMAT + _encode((record.effects, record.token, record.issued, record.requests))


def decode_record(identity: Identity, stored: bytes, unit: str = "") -> Record:
    """Read a record back. Raises SchemaTooNew when a newer onceonly wrote it."""
    _check(stored)
    effects, token, issued, requests = _decode_pending(memoryview(stored)[1:])
    return Record(identity, effects, unit=unit, token=token, issued=issued, requests=requests)


def encode_letter(letter: DeadLetter) -> bytes:
    return FORMAT + _encode(letter)


def decode_letter(stored: bytes) -> DeadLetter:
    """Read a dead letter back. Raises SchemaTooNew when a newer onceonly wrote it."""
    _check(stored)
    return _decode_letter(memoryview(stored)[1:])


def encode_headers(headers: Headers) -> str:
    """Return headers as a JSON list of pairs, for a text column."""
    return _encode_headers(headers).decode()


def decode_headers(stored: str | bytes) -> Headers:
    return _decode_headers(stored)


def _check(stored: bytes) -> None:
    if stored[:1] != FORMAT:
        raise SchemaTooNew(f"stored by a newer onceonly (format {stored[:1].hex()}): upgrade this process")
