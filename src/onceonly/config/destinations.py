"""Which destinations the messages of an endpoint may have: what its transport understands, and the rule for its events."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from onceonly.model.destination import KINDS, Carrier, Destination, Queue, Stream, Subject
from onceonly.model.errors import InvalidEffect
from onceonly.model.limits import type_problem
from onceonly.model.wording import an, in_words
from onceonly.ports.transport import DestinationRule
from onceonly.systems.carriers import carrier_names

EventRule: TypeAlias = Mapping[str, Destination] | Callable[[str], Destination | None]
"""Where events go by their type: a mapping, or a function that returns None for an event that goes to its subscribers."""
FUNCTION = "a function decides"
"""What commands show of a rule that is a function."""


class DestinationPolicy(Struct, frozen=True, kw_only=True):
    """Which destinations messages may have. `transport` is where they go, as it may be shown.

    `by_token` means that receivers know copies by their token. A token is issued to an endpoint, and other programs would
    never use it up. `has_queues` is false where the transport has no queues of endpoints, so that each message needs a
    destination.
    """

    rules: Sequence[DestinationRule] = ()
    transport: str = ""
    events: EventRule | None = None
    by_token: bool = False
    has_queues: bool = True

    def place_of(self, to: str | Destination, type_: str, delay: int) -> str | Destination:
        """Return where a message of this type goes: an event, for which `to` is empty, where the rule sends it.

        `delay` is in milliseconds. Raises InvalidEffect for a wrong result of the rule, and for what cannot go there.
        """
        place = to or self._of_event(type_)
        if not self.has_queues and not isinstance(place, Destination):
            raise InvalidEffect(self._without_queue(type_, place))
        if isinstance(place, Destination) and (problem := self.problem(place, delay)):
            raise InvalidEffect(f"cannot send {type_} to {place}: {problem}")
        return place

    def _without_queue(self, type_: str, to: str) -> str:
        example = f"{KINDS[self.rules[0].kind].__name__}(...)" if self.rules else "a destination"
        if to:
            return f"cannot send {type_} to {to!r}: {self.transport} has no queues for endpoints. Send it to {example}"
        return (
            f"cannot publish {type_}: {self.transport} has no subscriptions of endpoints. Choose where it goes: "
            f"events={{{type_!r}: {example}}}"
        )

    def _of_event(self, type_: str) -> str | Destination:
        if self.events is None:
            return ""
        found: Any = self.events.get(type_) if isinstance(self.events, Mapping) else self.events(type_)
        if found is not None and not isinstance(found, Destination):
            raise InvalidEffect(
                f"cannot publish {type_}: events= returned {an(type(found).__name__)} for it. Return a destination such as "
                'Exchange("orders"), or None'
            )
        return found or ""

    def problem(self, destination: Destination, delay: int = 0) -> str | None:
        """Return why no message can go there, or None."""
        if self.by_token:
            return (
                "deduplication=Tokens(...) issues a token to each receiver, and only an endpoint uses it up. Send to an "
                "endpoint, or use History()"
            )
        if isinstance(destination, Carrier):
            return _carrier_problem(destination.carrier, delay)
        rules = [each for each in self.rules if each.kind == destination.kind]
        where = f"this transport{f' ({self.transport})' if self.transport else ''}"
        if not rules:
            known = " and ".join(dict.fromkeys(KINDS[each.kind].__name__ for each in self.rules))
            return f"{where} has no {destination.kind} of other programs. " + (
                f"Use {known}, or the name of an endpoint" if known else "Send to an endpoint"
            )
        name: str = getattr(destination, "name", "")
        rule = next((each for each in rules if not each.names or re.fullmatch(each.names, name)), None)
        if rule is None:
            return f"{name!r} is not {rules[0].name_rule}. Correct the name"
        return _delay_problem(rule, where, delay)


def event_rule_problems(rule: object, policy: DestinationPolicy) -> Iterator[str]:
    """Return what is wrong with a setting `events=`."""
    if rule is None or (callable(rule) and not isinstance(rule, Mapping)):
        if rule is not None and policy.by_token:
            yield (
                "events cannot be used with deduplication=Tokens(...): a token is issued to each receiver, and only an "
                "endpoint uses it up. Remove it, or use History()"
            )
        return
    if not isinstance(rule, Mapping):
        yield f"events must be a mapping from type to destination, or a function, not {an(type(rule).__name__)}"
        return
    for type_, destination in rule.items():
        if not isinstance(type_, str) or not type_.strip() or type_problem(type_):
            yield f"events: {type_!r:.100} is not an event type: use its name, a string that is not blank"
        if not isinstance(destination, Destination):
            yield f'events[{type_!r:.100}] must be a destination such as Exchange("orders"), not {destination!r:.100}'
        elif problem := _format_problem(destination) or policy.problem(destination):
            yield f"events[{type_!r:.100}]: {problem}"


def host_queue_problems(destination: object, policy: DestinationPolicy, *, has_transport: bool) -> Iterator[str]:
    """Return what is wrong with a setting `receives_from=`."""
    if destination is None:
        return
    if not isinstance(destination, Queue | Subject | Stream):
        yield (
            'receives_from must be what the host of the endpoint receives from: Queue("orders"), Subject("orders.placed") or '
            f'Stream("orders"), not {destination!r:.100}'
        )
    elif not has_transport:
        yield "receives_from needs a transport, which sends to it. Set transport, or remove receives_from"
    elif policy.by_token:
        yield (
            "receives_from cannot be used with deduplication=Tokens(...): its senders would have to issue a token for each "
            "message. Remove it, or use History()"
        )
    elif destination.format is not None:
        yield "receives_from has a format, which would have no effect. Set format= on the endpoint"
    elif problem := policy.problem(destination):
        yield f"receives_from: {problem}"


def shown_events(rule: EventRule | None) -> dict[str, str]:
    """Return where events go, by type, for people. A function is shown under the type "*"."""
    if rule is None:
        return {}
    if not isinstance(rule, Mapping):
        return {"*": FUNCTION}
    return {type_: str(destination) for type_, destination in sorted(rule.items())}


def _format_problem(destination: Destination) -> str | None:
    if destination.format is None:
        return None
    from onceonly.formats.message_formats import format_problem  # noqa: PLC0415 - few destinations have one

    return format_problem(destination.format)


def _carrier_problem(name: str, delay: int) -> str | None:
    if name not in (known := carrier_names()):
        return f"this process has no carrier {name!r}, but {' and '.join(known) or 'none'}. Import the integration that has it"
    return "a carrier delays nothing. Use the delays of its own messages" if delay > 0 else None


def _delay_problem(rule: DestinationRule, where: str, delay: int) -> str | None:
    longest = rule.longest_delay
    if delay <= 0 or longest is None or delay <= longest * 1000:
        return None
    what = an(rule.kind)
    if not longest:
        return f"{where} cannot delay what is sent to {what} of another program. Send it to an endpoint, which sends it on"
    return f"{where} delays what is sent to {what} of another program by {in_words(longest)} at most. Use a shorter delay"
