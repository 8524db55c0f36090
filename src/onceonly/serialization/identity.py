"""Who a delivery is: the CloudEvents attributes, or a rule for messages of foreign senders.

A rule is for foreigners only. What this library sent says so (`onceonlytime`), and a copy that it made of a foreign message
carries the identity decided at the first arrival (`onceonlyidentity`): both keep the attributes they came with.
"""

from collections.abc import Callable

import msgspec
from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.message import Delivery
from onceonly.model.ring import INSTANT
from onceonly.serialization.cloudevents import Event, is_copy

DECIDED = "onceonlyidentity"


class Header(Struct, frozen=True):
    """The id stands in this header; names are compared without case."""

    name: str


class Field(Struct, frozen=True):
    """The id stands in this field of the JSON body, a text or an integer; dots lead into objects: `order.id`."""

    name: str


IdentityRule = Header | Field | Callable[[Event], str]
"""How foreign messages are identified. A callable sees the attributes, the other headers and the body, and gives the id."""


class NoIdentity(ValueError):
    """The delivery has no identity; the message says what was looked for."""


def is_foreign(event: Event, delivery: Delivery) -> bool:
    """Tell whether a delivery's attributes are those of a foreign sender, so that a rule may overrule them."""
    return not (INSTANT in event.attributes or DECIDED in event.attributes or is_copy(delivery))


def identify(event: Event, delivery: Delivery, rule: IdentityRule | None) -> Identity:
    """Give the identity of a delivery by a rule, or with None by the CloudEvents attribute.

    Its source is the CloudEvents one, else the name of the queue it came from. Raises NoIdentity.
    """
    found = event.attributes.get("id", "") if rule is None else _by_rule(event, rule)
    if not found.strip():
        wanted = "the CloudEvents attribute `id`" if rule is None else _words(rule)
        raise NoIdentity(f"no identity: {wanted} is missing or empty, and a message without one cannot be handled once")
    text = "".join((found, *event.attributes.values()))
    try:
        if not text.isascii():
            text.encode()
    except UnicodeEncodeError as error:
        raise NoIdentity(f"no identity: the attributes are not valid Unicode: {error.reason}") from error
    return Identity(event.attributes.get("source", "") or delivery.queue, found)


def rule_problem(rule: object) -> str | None:
    """Say what is wrong with an identity rule, or None."""
    if rule is None or (isinstance(rule, Header | Field) and rule.name) or (callable(rule) and not isinstance(rule, type)):
        return None
    return 'identity must be Header("name"), Field("name") or a function of the event'


def _by_rule(event: Event, rule: IdentityRule) -> str:
    if isinstance(rule, Header):
        wanted = rule.name.lower()
        for key, value in event.headers:
            if key.lower() == wanted:
                return value
        return ""
    if isinstance(rule, Field):
        return _by_field(event.body, rule)
    try:
        found = rule(event)
    except Exception as error:  # whatever a user's function raises is this delivery's own fault, never the worker's end
        raise NoIdentity(f"no identity: the identity rule failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, str):
        raise NoIdentity(f"no identity: the identity rule gave {type(found).__name__}, not text")
    return found


def _by_field(body: bytes, rule: Field) -> str:
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise NoIdentity(f"no identity: {_words(rule)} cannot be looked up, the body is no JSON: {error}") from error
    for part in rule.name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NoIdentity(f"no identity: {_words(rule)} is neither text nor an integer")
    return str(value)


def _words(rule: IdentityRule) -> str:
    if isinstance(rule, Header):
        return f"header {rule.name!r}"
    return f"field {rule.name!r}" if isinstance(rule, Field) else "what the identity rule gave"
