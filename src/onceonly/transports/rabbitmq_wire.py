"""Messages in AMQP's words: headers are a table of typed values there, and some have properties of their own.

What this library publishes bears its name as `app_id`, and arrives exactly as it was sent. In a foreign message the
properties are shown as headers: `message_id` as `message-id`, and so on, for `identity=Header("message-id")`; `type` as the
CloudEvents type, unless the message has one. `message_id` is no identity by itself: most clients make up a new one each time.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from onceonly.drivers.rabbitmq_decoding import Arrived, Delivered
from onceonly.drivers.rabbitmq_publishing import OwnProperties
from onceonly.model.message import Headers
from onceonly.serialization.cloudevents import PREFIX, PREFIXES, take_apart

OURS = "onceonly"
DUE = "x-onceonly-due"
MOST_HEADERS = 100_000  # bytes; a server closes the connection that sends more than one frame of them (131,072)
_LONGEST_NAME, _LONGEST_TYPE = 128, 255  # bytes
_CONTENT_TYPE = "content-type"
_BROKERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count", "x-acquired-count", DUE)
_TIMES = tuple(prefix + "time" for prefix in PREFIXES)
_SHOWN = ("message_id", "correlation_id", "reply_to", "content_encoding", "user_id", "app_id", "expiration", "timestamp")


def properties(headers: Headers, *, due: int = 0) -> OwnProperties | None:
    """Give the properties of a persistent message with these headers, or None when AMQP cannot carry them."""
    if not _fits(headers):
        return None
    table: dict[str, Any] = {DUE: due} if due else {}
    content_type = None
    for name, value in headers:
        if name == _CONTENT_TYPE and content_type is None:
            content_type = value
        elif name in table:
            table[name] = [*(table[name] if isinstance(table[name], list) else [table[name]]), value]
        else:
            table[name] = value
    return OwnProperties(app_id=OURS, content_type=content_type, headers=table)


def headers_of(message: Delivered) -> Headers:
    """Give the headers of a message that arrived, as text."""
    known = message.properties
    given = {str(name): value for name, value in (known.headers or {}).items()}
    found = list(_flat({name: value for name, value in given.items() if not name.startswith(_BROKERS)}))
    if known.app_id != OURS:
        found += _foreign(known, {name.lower() for name, _ in found})
        if known.message_type and "type" not in take_apart(tuple(found), b"{}").attributes:
            found.append((PREFIX + "type", known.message_type))
    if known.content_type is not None:
        found.append((_CONTENT_TYPE, known.content_type))
    return tuple(found)


def due_of(message: Delivered) -> int:
    """Give the instant before which a message is not delivered, 0 when there is none."""
    known = message.properties
    due = (known.headers or {}).get(DUE, 0) if known.app_id == OURS else 0
    return due if isinstance(due, int) else 0


def _foreign(known: Arrived, taken: set[str]) -> Iterator[tuple[str, str]]:
    for name in _SHOWN:
        header, value = name.replace("_", "-"), getattr(known, name)
        if value is not None and header not in taken:
            yield header, text(value)


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, list):
            yield from ((name, text(each)) for each in value)
        elif name.lower() in _TIMES and type(value) is int:  # CloudEvents' AMQP binding: a timestamp in milliseconds
            yield name, text(datetime.fromtimestamp(value / 1000, UTC))
        else:
            yield name, text(value)


def text(value: object) -> str:
    """Give a header's value as text, whatever AMQP type it has."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, datetime):
        instant = value if value.tzinfo else value.replace(tzinfo=UTC)
        return instant.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict | list):
        return json.dumps(value, default=text)
    return "" if value is None else str(value)


def _fits(headers: Headers) -> bool:
    total = 0
    try:
        for name, value in headers:
            long = len(name) if name.isascii() else len(name.encode())
            size = len(value) if value.isascii() else len(value.encode())
            if long > _LONGEST_NAME or (name == _CONTENT_TYPE and size > _LONGEST_TYPE):
                return False
            total += 2 * long + size + 12  # names may be written twice; lengths and types take some bytes
    except UnicodeEncodeError:
        return False
    return total <= MOST_HEADERS
