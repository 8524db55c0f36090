"""Effects as stored in a record: MessagePack behind one byte of format version."""

import msgspec

from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import SchemaTooNew
from onceonly.model.message import Headers, Message
from onceonly.model.record import Effect

FORMAT = b"\x01"

_encode = msgspec.msgpack.Encoder().encode
_decode_effects = msgspec.msgpack.Decoder(tuple[Effect, ...]).decode
_decode_message = msgspec.msgpack.Decoder(Message).decode
_decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
_decode_headers = msgspec.json.Decoder(Headers).decode
_encode_headers = msgspec.json.Encoder().encode


def encode_effects(effects: tuple[Effect, ...]) -> bytes:
    """Give the bytes to store; their size is what a record costs."""
    return FORMAT + _encode(effects)


def decode_effects(stored: bytes) -> tuple[Effect, ...]:
    """Read effects back. Raises SchemaTooNew when a newer onceonly wrote them."""
    _check(stored)
    return _decode_effects(memoryview(stored)[1:])


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


def decode_headers(stored: str) -> Headers:
    """Read headers back."""
    return _decode_headers(stored)


def _check(stored: bytes) -> None:
    if stored[:1] != FORMAT:
        raise SchemaTooNew(f"stored by a newer onceonly (format {stored[:1].hex()}); upgrade this process")
