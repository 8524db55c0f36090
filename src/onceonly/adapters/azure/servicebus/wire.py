"""Messages in the words of Service Bus: headers are application properties, and CloudEvents attributes have a prefix.

The content type is AMQP's own. The property `message-id` is new for each copy: a queue with duplicate detection would drop a
retry copy that has the id of its original. The identity is in the CloudEvents attributes. A message of another format has its
id, type and conversation in the properties of the service, for other programs. It is never a retry copy.
"""

import json
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from onceonly.adapters.azure.servicebus.address import HEADER_BYTES
from onceonly.formats.cloudevents import UNREADABLE
from onceonly.model.escaping import is_utf8, raw
from onceonly.model.message import PARTITION_KEY, Headers, Message

PREFIX = "cloudEvents_"
OWN = "onceonly-"
"""How the message id of a message begins that this library has sent."""
MORE = "onceonly-headers"
"""The property with the headers that have no property of their own: a list of pairs, in JSON."""
MOST_PROPERTY_BYTES = 32_000
MOST_HEADER_BYTES = HEADER_BYTES - 2_000
MOST_CONTENT_TYPE = 200
MOST_ID = 128
"""Characters of a message id that the service takes."""
_CONTENT_TYPE = "content-type"
_SHOWN = ("message-id", "correlation-id", "reply-to", "subject", "session-id")


def to_properties(headers: Headers) -> tuple[str | None, dict[str, str]] | None:
    """Return the content type and the application properties for headers; None if the service does not take them."""
    properties: dict[str, str] = {}
    others: list[tuple[str, str]] = []
    content_type = None
    for name, value in headers:
        if name == _CONTENT_TYPE and content_type is None and is_utf8(value) and len(value) <= MOST_CONTENT_TYPE:
            content_type = value
        elif not name or name in properties or name == MORE or not (is_utf8(name) and is_utf8(value)):
            others.append((name, value))
        else:
            properties[name] = value
    if others:
        properties[MORE] = json.dumps(others)  # writes lone surrogates as escapes
    sizes = [len(raw(name)) + len(raw(value)) + 10 for name, value in properties.items()]
    if sum(sizes) > MOST_HEADER_BYTES or max(sizes, default=0) > MOST_PROPERTY_BYTES:
        return None
    return content_type, properties


def headers_of(message: ServiceBusReceivedMessage) -> Headers:
    """Return the headers of a message that arrived, as text. Never raises: what cannot be read is unreadable."""
    try:
        return tuple(_headers(message))
    except Exception as error:  # noqa: BLE001 - whatever a producer sends costs its own message and no other
        return ((UNREADABLE, f"the message's properties cannot be decoded: {error}. Correct the sender"),)


def body_of(message: ServiceBusReceivedMessage) -> tuple[bytes, str]:
    """Return the body, and why it is none that can be handled, or an empty text. Never raises."""
    try:
        if message.body_type == AmqpMessageBodyType.DATA:
            parts: Any = message.body
            return b"".join(map(bytes, parts)), ""
        value: Any = message.body
        if message.body_type == AmqpMessageBodyType.VALUE and isinstance(value, bytes | str):
            return value if isinstance(value, bytes) else raw(value), ""
        if value is None:
            return b"", ""
        kind = str(getattr(message.body_type, "value", message.body_type))
        values = list(value) if message.body_type == AmqpMessageBodyType.SEQUENCE else value
        return raw(_text(values)), f"its body is an AMQP {kind}, not binary data. Correct the sender"
    except Exception as error:  # noqa: BLE001 - see above
        return b"", f"its body cannot be decoded: {error}. Correct the sender"


def outgoing(
    properties: tuple[str | None, dict[str, str]],
    body: bytes,
    *,
    message_id: str,
    session: str | None = None,
    formatted: Message | None = None,
) -> ServiceBusMessage:
    """Make a message. `formatted` is the message of the application if another format than CloudEvents has written it."""
    content_type, named = properties
    found: Any = named  # the SDK takes text and bytes as names, in one invariant dict
    return ServiceBusMessage(
        body,
        application_properties=found,
        content_type=content_type,
        message_id=OWN + message_id if formatted is None or len(formatted.id) > MOST_ID else formatted.id,
        subject=None if formatted is None else formatted.type,
        correlation_id=None if formatted is None else formatted.extension("conversationid") or None,
        session_id=session,
    )


def _headers(message: ServiceBusReceivedMessage) -> Iterable[tuple[str, str]]:
    if message.content_type:
        yield _CONTENT_TYPE, _text(message.content_type)
    named = set()
    for key, value in (message.application_properties or {}).items():
        name = _text(key)
        named.add(name)
        if name == MORE:
            pairs = json.loads(_text(value))
            yield from ((str(first), str(second)) for first, second in pairs)
        else:
            yield name, _text(value)
    if not _text(message.message_id).startswith(OWN):
        shown = (message.message_id, message.correlation_id, message.reply_to, message.subject, message.session_id)
        yield from ((name, text) for name, value in zip(_SHOWN, shown, strict=True) if (text := _text(value)))
        if message.session_id and PREFIX + PARTITION_KEY not in named:
            yield PREFIX + PARTITION_KEY, _text(message.session_id)


def _text(value: object) -> str:
    """Write a value of any AMQP type. Two different strings never become one text."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps({_text(key): _plain(each) for key, each in value.items()})
    if isinstance(value, list | tuple):
        return json.dumps([_plain(each) for each in value])
    return "" if value is None else str(value)


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float) or value is None:
        return value
    return _text(value) if isinstance(value, bytes | str | UUID) else json.loads(_text(value))
