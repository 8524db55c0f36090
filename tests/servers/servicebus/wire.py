"""Messages of AMQP 1.0 as sections: read from what a client sends, and written with what the service adds."""

from typing import Any
from uuid import UUID

from tests.servers.servicebus.codec import Described, Malformed, Symbol, Timestamp, UByte, UInt, ULong, decode, encode
from tests.servers.servicebus.entities import StoredMessage

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x77
BARE = (PROPERTIES, APPLICATION, DATA, 0x76, VALUE)
BATCH = 0x80013700
"""The format of a transfer with one message in each data section."""
_ID, _GROUP = 0, 10


class Request:
    """A message to a management node."""

    def __init__(self, raw: bytes) -> None:
        found = {code: value for code, _, value in sections(raw)}
        self.id = (found.get(PROPERTIES) or [None])[0]
        self.properties: dict[str, Any] = found.get(APPLICATION) or {}
        self.body: Any = found.get(VALUE)


def answer(to: Request, properties: dict[str, Any], body: Any = None) -> bytes:
    """Write the answer to a request."""
    parts = [(PROPERTIES, [None, None, None, None, None, to.id]), (APPLICATION, properties), (VALUE, body)]
    return b"".join(section(code, value) for code, value in parts)


def read_batch(raw: bytes, message_format: int) -> list[StoredMessage]:
    """Read one transfer: a message, or a batch. Raises Malformed."""
    if message_format == BATCH:
        return [read_one(value) for code, _, value in sections(raw) if code == DATA]
    return [read_one(raw)]


def read_one(raw: bytes) -> StoredMessage:
    """Read one message. Raises Malformed."""
    found = sections(raw)
    message = StoredMessage(tuple((code, part) for code, part, _ in found))
    for code, _, value in found:
        if code == PROPERTIES:
            message.message_id = value[_ID] if value else None
            message.session = value[_GROUP] if len(value) > _GROUP else None
        elif code == ANNOTATIONS:
            due = value.get("x-opt-scheduled-enqueue-time")
            message.due = int(due) if due is not None else 0
    return message


def write(message: StoredMessage) -> bytes:
    """Write a message as a receiver gets it."""
    annotations: dict[Any, Any] = {}
    for code, part in message.sections:
        if code == ANNOTATIONS:
            annotations |= decode(part)[0].value
    annotations[Symbol("x-opt-enqueued-time")] = Timestamp(message.enqueued)
    annotations[Symbol("x-opt-sequence-number")] = message.number
    annotations[Symbol("x-opt-locked-until")] = Timestamp(message.until)
    header = [True, UByte(4), None, None, UInt(message.deliveries)]
    bare = (part for code, part in message.sections if code in BARE)
    return b"".join((section(HEADER, header), section(ANNOTATIONS, annotations), *bare))


def tag_of(token: UUID) -> bytes:
    """Write a lock token as a delivery tag."""
    return token.bytes_le


def section(code: int, value: Any) -> bytes:
    """Write a section of a message."""
    return encode(Described(ULong(code), value))


def sections(raw: bytes) -> list[tuple[int, bytes, Any]]:
    """Take a message apart: the code, the bytes and the value of each section. Raises Malformed."""
    found, at = [], 0
    while at < len(raw):
        value, end = decode(raw, at)
        if not isinstance(value, Described):
            raise Malformed(f"not a section at byte {at}")
        found.append((int(value.descriptor), raw[at:end], value.value))
        at = end
    return found
