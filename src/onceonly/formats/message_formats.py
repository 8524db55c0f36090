"""Formats of messages on the wire: what reads headers and a body as a message, and writes a message as headers and a body.

A format is applied once, at the call that builds a message, so that every dispatch sends the same bytes. What is written is
read back by the same format and compared. What would be read as another message is refused.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onceonly.formats.cloudevents import (
    NAMING,
    OWN,
    UNREADABLE,
    Event,
    attribute_of,
    encode,
    is_structured,
    take_apart,
)
from onceonly.formats.codecs import JSON
from onceonly.formats.identity import NoIdentity
from onceonly.model.errors import USERS_ERRORS, error_text, text_of
from onceonly.model.headers import content_type_problem, headers_of, size_problem
from onceonly.model.message import EXPIRES, PARTITION_KEY, TRACE_CONTEXT, Headers, Message, Send
from onceonly.model.wording import an

__all__ = [
    "CloudEvents",
    "MessageFormat",
    "MessageParts",
    "PlainJson",
    "WrittenMessage",
    "format_problem",
    "is_cloudevent",
    "read_formatted",
    "write_formatted",
]

CONVERSATION = "conversationid"
_CONTENT_TYPE = "content-type"
_FIELD = "$."
_CORE = {"time": "time", "subject": "subject", "datacontenttype": "content_type"}
_TEXTS = ("id", "type", "source", "conversation", "time", "subject", "content_type")


class MessageParts(Struct, frozen=True, kw_only=True):
    """What a format has read.

    * `id`: the same in every copy of the message. `source`: the sender that chose it. Empty: the name of the queue.
    * `type`: selects the handler. Empty: that of the only handler.
    * `body`: the bytes that the handler's class is read from. Copies are recognized by its bytes, so leave out what differs
      from copy to copy.
    * `conversation`: the id of the conversation. `time`: as in RFC 3339. `content_type`: that of the body.
    * `extensions`: CloudEvents extension attributes, such as `("expirytime", "2026-01-01T00:00:00Z")`.
    * `headers`: headers in addition to those of the delivery, such as those of an envelope.
    """

    id: str
    body: bytes
    type: str = ""
    source: str = ""
    conversation: str = ""
    time: str = ""
    subject: str = ""
    content_type: str = JSON
    extensions: Headers = ()
    headers: Headers = ()


class WrittenMessage(Struct, frozen=True, kw_only=True):
    """What a format has written. The names of `headers` follow the rules of `headers=`, and each occurs once."""

    body: bytes
    headers: Headers = ()
    content_type: str = JSON


@runtime_checkable
class MessageFormat(Protocol):
    """How messages look on the wire. One object serves all threads of a process. Both methods are pure functions."""

    def read(self, headers: Headers, body: bytes) -> MessageParts:
        """Read a message as it arrived. Headers have the names that the transport gives them.

        Raises ValueError, whose text says why, for what is not a message. It becomes a dead letter with this reason.
        """

    def write(self, message: Message) -> WrittenMessage:
        """Write a message, whose id and time are final. `read` must read it back. Raises ValueError, which the caller gets."""


class CloudEvents(Struct, frozen=True):
    """CloudEvents 1.0: attributes are headers. One JSON document (structured mode) is read as well. This is the default."""

    def read(self, headers: Headers, body: bytes) -> MessageParts:
        """Read a CloudEvent. Raises ValueError."""
        event = take_apart(headers, body)
        known = dict(event.attributes)
        conversation = known.pop(CONVERSATION, "")
        named: dict[str, Any] = {name: known.pop(name, "") for name in ("id", "type", "source")}
        named |= {field: known.pop(name) for name, field in _CORE.items() if name in known}
        known.pop("specversion", None)
        return MessageParts(
            **named,
            body=event.body,
            conversation=conversation,
            extensions=tuple(known.items()),
            headers=event.headers,
        )

    def write(self, message: Message) -> WrittenMessage:
        """Write attributes as headers with the prefix `ce-`."""
        headers, body = encode(Send(message=message))
        others = tuple(pair for pair in headers if pair[0] != _CONTENT_TYPE)
        return WrittenMessage(body=body, headers=others, content_type=message.datacontenttype)


class PlainJson(Struct, frozen=True, kw_only=True):
    """Plain bodies, with id and type in headers, or in fields of a JSON body.

    Each argument is the name of a header, in any case, or `$.event.id` for a field of the body. None: the messages have none.

    * `id`: what all copies of a message have in common. `type`: None if the endpoint has one handler.
    * `source`: who chose the id. None: the name of the queue. `conversation`: the id of the conversation.

    What is sent has these headers. A field must be in the body already, and have the value of the message.
    """

    id: str = "message-id"
    type: str | None = "type"
    source: str | None = None
    conversation: str | None = "correlation-id"

    def __post_init__(self) -> None:
        headers: dict[str, str] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is None and name != "id":
                continue
            if not _is_place(value):
                raise ValueError(
                    f"PlainJson: {name} must be the name of a header, or a field such as '$.event.id', not {value!r:.100}"
                )
            if not value.startswith(_FIELD) and (other := headers.setdefault(value.lower(), name)) != name:
                raise ValueError(f"PlainJson: {other} and {name} are both the header {value!r:.100}. Use two headers")

    def read(self, headers: Headers, body: bytes) -> MessageParts:
        """Read a message. Raises ValueError."""
        places = [place for each in self.__struct_fields__ if (place := getattr(self, each)) is not None]
        document = _document(body) if any(place.startswith(_FIELD) for place in places) else None
        found: dict[str, Any] = {name: _value(getattr(self, name), headers, document) for name in self.__struct_fields__}
        if not found["id"].strip():
            raise NoIdentity(
                f"no identity: {_described(self.id)} is missing or empty, so copies of this message cannot be recognized"
            )
        if self.type is not None and not found["type"]:  # AMQP has a property for it, which transports show as an attribute
            found["type"] = next((value for name, value in headers if attribute_of(name) == "type"), "")
        trace = tuple((name.lower(), value) for name, value in headers if name.lower() in TRACE_CONTEXT)
        return MessageParts(**found, body=body, content_type=_content_type(headers), extensions=trace)

    def write(self, message: Message) -> WrittenMessage:
        """Write a message. Raises ValueError for a field that the body does not have."""
        values = {"id": message.id, "type": message.type, "source": message.source}
        values["conversation"] = message.extension(CONVERSATION)
        headers: list[tuple[str, str]] = []
        for name, value in values.items():
            place = getattr(self, name)
            if place is None or not value:
                continue
            if not place.startswith(_FIELD):
                headers.append((place, value))
            elif (found := _value(place, (), _document(message.body))) != value:
                raise ValueError(
                    f"{_described(place)} holds the {name} of the message, which is {value!r:.100}, and it is {found!r:.100}"
                )
        own = {name.lower(): value for name, value in message.headers}
        headers += [item for item in message.extensions if item[0] in TRACE_CONTEXT and item[0] not in own]
        for name, value in headers:
            if own.get(name.lower(), value) != value:
                raise ValueError(f"the header {name!r} is written by PlainJson. Remove it from headers= and carry_headers=")
        written = {name.lower() for name, _ in headers}
        others = [pair for pair in message.headers if pair[0].lower() not in written]
        return WrittenMessage(body=message.body, headers=(*headers, *others), content_type=message.datacontenttype)


def format_problem(given: object) -> str | None:
    """Return what is wrong with a setting `format=`, or None."""
    if isinstance(given, MessageFormat) and not isinstance(given, type):
        return None
    return f"format must be CloudEvents(), PlainJson(...) or an object with the methods read and write, not {given!r:.100}"


def is_cloudevent(headers: Headers) -> bool:
    """Return whether a delivery is a CloudEvent by its headers. Endpoints of every format read those.

    Retry copies are CloudEvents, and so is what `onceonly send` writes.
    """
    names = {attribute_of(name) for name, _ in headers}
    return {"specversion", "id"} <= names or is_structured(_content_type(headers))


def read_formatted(format_: MessageFormat, headers: Headers, body: bytes) -> Event:
    """Read a delivery in a format. Raises ValueError, saying why it is not a message."""
    if headers and headers[0][0] == UNREADABLE:
        raise ValueError(headers[0][1])
    id_of_host = next((value for name, value in headers if attribute_of(name) == "id"), "")
    try:
        parts: Any = format_.read(_with_id(format_, headers, id_of_host), body)
    except NoIdentity:
        raise
    except ValueError as error:
        raise ValueError(text_of(error)) from error
    except USERS_ERRORS as error:
        raise ValueError(f"{_name(format_)} failed: {error_text(error)}") from error
    if problem := _parts_problem(parts):
        raise ValueError(f"{_name(format_)} returned {problem}")
    id_ = parts.id if parts.id.strip() else id_of_host
    if not id_:
        raise NoIdentity(f"no identity: {_name(format_)} read no id, so copies of this message cannot be recognized")
    attributes = {"id": id_, "source": parts.source, "type": parts.type, "time": parts.time, "subject": parts.subject}
    attributes |= {"datacontenttype": parts.content_type, CONVERSATION: parts.conversation, **dict(parts.extensions)}
    others: list[tuple[str, str]] = []
    for name, value in headers:
        attribute = attribute_of(name)
        if attribute == PARTITION_KEY:  # which brokers with groups show
            attributes.setdefault(PARTITION_KEY, value)
        elif attribute is None and name.lower() != _CONTENT_TYPE:
            others.append((name, value))
    others += [pair for pair in parts.headers if pair not in others]
    return Event({name: value for name, value in attributes.items() if value}, tuple(others), parts.body)


def _with_id(format_: MessageFormat, headers: Headers, id_of_host: str) -> Headers:
    """Return headers with the id that a host has for a message whose own header for it is missing or empty."""
    if not id_of_host or not isinstance(format_, PlainJson) or format_.id.startswith(_FIELD):
        return headers
    wanted = format_.id.lower()
    if any(name.lower() == wanted and value.strip() for name, value in headers):
        return headers
    return (*(pair for pair in headers if pair[0].lower() != wanted), (format_.id, id_of_host))


def write_formatted(format_: MessageFormat, message: Message) -> Message:
    """Return a message with the headers, the content type and the bytes of a format. Raises ValueError, saying why not.

    Its fingerprint stays that of its body, until it is stored.
    """
    try:
        written: Any = format_.write(message)
    except ValueError as error:
        raise ValueError(text_of(error)) from error
    except USERS_ERRORS as error:
        raise ValueError(f"{_name(format_)} failed: {error_text(error)}") from error
    if not isinstance(written, WrittenMessage) or not (_is_bytes(written.body) and _are_pairs(written.headers)):
        raise ValueError(
            f"{_name(format_)} returned {an(type(written).__name__)}: return WrittenMessage(...) of bytes and pairs of texts"
        )
    headers = headers_of(dict(written.headers))
    if len(headers) != len(written.headers):
        raise ValueError(f"{_name(format_)} wrote a header twice: {', '.join(name for name, _ in written.headers)}")
    if problem := size_problem(headers):
        raise ValueError(problem)
    if problem := content_type_problem(written.content_type):
        raise ValueError(f"the content type of {_name(format_)} {problem}")
    if is_structured(written.content_type):
        raise ValueError(f"{_name(format_)} wrote {written.content_type!r}, which receivers take for a whole CloudEvent")
    try:
        event = read_formatted(format_, ((_CONTENT_TYPE, written.content_type), *headers), written.body)
    except ValueError as error:
        raise ValueError(f"{_name(format_)} could not read it back: {error}") from error
    if lost := _lost(message, event):
        raise ValueError(f"{_name(format_)} would read it back with another {lost}")
    final = replace(message, headers=headers, body=written.body, datacontenttype=written.content_type)
    final.__dict__["fingerprint"] = message.fingerprint  # that of the message which its receivers read
    return final


def _lost(message: Message, event: Event) -> str:
    """Return what of a message its receivers would not read as it is; empty if all is there."""
    read = event.attributes
    required = {"id": message.id, "type": message.type, EXPIRES: message.extension(EXPIRES)}
    for name, value in required.items():
        if value and read.get(name, "") != value and not (name == "type" and not read.get(name)):
            return f"{'expiry' if name == EXPIRES else name}: {read.get(name, '')!r:.100} for {value!r:.100}"
    optional = {"source": message.source, CONVERSATION: message.extension(CONVERSATION)}
    for name, value in optional.items():
        if value and read.get(name, value) != value:
            return f"{name}: {read[name]!r:.100} for {value!r:.100}"
    if event.body != message.body:
        return f"body: {event.body[:60]!r} for {message.body[:60]!r}"
    arrived = {(name.lower(), value) for name, value in event.headers}
    absent = next((name for name, value in message.headers if (name.lower(), value) not in arrived), None)
    return "" if absent is None else f"value of header {absent!r}"


def _parts_problem(parts: Any) -> str:
    if not isinstance(parts, MessageParts):
        return f"{an(type(parts).__name__)}: return MessageParts(...)"
    wrong = next((name for name in _TEXTS if not isinstance(getattr(parts, name), str)), None)
    if wrong is not None:
        return f"{wrong}={getattr(parts, wrong)!r:.100}: it must be text"
    if not (_is_bytes(parts.body) and _are_pairs(parts.headers) and _are_pairs(parts.extensions)):
        return "a body that is not bytes, or headers or extensions that are not tuples of pairs of texts"
    reserved = next((name for name, _ in parts.extensions if name in OWN or name in NAMING or name in _CORE), None)
    if reserved is not None:
        return f"the extension {reserved!r}, which is not one"
    if is_structured(parts.content_type):  # a copy of it would be read as the message that is in its data
        return f"the content type {parts.content_type!r}, which no message in a message can have"
    return ""


def _is_place(value: object) -> bool:
    """Return whether a value names a header, or a field by its path. A path does not lead into lists."""
    if not isinstance(value, str) or not value.strip():
        return False
    if not value.startswith("$"):
        return True
    parts = value.removeprefix(_FIELD).split(".")
    return value.startswith(_FIELD) and all(part.strip() for part in parts) and "[" not in value


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _are_pairs(pairs: object) -> bool:
    return isinstance(pairs, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(each, str) for each in pair)  # noqa: PLR2004 - a pair
        for pair in pairs
    )


def _name(format_: object) -> str:
    return type(format_).__name__


def _content_type(headers: Headers) -> str:
    return next((value for name, value in headers if name.lower() == _CONTENT_TYPE), "") or JSON


def _described(place: str) -> str:
    return f"field {place.removeprefix(_FIELD)!r}" if place.startswith(_FIELD) else f"header {place!r}"


def _value(place: str | None, headers: Headers, document: object) -> str:
    """Return the text of a header or a field; empty where there is none. Raises ValueError if there is no one text."""
    if place is None:
        return ""
    if not place.startswith(_FIELD):
        wanted = place.lower()
        values = {value for name, value in headers if name.lower() == wanted}
        if len(values) > 1:
            raise ValueError(f"{_described(place)} has {len(values)} values. Send it once")
        return values.pop() if values else ""
    value: Any = document
    for part in place.removeprefix(_FIELD).split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        problem = f"{_described(place)} must be text or an integer, not {an(type(value).__name__)}"
        raise ValueError(problem)  # noqa: TRY004 - input, no type
    return str(value)


def _document(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the body is not JSON: {error}") from error
