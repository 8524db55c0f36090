"""Destinations that are not endpoints: what a broker has by its own name, and other programs receive from.

The field `Send.to` and everything that stores it hold a text. For a destination the text begins with its kind and a colon,
which no endpoint's name has:

    queue:Sales        exchange:Sales.Messages:OrderBilled#order.billed        subject:orders.placed        stream:orders#body

One kind is not the broker's: a carrier, which sends the messages of another library in that library's own form.
"""

import re
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar
from unicodedata import category
from urllib.parse import quote, unquote

from msgspec import Struct

from onceonly.model.errors import InvalidEffect
from onceonly.model.wording import an

__all__ = [
    "KINDS",
    "Carrier",
    "Destination",
    "Exchange",
    "Queue",
    "Stream",
    "Subject",
    "Topic",
    "is_destination",
    "read_destination",
    "write_destination",
]

LONGEST_NAME = 512
"""Bytes of a name: a URL of an SQS queue and an ARN of an SNS topic fit."""
LONGEST_SHORT = 255
"""Bytes of a short string in AMQP 0-9-1: the name of a queue or an exchange, and a routing key."""
BODY_FIELD = "data"
"""The field of an entry of a Redis stream that has the body, unless the destination names another one."""
_SAFE = "/:;,.@$&!*'()+=~-_?[]{}|^<>"
_KEY = "#"
_SUBJECT = r"(?!\$)[^\s.*>]+(\.[^\s.*>]+)*"


class Destination(Struct, frozen=True, kw_only=True):
    """What all destinations have. `format` is how messages are written for it. None: the format of the endpoint."""

    kind: ClassVar[str] = ""
    longest: ClassVar[int] = LONGEST_NAME

    format: Any = None

    def __str__(self) -> str:
        return write_destination(self)


class Queue(Destination, frozen=True):
    """A queue of another program, by the name that the broker has for it: no prefix is added.

    On SQS the name is a queue's name or URL. A name has 1 to 512 bytes. Raises InvalidEffect for another one.
    """

    kind = "queue"

    name: str

    def __post_init__(self) -> None:
        _check(self, "name", self.name)


class Subject(Destination, frozen=True):
    """A subject of NATS that a JetStream stream stores, without wildcards.

    A name has 1 to 512 bytes. Raises InvalidEffect for another one, and for what is not a subject to publish to.
    """

    kind = "subject"

    name: str

    def __post_init__(self) -> None:
        _check(self, "name", self.name)
        if not re.fullmatch(_SUBJECT, self.name):
            raise InvalidEffect(
                f"Subject({self.name!r}): a subject is words joined by dots, without blanks and wildcards, and does not begin "
                "with '$'. Correct the name"
            )


class Stream(Destination, frozen=True):
    """A stream of Redis, by its key. `field` is the field of an entry that has the message's body.

    A key and a field have 1 to 512 bytes. Raises InvalidEffect for others.
    """

    kind = "stream"

    name: str
    field: str = BODY_FIELD

    def __post_init__(self) -> None:
        _check(self, "name", self.name)
        _check(self, "field", self.field)


class Exchange(Destination, frozen=True):
    """An exchange of RabbitMQ, and the routing key of what is published to it.

    A name has 1 to 255 bytes, a key at most 255. Raises InvalidEffect for others. For the default exchange use `Queue`.
    """

    kind = "exchange"
    longest = LONGEST_SHORT

    name: str
    routing_key: str = ""

    def __post_init__(self) -> None:
        _check(self, "name", self.name)
        if self.routing_key != "":
            _check(self, "routing_key", self.routing_key)


class Topic(Destination, frozen=True):
    """A topic: the ARN of one on SNS, the name of one on Azure Service Bus.

    A name has 1 to 512 bytes. Raises InvalidEffect for another one.
    """

    kind = "topic"

    name: str

    def __post_init__(self) -> None:
        _check(self, "name", self.name)


class Carrier(Destination, frozen=True):
    """What a carrier of this process sends to, such as the task queues of a Celery application.

    `name` is that of the carrier, and what it calls the place, such as "celery:billing". The message's body has all else.
    A name has 1 to 512 bytes. Raises InvalidEffect for another one.
    """

    kind = "carrier"

    name: str

    def __post_init__(self) -> None:
        _check(self, "name", self.name)

    @property
    def carrier(self) -> str:
        """The name of the carrier."""
        return self.name.partition(":")[0]

    @property
    def place(self) -> str:
        """What the carrier calls the place."""
        return self.name.partition(":")[2]


_NAMED = (Queue, Subject, Stream, Topic, Carrier)
KINDS = MappingProxyType({each.kind: each for each in (*_NAMED, Exchange)})
"""The classes of destinations, by their kind."""


def write_destination(destination: Destination) -> str:
    """Return the text of a destination: ASCII without blanks, equal for equal places. The format is not part of it."""
    if isinstance(destination, Exchange):
        key = f"{_KEY}{_quoted(destination.routing_key)}" if destination.routing_key else ""
        return f"exchange:{_quoted(destination.name)}{key}"
    if isinstance(destination, Stream) and destination.field != BODY_FIELD:
        return f"stream:{_quoted(destination.name)}{_KEY}{_quoted(destination.field)}"
    if isinstance(destination, _NAMED):
        return f"{destination.kind}:{_quoted(destination.name)}"
    raise InvalidEffect(f"a destination is one of {', '.join(each.__name__ for each in KINDS.values())}, not {destination!r}")


def is_destination(to: str) -> bool:
    """Return whether the text of `Send.to` names something else than an endpoint. False for that of an event."""
    return ":" in to


@lru_cache(1000)
def read_destination(to: str) -> Destination | None:
    """Read the text of a destination. None for an endpoint's name, and for what `write_destination` does not return."""
    kind, colon, rest = to.partition(":")
    made = KINDS.get(kind)
    if not colon or made is None:
        return None
    try:
        found = _read(made, rest)
    except (InvalidEffect, UnicodeDecodeError):
        return None
    return found if write_destination(found) == to else None


def _read(kind: type[Destination], text: str) -> Destination:
    name, mark, key = text.partition(_KEY)
    if issubclass(kind, Exchange):
        return kind(_unquoted(name), _unquoted(key))
    if mark and issubclass(kind, Stream):
        return kind(_unquoted(name), _unquoted(key))
    if mark:
        raise InvalidEffect(f"only an exchange has a key, and a stream a field: {text!r}")
    made: Any = kind
    found: Destination = made(_unquoted(name))
    return found


def _quoted(text: str) -> str:
    return quote(text, safe=_SAFE)


def _unquoted(text: str) -> str:
    return unquote(text, errors="strict")


def _check(destination: Destination, field: str, value: object) -> None:
    what, longest = type(destination).__name__, destination.longest
    if not isinstance(value, str):
        raise InvalidEffect(f"{what}: {field} must be text, not {an(type(value).__name__)}")
    if any(category(letter) in ("Cc", "Cs") for letter in value):
        raise InvalidEffect(f"{what}({value!r}): {field} has control characters or is not valid Unicode. Use plain text")
    if not value or len(value.encode()) > longest:
        raise InvalidEffect(f"{what}: {field} has {len(value.encode())} bytes; it must have 1 to {longest}")
