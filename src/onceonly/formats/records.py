"""Records as stored: MessagePack behind one byte that says in which format."""

import msgspec

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SchemaTooNew
from onceonly.model.identity import Identity
from onceonly.model.message import Headers, Message
from onceonly.model.record import Effect, Record
from onceonly.model.remote import RemoteRequest
from onceonly.model.token import Token

FORMAT = b"\x01"
WITH_TOKENS = b"\x02"
"""A record whose message came with a token, or whose messages carry some: an older version would lose them."""
WITH_CALLS = b"\x03"
"""A record that has other services called."""

_Calls = tuple[tuple[Effect, ...], str, tuple[Token, ...], tuple[RemoteRequest, ...]]
_Tokens = tuple[tuple[Effect, ...], str, tuple[Token, ...]]

_encode = msgspec.msgpack.Encoder().encode
_decode_effects = msgspec.msgpack.Decoder(tuple[Effect, ...]).decode
_decode_tokens = msgspec.msgpack.Decoder(_Tokens).decode
_decode_calls = msgspec.msgpack.Decoder(_Calls).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
_decode_headers = msgspec.json.Decoder(Headers).decode
_encode_headers = msgspec.json.Encoder().encode


def encode_record(record: Record) -> bytes:
    """Give the bytes to store of what a record still has pending; their size is what a record costs."""
    if record.requests:
        return WITH_CALLS + _encode((record.effects, record.token, record.issued, record.requests))
    if record.token or record.issued:
        return WITH_TOKENS + _encode((record.effects, record.token, record.issued))
    return FORMAT + _encode(record.effects)


def decode_record(identity: Identity, stored: bytes, unit: str = "") -> Record:
    """Read a record back. Raises SchemaTooNew when a newer onceonly wrote it."""
    if stored[:1] == WITH_TOKENS:
        effects, token, issued = _decode_tokens(memoryview(stored)[1:])
        return Record(identity, effects, unit=unit, token=token, issued=issued)
    if stored[:1] == WITH_CALLS:
        effects, token, issued, requests = _decode_calls(memoryview(stored)[1:])
        return Record(identity, effects, unit=unit, token=token, issued=issued, requests=requests)
    _check(stored)
    return Record(identity, _decode_effects(memoryview(stored)[1:]), unit=unit)


def encode_message(message: Message) -> bytes:
    """Give the bytes of a whole message, attributes and body."""
    return FORMAT + _encode(message)


def decode_message(stored: bytes) -> Message:
    """Read a message back. Raises SchemaTooNew when a newer onceonly wrote it."""
    _check(stored)
    return _decode_message(memoryview(stored)[1:])


def encode_letter(letter: DeadLetter) -> bytes:
    """Give the bytes of a whole dead letter."""
    return FORMAT + _encode(letter)


def decode_letter(stored: bytes) -> DeadLetter:
    """Read a dead letter back. Raises SchemaTooNew when a newer onceonly wrote it."""
    _check(stored)
    return _decode_letter(memoryview(stored)[1:])


def encode_headers(headers: Headers) -> str:
    """Give headers as a JSON list of pairs, for a text column."""
    return _encode_headers(headers).decode()


def decode_headers(stored: str | bytes) -> Headers:
    """Read headers back."""
    return _decode_headers(stored)


def _check(stored: bytes) -> None:
    if stored[:1] != FORMAT:
        raise SchemaTooNew(f"stored by a newer onceonly (format {stored[:1].hex()}): upgrade this process")
