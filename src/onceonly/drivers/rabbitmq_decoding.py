"""Decoding a delivery's frames (AMQP 0-9-1): what most messages have here, and fast; all else by the driver's decoder.

Each raises ValueError, IndexError or struct.error where the bytes are not what they should be.
"""

import struct
from functools import lru_cache
from typing import Any

from aiormq.abc import DeliveredMessage
from msgspec import Struct
from pamqp.commands import Basic
from pamqp.decode import by_type, embedded_value

HEAD = struct.Struct(">BHI")  # of a frame: type, channel, size of what follows; then one byte ends it
DELIVER = Basic.Deliver.index.to_bytes(4)
_CONTENT = struct.Struct(">HHQH")  # class, weight, size of the body, which properties there are
_TAG = struct.Struct(">QB")  # delivery tag, redelivered
_TEXT = ord("S")
_MORE_FLAGS = 0b11  # properties that AMQP 0-9-1 does not have


class Arrived(Struct, frozen=True, kw_only=True):
    """The properties of a message that came; those that it has not are None."""

    content_type: str | None = None
    content_encoding: str | None = None
    headers: dict[str, Any] | None = None
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: Any = None
    message_type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None


class Delivered(Struct, frozen=True, eq=False):
    """One message that a consumer brought."""

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    properties: Arrived
    body: bytes


def delivered(message: DeliveredMessage) -> Delivered:
    """Give what the driver itself brought."""
    known = message.header.properties
    properties = Arrived(**{name: getattr(known, name) for name in known.attributes()})
    tag, redelivered = message.delivery_tag or 0, bool(message.redelivered)
    return Delivered(message.consumer_tag or "", tag, redelivered, properties, message.body)


def read_deliver(frame: bytes) -> tuple[str, int, bool]:
    """Read from the first frame the consumer's tag, the delivery's, and whether the message came before."""
    start = HEAD.size + len(DELIVER)
    end = start + 1 + frame[start]
    tag, bits = _TAG.unpack_from(frame, end)
    return _name(frame[start + 1 : end]), tag, bool(bits & 1)


def read_header(frame: bytes) -> tuple[int, Arrived]:
    """Read from the second frame the size of the body, and the properties."""
    _, _, size, flags = _CONTENT.unpack_from(frame, HEAD.size)
    at, found = HEAD.size + _CONTENT.size, dict[str, Any]()
    for name, kind in _present(flags):
        if kind == "shortstr":
            start = at + 1
            at = start + frame[at]
            found[name] = frame[start:at].decode()
        elif kind == "table":
            at, found[name] = _table(frame, at)
        else:
            used, found[name] = by_type(frame[at:-1], kind)
            at += used
    if at != len(frame) - 1:
        raise ValueError("the properties do not end with their frame")
    return size, Arrived(**found)


@lru_cache(1000)
def _present(flags: int) -> tuple[tuple[str, str], ...]:
    if flags & _MORE_FLAGS:
        raise ValueError("unknown properties")
    known = Basic.Properties
    return tuple((name, known.amqp_type(name)) for name in known.attributes() if flags & known.flags[name])


def _table(frame: bytes, at: int) -> tuple[int, dict[str, Any]]:
    """Read a table (section 4.2.5.5); gives where it ends, too."""
    end = at + 4 + int.from_bytes(frame[at : at + 4])
    at += 4
    found: dict[str, Any] = {}
    while at < end:
        start = at + 1 + frame[at]
        name = _name(frame[at + 1 : start])
        if frame[start] == _TEXT:
            at = start + 5 + int.from_bytes(frame[start + 1 : start + 5])
            found[name] = _text(frame[start + 5 : at])
        else:
            used, found[name] = embedded_value(frame[start:end])
            at = start + used
    if at != end:
        raise ValueError("a table does not end where it says")
    return end, found


@lru_cache(1000)
def _name(name: bytes) -> str:
    return name.decode()


def _text(text: bytes) -> str | bytes:
    try:
        return text.decode()
    except UnicodeDecodeError:  # as the driver has it
        return text
