"""Who a delivery is: the CloudEvents attributes, or a rule for messages of foreign senders.

A rule is for foreign senders only. The ids that this library makes can be recognized. A copy that it made of a foreign message
carries the identity decided at the first arrival (`onceonlyidentity`), as does a message whose id the application gave. All
these keep the attributes they came with.
"""

from collections.abc import Callable, Mapping

import msgspec
from msgspec import Struct

from onceonly.formats.cloudevents import Event, is_copy
from onceonly.model.errors import USERS_ERRORS, error_text
from onceonly.model.escaping import is_utf8
from onceonly.model.identity import Identity, instant_in
from onceonly.model.limits import MOST_HISTORY, SHORT, too_long
from onceonly.model.message import Delivery
from onceonly.model.wording import an, counted

DECIDED = "onceonlyidentity"
BY_RULE, BY_SENDER = "rule", "sender"
"""Who decided: the identity rule of the first receiver, or an application that gave its message an id."""
USUAL = ("event-id", "request-id", "idempotency-key", "msg-id", "nats-msg-id")
"""Headers whose value is usually the same in every copy of a message, also with `x-` before them.

AMQP's `message-id` is not one of them: most clients generate a new one for each copy.
"""

_KIND_NAMES = {bool: "a boolean", float: "a fraction", dict: "an object", list: "a list"}


class IdentityHeader(Struct, frozen=True):
    """The id is the value of this header. Names of headers are case-insensitive."""

    name: str


class IdentityField(Struct, frozen=True):
    """The id is this field of the JSON body, a text or an integer. Dots select nested fields: `order.id`."""

    name: str


IdentityRule = IdentityHeader | IdentityField | Callable[[Event], str]
"""How foreign messages are identified. A callable receives the attributes, other headers and body, and returns the id."""


class NoIdentity(ValueError):
    """The delivery has no identity; the message describes what was looked for."""


class TooLong(ValueError):
    """A value is longer than stores and transports accept. The message names it."""


def is_foreign(event: Event, delivery: Delivery) -> bool:
    """Return whether a delivery's attributes are those of a foreign sender, so that a rule may overrule them."""
    if DECIDED in event.attributes or is_copy(delivery):
        return False
    return instant_in(Identity(event.attributes.get("source", ""), event.attributes.get("id", ""))) is None


def identify(event: Event, delivery: Delivery, rule: IdentityRule | None) -> Identity:
    """Return the identity of a delivery by a rule, or with None by the CloudEvents attribute.

    Its source is the CloudEvents one, else the name of the queue it came from. Raises NoIdentity, TooLong.
    """
    found = event.attributes.get("id", "") if rule is None else _by_rule(event, rule)
    if not found.strip():
        if rule is None:
            raise NoIdentity(_without_id(event))
        raise NoIdentity(f"no identity: {_describe(rule)} is missing or empty, so copies of this message cannot be recognized")
    _check(found, event.attributes)
    if len(delivery.history) > MOST_HISTORY:
        raise TooLong(
            f"its history has {counted(len(delivery.history), 'failure')}; the limit is {MOST_HISTORY}. Send no history"
        )
    return Identity(event.attributes.get("source", "") or delivery.queue, found)


def _without_id(event: Event) -> str:
    """Write the reason for a message without the attribute. It names the setting, with a header that the message has."""
    present = {key.lower() for key, value in event.headers if value.strip()}
    found = next((name for usual in USUAL for name in (usual, f"x-{usual}") if name in present), "x-request-id")
    return (
        "no identity: the CloudEvents attribute `id` is missing or empty, so copies of this message cannot be recognized. "
        f'If all copies have the same id elsewhere, set identity=IdentityHeader("{found}") or '
        'identity=IdentityField("order.id") on the endpoint'
    )


def _check(found: str, attributes: Mapping[str, str]) -> None:
    """Refuse what no store takes: bytes that were not UTF-8, and attributes that are too long."""
    text = "".join((found, *attributes.values()))
    is_ascii = text.isascii()
    if not is_ascii and not is_utf8(text):
        odd = [name for name, value in attributes.items() if not is_utf8(value)] or ["id"]
        raise NoIdentity(f"no identity: the attribute `{odd[0]}` is not valid UTF-8, so it cannot be compared. Send UTF-8")
    # a length in bytes; the first two conditions are true of nearly every message
    if is_ascii and (len(text) <= SHORT or (len(found) <= SHORT and max(map(len, attributes.values())) <= SHORT)):
        return
    if problem := too_long((*attributes.items(), ("id", found))):
        raise TooLong(problem)


def rule_problem(rule: object) -> str | None:
    if isinstance(rule, IdentityHeader | IdentityField):
        is_usable = bool(rule.name)
    else:
        is_usable = rule is None or (callable(rule) and not isinstance(rule, type))
    if is_usable:
        return None
    return 'identity must be IdentityHeader("name"), IdentityField("name") or a function of the event'


def _by_rule(event: Event, rule: IdentityRule) -> str:
    if isinstance(rule, IdentityHeader):
        wanted = rule.name.lower()
        values = {value for key, value in event.headers if key.lower() == wanted}
        if len(values) > 1:
            raise NoIdentity(f"no identity: {_describe(rule)} has {len(values)} values. Send it once")
        return values.pop() if values else ""
    if isinstance(rule, IdentityField):
        return _by_field(event.body, rule)
    try:
        found = rule(event)
    except USERS_ERRORS as error:  # whatever a user's function raises is this delivery's own fault, never the worker's end
        raise NoIdentity(f"no identity: the identity rule failed: {error_text(error)}") from error
    if not isinstance(found, str):
        raise NoIdentity(f"no identity: the identity rule returned {an(type(found).__name__)}; it must return text")
    return found


def _by_field(body: bytes, rule: IdentityField) -> str:
    try:
        value = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise NoIdentity(f"no identity: {_describe(rule)} cannot be read, because the body is not JSON: {error}") from error
    for part in rule.name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise NoIdentity(f"no identity: {_describe(rule)} must be text or an integer, not {_KIND_NAMES[type(value)]}")
    return str(value)


def _describe(rule: IdentityRule) -> str:
    if isinstance(rule, IdentityHeader):
        return f"header {rule.name!r}"
    return f"field {rule.name!r}" if isinstance(rule, IdentityField) else "the result of the identity rule"
