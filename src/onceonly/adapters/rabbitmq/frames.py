"""Decodes the frames of a delivery (AMQP 0-9-1), fast for what most messages have, and leniently for what producers send.

Two different byte strings never decode to the same text: bytes that are not UTF-8 become lone surrogates (PEP 383), which
nothing else decodes to, and so do the bits of a NaN. An instant out of range becomes its digits.
"""

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Context, Decimal
from functools import lru_cache
from typing import Any

from aiormq.abc import DeliveredMessage
from msgspec import Struct
from pamqp.commands import Basic
from pamqp.frame import marshal

HEAD = struct.Struct(">BHI")  # of a frame: type, channel, size of what follows; then one byte ends it
DELIVER = Basic.Deliver.index.to_bytes(4)
DEEPEST = 100
"""How deep tables and arrays in headers may be nested."""
_CONTENT = struct.Struct(">HHQH")  # class, weight, size of the body, which properties there are
_FLAGS = HEAD.size + _CONTENT.size - 2
_TAG = struct.Struct(">QB")  # delivery tag, redelivered
_TEXT = ord("S")
_MORE_FLAGS = 0b11  # properties that AMQP 0-9-1 does not have
_SECONDS = 0xFFFF_FFFF  # a timestamp above this is in milliseconds
_MILLISECONDS = 253_402_300_799_999  # the end of the year 9999
_NUMBERS = {ord(letter): struct.Struct(f">{code}") for letter, code in zip("bBsuIilL", "bBhHiIqq", strict=True)}
_FLOATS = {ord(letter): struct.Struct(f">{code}") for letter, code in zip("fd", "fd", strict=True)}
_length = struct.Struct(">I").unpack_from
_DECIMAL = struct.Struct(">BI")
_EXACT = Context(prec=400)


class MessageProperties(Struct, frozen=True, kw_only=True):
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


NOTHING = MessageProperties()


class ConsumedMessage(Struct, frozen=True, eq=False):
    """One message that a consumer brought.

    `frame` is the frame with its properties. `problem` says why these cannot be decoded; `properties` are empty then.
    """

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    properties: MessageProperties
    body: bytes
    frame: bytes
    problem: str = ""

    @property
    def raw(self) -> bytes:
        """The properties as they came: two bytes of flags, then the values."""
        return self.frame[_FLAGS:-1]


def delivered(message: DeliveredMessage) -> ConsumedMessage:
    known = message.header.properties
    properties = MessageProperties(**{name: getattr(known, name) for name in known.attributes()})
    tag, redelivered = message.delivery_tag or 0, bool(message.redelivered)
    return ConsumedMessage(message.consumer_tag or "", tag, redelivered, properties, message.body, marshal(message.header, 0))


def read_deliver(frame: bytes) -> tuple[str, int, bool]:
    """Read the consumer's tag, the delivery's, and whether the message came before. Raises IndexError, struct.error."""
    start = HEAD.size + len(DELIVER)
    end = start + 1 + frame[start]
    tag, bits = _TAG.unpack_from(frame, end)
    return _name(frame[start + 1 : end]), tag, bool(bits & 1)


def read_size(frame: bytes) -> int:
    """Read the size of the body from the frame with the properties. Raises struct.error."""
    size: int = _CONTENT.unpack_from(frame, HEAD.size)[2]
    return size


def read_properties(frame: bytes) -> tuple[MessageProperties, str]:
    """Read the properties; never raises. The second value says why they cannot be decoded, or is empty."""
    try:
        return _properties(frame), ""
    except Exception as error:  # noqa: BLE001 - whatever a producer sends costs its own message and no other
        return NOTHING, str(error) or type(error).__name__


def _properties(frame: bytes) -> MessageProperties:
    flags = int.from_bytes(frame[_FLAGS : _FLAGS + 2])
    at, found = _FLAGS + 2, dict[str, Any]()
    for name, kind in _present(flags):
        if kind == "shortstr":
            start = at + 1
            at = start + frame[at]
            try:
                found[name] = frame[start:at].decode()
            except UnicodeDecodeError:
                found[name] = _escaped(frame[start:at])
        elif kind == "table":
            at, found[name] = _table(frame, at)
        elif kind == "timestamp":
            at, found[name] = at + 8, _time(int.from_bytes(frame[at : at + 8]))
        else:
            at, found[name] = at + 1, frame[at]
    if at != len(frame) - 1:
        raise ValueError("the properties do not fill their frame exactly")
    return MessageProperties(**found)


@lru_cache(1000)
def _present(flags: int) -> tuple[tuple[str, str], ...]:
    if flags & _MORE_FLAGS:
        raise ValueError(f"the flags {flags:#06x} include properties that AMQP 0-9-1 does not define")
    known = Basic.Properties
    return tuple((name, known.amqp_type(name)) for name in known.attributes() if flags & known.flags[name])


def _table(frame: bytes, at: int, depth: int = 1) -> tuple[int, dict[str, Any]]:
    """Read a table (section 4.2.5.5); gives where it ends, too. A name that is there twice has a list of values."""
    end = at + 4 + _length(frame, at)[0]
    at += 4
    found: dict[str, Any] = {}
    while at < end:
        start = at + 1 + frame[at]
        name = _name(frame[at + 1 : start])
        if frame[start] == _TEXT:
            at = start + 5 + _length(frame, start + 1)[0]
            try:
                value: Any = frame[start + 5 : at].decode()
            except UnicodeDecodeError:
                value = _escaped(frame[start + 5 : at])
        else:
            at, value = _value(frame, start, depth)
        found[name] = _joined(found[name], value) if name in found else value
    if at != end or end >= len(frame):
        raise ValueError("a table is longer or shorter than its length field")
    return end, found


def _value(frame: bytes, at: int, depth: int) -> tuple[int, Any]:
    """Read one value, which begins with the letter of its type; gives where it ends, too."""
    kind, at = frame[at], at + 1
    if kind in _NUMBERS:
        number = _NUMBERS[kind]
        return at + number.size, number.unpack_from(frame, at)[0]
    if kind in _FLOATS:
        number = _FLOATS[kind]
        value: float = number.unpack_from(frame, at)[0]
        end = at + number.size
        return end, value if value == value else _escaped(b"\xffnan " + frame[at:end])  # noqa: PLR0124 - NaN is unequal to itself
    if kind in _TEXTS:
        end = at + 4 + _length(frame, at)[0]
        return end, _escaped(frame[at + 4 : end])
    if kind in _NESTED:
        if depth >= DEEPEST:
            raise ValueError(f"a header is nested more than {DEEPEST} levels deep")
        return _NESTED[kind](frame, at, depth + 1)
    if kind not in _OTHERS:
        raise ValueError(f"a header value has the unknown type {bytes((kind,))!r}")
    size, read = _OTHERS[kind]
    return at + size, read(frame[at : at + size])


def _array(frame: bytes, at: int, depth: int) -> tuple[int, list[Any]]:
    end = at + 4 + _length(frame, at)[0]
    at, found = at + 4, []
    while at < end:
        at, value = _value(frame, at, depth)
        found.append(value)
    if at != end:
        raise ValueError("an array is longer or shorter than its length field")
    return end, found


def _decimal(value: bytes) -> Decimal:
    scale, number = _DECIMAL.unpack(value)
    return Decimal(number).scaleb(-scale, _EXACT)


def _time(value: int) -> datetime | str:
    """Return an instant. Milliseconds become text with three digits, so that they differ from seconds; all else its digits."""
    if value <= _SECONDS:
        return datetime.fromtimestamp(value, UTC)
    if value > _MILLISECONDS:
        return str(value)
    seconds, milliseconds = divmod(value, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix('+00:00')}.{milliseconds:03}Z"


_TEXTS = frozenset(b"Sx")
_NESTED: dict[int, Callable[[bytes, int, int], tuple[int, Any]]] = {ord("A"): _array, ord("F"): _table}
_OTHERS: dict[int, tuple[int, Callable[[bytes], Any]]] = {
    ord("D"): (_DECIMAL.size, _decimal),
    ord("T"): (8, lambda value: _time(int.from_bytes(value))),
    ord("t"): (1, lambda value: bool(value[0])),
    ord("V"): (0, lambda _: None),
    0: (0, lambda _: None),
}


def _joined(first: Any, second: Any) -> list[Any]:
    """Put the values of one name into one list, in place: there may be thousands."""
    values: list[Any] = first if isinstance(first, list) else [first]
    if isinstance(second, list):
        values += second
    else:
        values.append(second)
    return values


@lru_cache(1000)
def _name(name: bytes) -> str:
    return _escaped(name)


def _escaped(text: bytes) -> str:
    return text.decode("utf-8", "surrogateescape")
