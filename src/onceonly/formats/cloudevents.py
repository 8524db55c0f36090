"""Messages as headers and a body, for transports: CloudEvents 1.0.

Attributes are headers with a prefix (binary mode). `encode` writes one prefix. All prefixes in use are read: `ce-` of HTTP,
NATS and RabbitMQ, `ce_` of Kafka, `cloudEvents_` and `cloudEvents:` of AMQP. One JSON document (structured mode) is read too.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.model.escaping import is_utf8, readable_headers
from onceonly.model.message import Delivery, Failure, Headers, Message, Send

__all__ = ["UNREADABLE", "arrival", "attribute_of", "encode"]

PREFIX = "ce-"
PREFIXES = ("ce-", "ce_", "cloudevents_", "cloudevents:")
UNREADABLE = "onceonly-unreadable"
"""The first header of a delivery whose own headers cannot be read. Its value is the reason, for the dead letter."""
RAW_PROPERTIES = "onceonly-raw-properties"
"""A header with the AMQP properties of such a delivery as they came, in base64: two bytes of flags, then the values."""

NAMING = frozenset({"id", "source", "type"})
"""The attributes that identify a message. Each has one value, a text or an integer."""

STRUCTURED = "application/cloudevents+json"
ATTEMPTS, HISTORY, ALONE, HELD = "onceonlyattempts", "onceonlyhistory", "onceonlyalone", "onceonlyheld"
DUE = "onceonlydue"
"""When a message in the queue of a host is due, in milliseconds since 1970; see `onceonly.queues.host_queue`."""
REASON_LIMIT = 200
"""Characters of each reason in the history that a copy carries."""
TRACEBACK_BYTES = 4_000
"""Bytes of one traceback in that history, as JSON. A longer one keeps its end, which has the innermost frames."""
ALL_TRACEBACKS_BYTES = 16_000
"""Bytes of all tracebacks in that history together. They share them equally."""
_CUT = "...\n"
OWN = frozenset({ATTEMPTS, HISTORY, ALONE, HELD, DUE})
_CORE = frozenset({"id", "source", "type", "time", "subject", "datacontenttype", "specversion"})
_COPIED = frozenset({ATTEMPTS, ALONE, HELD})
_LATEST = 253_402_300_799_999  # the end of the year 9999, in milliseconds

_COUNT = re.compile(r"[0-9]{1,9}")
_INSTANT = re.compile(r"[0-9]{1,15}")

_encode_json = msgspec.json.Encoder().encode
_decode_history = msgspec.json.Decoder(tuple[Failure, ...]).decode


class Event(Struct, frozen=True):
    """A delivery: its CloudEvents attributes, in lower case and without a prefix, its other headers, and its data."""

    attributes: Mapping[str, str]
    headers: Headers
    body: bytes


def encode(send: Send, prefix: str = PREFIX, *, tracebacks: bool = True) -> tuple[Headers, bytes]:
    """Return the headers and the body of a message to send. The names of attributes begin with `prefix`.

    Store headers and body exactly, in this order, and pass them to `arrival` when they are delivered. Without `tracebacks` the
    history of a copy is short, for a transport with a limit on headers. A message that another format has written has its
    headers, and no attributes.
    """
    message = send.message
    if send.formatted:
        return (("content-type", message.datacontenttype), *message.headers), message.body
    headers = [
        (prefix + "specversion", "1.0"),
        (prefix + "id", message.id),
        (prefix + "source", message.source),
        (prefix + "type", message.type),
    ]
    optional = (("time", message.time), ("subject", message.subject))
    headers += [(prefix + name, value) for name, value in (*optional, *message.extensions) if value]
    if send.attempts:
        headers.append((prefix + ATTEMPTS, str(send.attempts)))
    if send.history:
        limit = _traceback_limit(send.history) if tracebacks else 0
        headers.append((prefix + HISTORY, _encode_json([_shortened(failure, limit) for failure in send.history]).decode()))
    if send.alone:
        headers.append((prefix + ALONE, "1"))
    if send.held:
        headers.append((prefix + HELD, str(send.held)))
    headers.append(("content-type", message.datacontenttype))
    return (*headers, *message.headers), message.body


def _traceback_limit(history: Sequence[Failure]) -> int:
    count = sum(bool(failure.traceback) for failure in history)
    return min(TRACEBACK_BYTES, ALL_TRACEBACKS_BYTES // max(count, 1))


def _shortened(failure: Failure, limit: int) -> Failure:
    return msgspec.structs.replace(failure, reason=failure.reason[:REASON_LIMIT], traceback=_end_of(failure.traceback, limit))


def _end_of(traceback: str, limit: int) -> str:
    """Return as many of the last lines as fit, in JSON. Of a single line that is longer, the end."""
    if not limit or len(_encode_json(traceback)) <= limit:
        return traceback if limit else ""
    kept = traceback[-limit:]
    while (excess := len(_encode_json(_CUT + kept)) - limit) > 0:
        kept = kept[max(1, excess // 2) :]
    _, _, whole_lines = kept.partition("\n")
    return _CUT + (whole_lines or kept)


def arrival(receipt: Hashable, queue: str, headers: Headers, body: bytes, *, suspect: bool) -> Delivery:
    """Return the delivery for headers and a body that arrived. Never raises: the endpoint decides whether they are a message.

    `receipt` is what the transport needs to ack or release it. `suspect` is true for a delivery that no receiver has released.
    """
    own = {name: value for key, value in headers if (name := attribute_of(key)) in OWN}
    return Delivery(
        receipt=receipt,
        queue=queue,
        headers=headers,
        body=body,
        suspect=suspect,
        attempts=_count(own.get(ATTEMPTS, "")),
        history=_history(own.get(HISTORY, "")),
        alone=own.get(ALONE) == "1",
        held=_count(own.get(HELD, "")),
    )


def due_of(headers: Headers) -> int:
    """Return when a message in the queue of a host is due, in milliseconds since 1970. 0 if it says nothing."""
    text = next((value for key, value in headers if attribute_of(key) == DUE), "")
    return int(text) if _INSTANT.fullmatch(text) else 0


def _count(text: str) -> int:
    return int(text) if _COUNT.fullmatch(text) else 0


def take_apart(headers: Headers, body: bytes) -> Event:
    """Separate CloudEvents attributes from other headers; in structured mode they are in the body.

    Raises ValueError, saying why, when a structured body is not a CloudEvent, when a transport could not read the headers, or
    when the headers give two ids, sources or types.
    """
    if headers and headers[0][0] == UNREADABLE:
        raise ValueError(headers[0][1])
    attributes: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    content_types: list[str] = []
    for key, value in headers:
        name = attribute_of(key)
        if name is not None:
            if name in OWN:
                continue
            if name in attributes and name in NAMING and attributes[name] != value:
                raise ValueError(f"the attribute `{name}` has two values. Send it once")
            attributes[name] = value
        elif key.lower() == "content-type":
            content_types.append(value)
        else:
            others.append((key, value))
    content_type = content_types[0] if content_types else ""
    if is_structured(content_type):
        document, body = parse_structured(body)
        attributes |= {key: value for key, value in document.items() if key not in OWN}
    else:
        attributes.setdefault("datacontenttype", content_type or "application/json")
    if is_structured(attributes["datacontenttype"]):  # a copy of it would be read as the message that is in its data
        raise ValueError(f"the attribute `datacontenttype` is {STRUCTURED}, which no message in a message can have")
    return Event(attributes, tuple(others), body)


def is_copy(delivery: Delivery) -> bool:
    """Return whether a delivery is a copy that this library made of an earlier one: then its attributes name the message."""
    return not _COPIED.isdisjoint([attribute_of(key) for key, _ in delivery.headers])


def message_of(event: Event, *, source: str, id: str) -> Message:  # noqa: A002 - the CloudEvents name
    return Message(**fields_of(event, source=source, id=id))


def fields_of(event: Event, *, source: str, id: str) -> dict[str, Any]:  # noqa: A002 - the CloudEvents name
    """Return the fields of the message of an event whose identity has been decided."""
    known = event.attributes
    return {
        "id": id,
        "source": source,
        "type": known.get("type", ""),
        "body": event.body,
        "time": known.get("time", ""),
        "subject": known.get("subject", ""),
        "datacontenttype": known.get("datacontenttype", "application/json"),
        "extensions": tuple([item for item in known.items() if item[0] not in _CORE]),
        "headers": readable_headers(event.headers) if event.headers else (),
    }


def parse_structured(body: bytes) -> tuple[dict[str, str], bytes]:
    """Read a CloudEvent in its JSON format; returns its attributes and its data as bytes.

    Raises ValueError, saying why, when it is none.
    """
    try:
        return parse_document(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a CloudEvent in JSON format: {error}") from error


def parse_document(fields: Mapping[str, msgspec.Raw]) -> tuple[dict[str, str], bytes]:
    """Read the fields of a CloudEvent in its JSON format, as `parse_structured`. Raises ValueError, saying why."""
    document = dict(fields)
    try:
        data, data64 = document.pop("data", None), document.pop("data_base64", None)
        attributes = {name.lower(): _text(name, raw) for name, raw in document.items()}
        if len(attributes) != len(document):
            raise ValueError("not a CloudEvent in JSON format: two attributes differ only in case")
        attributes.setdefault("datacontenttype", "application/json")
        return attributes, _payload(data, data64, attributes["datacontenttype"])
    except msgspec.MsgspecError as error:
        raise ValueError(f"not a CloudEvent in JSON format: {error}") from error


def _payload(data: msgspec.Raw | None, data64: msgspec.Raw | None, content_type: str) -> bytes:
    if data64 is not None:
        return msgspec.json.decode(data64, type=bytes)
    if data is not None and content_type.startswith("text/"):
        return msgspec.json.decode(data, type=str).encode()
    return bytes(data or b"")


def _text(name: str, raw: msgspec.Raw) -> str:
    value = msgspec.json.decode(raw)
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        problem = f"not a CloudEvent in JSON format: the attribute `{name}` is an object or a list"
        raise ValueError(problem)  # noqa: TRY004 - input, no type
    if isinstance(value, bool | float) and name.lower() in NAMING:
        raise ValueError(f"not a CloudEvent in JSON format: the attribute `{name}` must be text")
    return "" if value is None else bytes(raw).decode()  # a number as it was written: -0 is not 0


@lru_cache(100)
def is_structured(content_type: str) -> bool:
    """Return whether a body of this content type is read as a whole CloudEvent, with its attributes."""
    return content_type.split(";", maxsplit=1)[0].strip().lower() == STRUCTURED


@lru_cache(1000)
def attribute_of(key: str) -> str | None:
    """Return the CloudEvents attribute that a header with this name has, or None."""
    if not is_utf8(key):
        return None
    lower = key.lower()
    return next((lower[len(prefix) :] for prefix in PREFIXES if lower.startswith(prefix)), None)


def _history(text: str) -> tuple[Failure, ...]:
    """Read a history; a forged one is ignored, because no store takes its numbers."""
    try:
        found = _decode_history(text) if text else ()
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ()
    return found if all(0 <= each.at <= _LATEST and 0 <= each.delay <= _LATEST for each in found) else ()
