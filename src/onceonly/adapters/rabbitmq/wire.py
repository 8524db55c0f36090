"""Messages as AMQP carries them: headers are a table of typed values there, and some have properties of their own.

What this library publishes bears its name as `app_id`, and arrives exactly as it was sent. For other programs it also has the
properties `message_id`, `type`, `timestamp` and `correlation_id`, made from its attributes; a header `correlation-id` replaces
the last one. They are not read here. In a foreign message the properties are shown as headers: `message_id` as `message-id`,
and so on, for `identity=IdentityHeader("message-id")`; `type` as the CloudEvents type, unless the message has one. `message_id`
is not the identity by default: most clients make up a new one each time.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from math import inf
from typing import Any

from onceonly.adapters.rabbitmq.frames import ConsumedMessage, MessageProperties
from onceonly.adapters.rabbitmq.link import FRAME
from onceonly.adapters.rabbitmq.publisher import PUBLISH, OwnProperties, RawProperties, ShownProperties
from onceonly.formats.cloudevents import NAMING, PREFIX, RAW_PROPERTIES, UNREADABLE, attribute_of
from onceonly.model.message import Headers, Message
from onceonly.model.wording import an

OURS = "onceonly"
DUE = "x-onceonly-due"
_AROUND = 300  # bytes of a frame that are not headers: its ends, the instant it is due, the name of the publish
_AROUND_NAMED = _AROUND + 3 * 256 + 8  # the same with the properties for other programs
_AROUND_RAW = 20  # the same of a copy whose properties are as they came
_LONGEST_NAME = 255  # bytes, as of a content type
_SURELY_SHORT = _LONGEST_NAME // 4  # characters: UTF-8 takes 4 bytes for one at most
_CONTENT_TYPE = "content-type"
_CORRELATION = "correlation-id"
_BROKERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", DUE, PUBLISH)
_ROUTES = frozenset(
    {"CC", "BCC"}
)  # the server sends a copy to every queue that they name, and closes a channel for a wrong type
_NOT_SENT = _ROUTES | {PUBLISH}  # each publish has a name of its own
_USER_ID = 1 << 4  # flag of a property that the server compares with the name of whoever publishes
_BROKERS_OWN = ""
_LATEST = 253_402_300_799_999  # the end of the year 9999, in milliseconds
_ID, _TYPE, _SENT_AT, _CONVERSATION = PREFIX + "id", PREFIX + "type", PREFIX + "time", PREFIX + "conversationid"
_KINDS = {bool: "boolean", float: "float", Decimal: "decimal", datetime: "timestamp", dict: "table", list: "list"}
_SHOWN = ("message_id", "correlation_id", "reply_to", "content_encoding", "user_id", "app_id", "expiration", "timestamp")


def properties(headers: Headers, *, due: int = 0, frame: int = FRAME, formatted: Message | None = None) -> OwnProperties | None:
    """Return the properties of a persistent message with these headers, or None when a frame of this size cannot carry them.

    `formatted` is the message if another format than CloudEvents has written the headers.
    """
    size = _size(headers)
    if size > frame - _AROUND:
        return None
    table: dict[str, Any] = {DUE: due} if due else {}
    content_type = None
    for name, value in headers:
        if name == _CONTENT_TYPE and content_type is None:
            content_type = value
        elif name in _NOT_SENT:
            continue
        elif name in table:
            table[name] = [*(table[name] if isinstance(table[name], list) else [table[name]]), value]
        else:
            table[name] = value
    if size > frame - _AROUND_NAMED:
        return OwnProperties(app_id=OURS, content_type=content_type, headers=table)
    id_, type_, conversation, sent_at = (
        [table.get(name) for name in (_ID, _TYPE, _CONVERSATION, _SENT_AT)]
        if formatted is None
        else [formatted.id, formatted.type, formatted.extension("conversationid"), formatted.time]
    )
    correlation = _short(table.get(_CORRELATION)) or _short(conversation) or _short(id_)
    shown = ShownProperties(_short(id_), _short(type_), correlation, _timestamp(sent_at))
    return OwnProperties(app_id=OURS, content_type=content_type, headers=table, shown=shown)


def as_it_came(message: ConsumedMessage, frame: int = FRAME) -> RawProperties | None:
    """Return the properties of a copy that is exact, or None when the server may refuse it, or route it elsewhere as well."""
    raw = message.raw
    is_safe = not int.from_bytes(raw[:2]) & _USER_ID and not any(bytes((len(n),)) + n.encode() in raw for n in _ROUTES)
    return RawProperties(raw) if is_safe and len(raw) <= frame - _AROUND_RAW else None


def headers_of(message: ConsumedMessage) -> Headers:
    """Return the headers of a message that arrived, as text. Never raises: what cannot be read is unreadable, with bytes."""
    if message.problem:
        return _unreadable(message, f"the AMQP properties cannot be decoded: {message.problem}. Correct the sender")
    try:
        found = _headers(message)
    except Exception as error:  # noqa: BLE001 - whatever a producer sends costs its own message and no other
        return _unreadable(message, str(error))
    return found


def _headers(message: ConsumedMessage) -> Headers:
    known = message.properties
    found: list[tuple[str, str]] = []
    for name, value in (known.headers or {}).items():
        attribute = _meaning(name)
        if type(value) is str and attribute is not _BROKERS_OWN:
            found.append((name, value))
        elif attribute is None:
            found += [(name, text(each)) for each in value] if isinstance(value, list) else [(name, text(value))]
        elif attribute is not _BROKERS_OWN:
            found.append((name, _attribute_text(attribute, value)))
    if known.app_id != OURS:
        found += _foreign(known, {name.lower() for name, _ in found})
        if known.message_type and "type" not in [attribute_of(name) for name, _ in found]:
            found.append((PREFIX + "type", known.message_type))
    if known.content_type is not None:
        found.append((_CONTENT_TYPE, known.content_type))
    return tuple(found)


def _unreadable(message: ConsumedMessage, why: str) -> Headers:
    """Return headers that state why a message cannot be read, with its properties as they came."""
    return (UNREADABLE, why), (RAW_PROPERTIES, b64encode(message.raw).decode())


def type_of(headers: Headers) -> str:
    """Return the CloudEvents type of a message; empty if it has none."""
    return next((value for name, value in headers if attribute_of(name) == "type"), "")


def due_of(message: ConsumedMessage) -> int:
    """Return the instant before which a message is not delivered, 0 when there is none."""
    known = message.properties
    due = (known.headers or {}).get(DUE, 0) if known.app_id == OURS else 0
    return due if isinstance(due, int) else 0


def _foreign(known: MessageProperties, taken: set[str]) -> Iterator[tuple[str, str]]:
    for name in _SHOWN:
        header, value = name.replace("_", "-"), getattr(known, name)
        if value is not None and header not in taken:
            yield header, text(value)


@lru_cache(1000)
def _meaning(name: str) -> str | None:
    """Classify a header: the broker's own, a CloudEvents attribute (its name), or the sender's own (None)."""
    return _BROKERS_OWN if name.startswith(_BROKERS) or name in _ROUTES else attribute_of(name)


def _attribute_text(attribute: str, value: object) -> str:
    """Return the text of an attribute that is not a text. Raises ValueError for what names no message for certain."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, dict | list) or (attribute in NAMING and not is_number):
        wanted = "text or an integer" if attribute in NAMING else "one value"
        raise ValueError(
            f"the attribute `{attribute}` is {an(_KINDS.get(type(value), 'value'))}; it must be {wanted}. Correct the sender"
        )
    if attribute == "time" and is_number and isinstance(value, int) and abs(value) <= _LATEST:
        with suppress(ValueError, OverflowError, OSError):  # CloudEvents' AMQP binding: a timestamp in milliseconds
            return text(datetime.fromtimestamp(value / 1000, UTC))
    return text(value)


def text(value: object) -> str:
    """Return a header's value as text, whatever AMQP type it has."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, datetime):
        instant = value if value.tzinfo else value.replace(tzinfo=UTC)
        return instant.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict | list):
        return json.dumps(value, default=text)
    return "" if value is None else str(value)


def _short(value: object) -> str:
    """Return a text that is short enough for a property of its own, else an empty one."""
    if type(value) is not str:  # there is none, or there are several
        return ""
    if len(value) <= _SURELY_SHORT:
        return value
    return value if (len(value) if value.isascii() else len(value.encode())) <= _LONGEST_NAME else ""


def _timestamp(time: object) -> int:
    """Return the second of a time as RFC 3339 writes it; 0 if it is none."""
    if type(time) is not str:
        return 0
    return _second(f"{time[:19]}Z" if time.endswith("Z") else time)


@lru_cache(1000)
def _second(time: str) -> int:
    try:
        moment = datetime.fromisoformat(time)
        return max(0, int(moment.timestamp())) if moment.tzinfo else 0
    except (ValueError, OverflowError):
        return 0


def _size(headers: Headers) -> float:
    """Return how many bytes headers take in a frame; infinity if AMQP cannot carry them."""
    total = 0
    try:
        for name, value in headers:
            long = len(name) if name.isascii() else len(name.encode())
            size = len(value) if value.isascii() else len(value.encode())
            if long > _LONGEST_NAME or (name == _CONTENT_TYPE and size > _LONGEST_NAME):
                return inf
            total += long + size + 11  # lengths and types take some bytes
    except UnicodeEncodeError:
        return inf
    return total
