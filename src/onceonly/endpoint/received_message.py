"""Reading a delivery: CloudEvents attributes, identity and type, or why it is not a message."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from onceonly.formats.cloudevents import Event, fields_of, take_apart
from onceonly.formats.identity import BY_RULE, DECIDED, IdentityRule, NoIdentity, TooLong, identify, is_foreign
from onceonly.model.message import EXPIRES, Delivery, Message, Unreadable
from onceonly.model.retry import unhandled_since

if TYPE_CHECKING:  # imported where a format is set
    from onceonly.formats.message_formats import MessageFormat

Place = Callable[[Message], Message | Unreadable]
"""Finds out which entity a message is about."""
UNENTITLED = (
    "has no token. This endpoint uses deduplication=Tokens(...), so its messages must come from "
    "`onceonly send`, or from endpoints that use the same Tokens(...) and list it as a subscriber"
)


class ReceivedMessage(Message, frozen=True, kw_only=True):
    """A message as it arrived: it also knows how often this copy's message failed before.

    `unhandled_since` is when it first came to a process without a handler for its type, in milliseconds since 1970, or 0.
    """

    attempts: int = 0
    unhandled_since: int = 0


NOWHERE: Mapping[str, Place] = MappingProxyType({})
"""The places of an endpoint without entities."""


def read(  # noqa: PLR0913 - what an endpoint knows of its messages, by name
    delivery: Delivery,
    types: Sequence[str],
    *,
    identity: IdentityRule | None,
    max_body: int,
    places: Mapping[str, Place] = NOWHERE,
    needs_token: bool = False,
    format_: "MessageFormat | None" = None,
) -> Message | Unreadable:
    """Return the message of a delivery. One without a type is taken for the only type that `types` holds, if it holds one.

    `places` find the unit of a message by its type, where it has one. `format_` reads what is not a CloudEvent; None: all is.
    The type itself is not judged: a message that was handled already may have pending effects, whoever takes its type today.
    """
    try:
        event = take_apart(delivery.headers, delivery.body) if format_ is None else _read_in_format(format_, delivery)
        by_rule = identity is not None and is_foreign(event, delivery)
        found = identify(event, delivery, identity if by_rule else None)
    except (NoIdentity, TooLong) as error:
        return Unreadable(reason=str(error))
    except (ValueError, RecursionError) as error:
        return Unreadable(reason=f"cannot be read: {error}")
    fields = fields_of(event, source=found.source, id=found.id)
    if not fields["type"] and len(types) == 1:
        fields["type"] = types[0]
    if by_rule:
        fields["extensions"] += ((DECIDED, BY_RULE),)  # travels with every copy, so that the rule is never asked twice
    since = unhandled_since(delivery.history) if delivery.history else 0
    message = ReceivedMessage(**fields, attempts=delivery.attempts, unhandled_since=since)
    message.__dict__["identity"] = found  # known already: the property need not make it again
    if EXPIRES not in event.attributes:
        message.__dict__["expires"] = 0
    if len(delivery.body) > max_body:
        return Unreadable(reason=f"too large: {len(delivery.body)} bytes; the limit is {max_body}", message=message)
    if needs_token and not message.token:
        return Unreadable(reason=UNENTITLED, message=message)
    place = places.get(message.type) if places else None
    return message if place is None else place(message)


def _read_in_format(format_: "MessageFormat", delivery: Delivery) -> Event:
    """Read what is not a CloudEvent in a format. Raises ValueError, saying why it is not a message."""
    from onceonly.formats.message_formats import is_cloudevent, read_formatted  # noqa: PLC0415 - few endpoints have one

    if is_cloudevent(delivery.headers):
        return take_apart(delivery.headers, delivery.body)
    return read_formatted(format_, delivery.headers, delivery.body)
