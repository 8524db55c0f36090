"""Types of messages: two classes with the same type, and types that no handler of this process takes."""

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from onceonly.endpoint.failures import failed
from onceonly.endpoint.received_message import ReceivedMessage
from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.model.errors import HandlerFailed
from onceonly.model.message import CLASS, FailureKind, Message
from onceonly.model.retry import UNHANDLED
from onceonly.ports.environment import Clock, RandomSource
from onceonly.runtime.maintenance.presence import LiveTypes, TypesElsewhere

_log = EventLogger(logging.getLogger("onceonly"))
_handled: dict[str, str] = {}
"""The class that handlers of this process take, by message type."""
_warned = LoggedKeys()

SHORTEST_SECONDS, LONGEST_SECONDS, TAKEN_SECONDS = 1.0, 10.0, 2.0
"""How long such a message waits at a time: a quarter of what it has waited before. The first is the least, the second the most.
The third is the most if a live process is known to take it. Chance adds or takes up to half: messages that came together come
back one by one, so that not all of them come to the same process."""
NAMED = 20
"""The most types or processes that a reason names."""


class BareName(NamedTuple):
    """A message type that is only the bare name of a class, and module and name of the class."""

    type: str
    class_name: str


def note_handled(endpoint: str, names: Iterable[BareName]) -> None:
    """Store the classes of an endpoint that starts. Logs each whose type another handler of the process takes as another.

    Of such a message, fields that a class does not have are ignored, and missing ones get their defaults.
    """
    for type_, class_name in names:
        known = _handled.setdefault(type_, class_name)
        if known != class_name and _warned.add(type_, class_name):
            _log.warning(
                "message classes with the same name",
                extra={"endpoint": endpoint, "type": type_, "classes": f"{known} {class_name}"},
            )


def note_received(endpoint: str, own: BareName, message: Message) -> None:
    """Log once that the sender's class is another one than the handler's."""
    sent = message.extension(CLASS)
    if sent and sent != own.class_name and _warned.add(own.type, sent):
        _log.warning(
            "message has another class of the same name",
            extra={"endpoint": endpoint, "type": own.type, "id": message.id, "sent": sent, "handled": own.class_name},
        )


class UnknownTypes(NamedTuple):
    """The rule for them. `types` are those with a handler, `wait` is in seconds: 0 gives every message up at once."""

    endpoint: str
    types: Sequence[str]
    wait: float
    elsewhere: TypesElsewhere
    clock: Clock
    random: RandomSource
    logged: LoggedKeys

    def reason(self, type_: str) -> str:
        """Return why a message is not handled here, without looking at other processes."""
        taken = ", ".join(self.types)
        if not type_:
            return (
                f"the message has no type, and endpoint {self.endpoint!r} takes several: {taken}. "
                "Set its type, with CloudEvents in the header ce-type"
            )
        return f"{UNHANDLED}{self.endpoint!r} takes {type_!r}; it takes {taken}"

    def failure_of(self, message: Message) -> HandlerFailed:
        """Return the failure of a new message: LATER while it may still find its process, then REJECTED.

        The time counts from its first receipt by a process without a handler for it. Its copies carry that time.
        """
        if not (message.type and self.wait):
            return failed(FailureKind.REJECTED, self.reason(message.type))
        now = self.clock.now()
        since = message.unhandled_since if isinstance(message, ReceivedMessage) else 0
        waited = max(0, now - since) if since else 0
        left = round(self.wait * 1000) - waited
        live = self.elsewhere.look()
        if live is not None and (takers := live.takers(message.type)):
            return self._put_off(message.type, waited, f"{_first_of(takers)} does, and has to receive it", most=TAKEN_SECONDS)
        if left > 0:
            most = min(LONGEST_SECONDS, (left + 1) / 1000)
            return self._put_off(message.type, waited, f"it waits for a process that does, up to {self.wait:g} s", most=most)
        if live is None:
            return self._put_off(message.type, 0, "the other processes are being read", most=SHORTEST_SECONDS)
        return failed(FailureKind.REJECTED, self._rejection_reason(message.type, waited, live))

    def _put_off(self, type_: str, waited: int, why: str, *, most: float) -> HandlerFailed:
        """Return a failure that puts a message off, for `most` seconds. `waited` is in milliseconds."""
        if self.logged.add(type_):
            fields = {"endpoint": self.endpoint, "type": type_, "unknown_types_wait": self.wait}
            _log.warning("message type without a handler here, its messages wait", extra=fields)
        delay = min(max(SHORTEST_SECONDS, waited / 4000) * (0.5 + self.random.fraction()), most)
        return failed(FailureKind.LATER, f"{UNHANDLED}{self.endpoint!r} takes {type_!r} here; {why}", delay=delay)

    def _rejection_reason(self, type_: str, waited: int, live: LiveTypes) -> str:
        own = (
            f"{UNHANDLED}{self.endpoint!r} takes {type_!r}; it takes {_first_of(self.types)}. It has waited {waited // 1000} s"
        )
        if live.problem:
            return f"{own}. Whether another process takes it is unknown: {live.problem}"
        if not live.processes:
            return f"{own}, and no other process of the endpoint is live"
        others = sorted({name for each in live.processes for name in each.report.types})
        names = [each.report.process for each in live.processes]
        return f"{own}, and no other live process takes it: {_first_of(names)} take {_first_of(others) or 'no known type'}"


def _first_of(names: Iterable[str]) -> str:
    """Return the first names, and how many more there are."""
    found = tuple(names)
    more = f" and {len(found) - NAMED:,} more" if len(found) > NAMED else ""
    return ", ".join(islice(found, NAMED)) + more
