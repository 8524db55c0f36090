"""Messages of AMQP 1.0 as sections: read from what a client sends, and written with what the service adds."""

from typing import Any
from uuid import UUID

from proton import Data, Described, symbol, timestamp, ubyte, uint, ulong

from tests.servers.servicebus.entities import StoredMessage

HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, BODY, BARE = 0x70, 0x72, 0x73, 0x74, 0x75, (0x73, 0x74, 0x75, 0x76, 0x77)
_ID, _GROUP = 0, 10


def read_batch(raw: bytes) -> list[StoredMessage]:
    """Read one transfer: a message, or a batch with one message in each data section."""
    sections = _sections(raw)
    codes = {code for code, _ in sections}
    bodies = [_value(part) for code, part in sections if code == BODY]
    if APPLICATION not in codes and bodies and all(_is_message(bytes(body)) for body in bodies):
        return [read_one(bytes(body)) for body in bodies]
    return [read_one(raw)]


def read_one(raw: bytes) -> StoredMessage:
    """Read one message."""
    sections = _sections(raw)
    message = StoredMessage(tuple(sections))
    for code, part in sections:
        if code == PROPERTIES:
            properties = list(_value(part))
            message.message_id = properties[_ID] if properties else None
            message.session = properties[_GROUP] if len(properties) > _GROUP else None
        elif code == ANNOTATIONS:
            due = dict(_value(part)).get(symbol("x-opt-scheduled-enqueue-time"))
            message.due = int(due) if due is not None else 0
    return message


def write(message: StoredMessage) -> bytes:
    """Write a message as a receiver gets it."""
    annotations: dict[Any, Any] = {}
    for code, part in message.sections:
        if code == ANNOTATIONS:
            annotations |= dict(_value(part))
    annotations[symbol("x-opt-enqueued-time")] = timestamp(message.enqueued)
    annotations[symbol("x-opt-sequence-number")] = message.number
    annotations[symbol("x-opt-locked-until")] = timestamp(message.until)
    header = [True, ubyte(4), None, None, uint(message.deliveries)]
    return b"".join(
        (
            _section(HEADER, header),
            _section(ANNOTATIONS, annotations),
            *(part for code, part in message.sections if code in BARE),
        )
    )


def tag_of(token: UUID) -> bytes:
    """Write a lock token as a delivery tag."""
    return token.bytes_le


def _sections(raw: bytes) -> list[tuple[int, bytes]]:
    found = []
    while raw:
        data = Data()
        used = data.decode(raw)
        data.next()
        described = data.get_object()
        found.append((int(described.descriptor), raw[:used]))
        raw = raw[used:]
    return found


def _value(part: bytes) -> Any:
    data = Data()
    data.decode(part)
    data.next()
    value = data.get_object().value
    return bytes(value) if isinstance(value, memoryview) else value  # a view of what `data` has, which ends here


def _is_message(body: bytes) -> bool:
    return body[:2] in (b"\x00\x53", b"\x00\x80") and body[2:10].lstrip(b"\x00")[:1] in (
        b"p",
        b"q",
        b"r",
        b"s",
        b"t",
        b"u",
        b"w",
    )


def _section(code: int, value: Any) -> bytes:
    data = Data()
    data.put_object(Described(ulong(code), value))
    encoded: bytes = data.encode()
    return encoded
