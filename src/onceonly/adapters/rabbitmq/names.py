"""The names of all objects in RabbitMQ.

An endpoint's queue has the name of the endpoint, which other programs send to. All other objects begin with `onceonly:`, behind
the prefix of the URL. Names of endpoints have no colon, so no two names are equal.
"""

from msgspec import Struct

from onceonly.queues.names import LETTERS, EscapedNames

LEVELS = 17
"""A pass through all levels keeps a message for 36 hours. One that must wait longer passes them again."""
TICK_MS = 1000
LONGEST = 80
"""Characters of a written name: an exchange's name may have 127 bytes."""
LONGEST_OWNER = 60
"""Limit for the characters of an owner in the level's name."""
_ESCAPED = EscapedNames(LETTERS | {"_"}, mark=":", hashed=":hash:")
_EVENTS = EscapedNames(LETTERS | {"_", "."}, mark=":", hashed=":hash:")


class RabbitMQNames(Struct, frozen=True):
    """The names of all objects behind a prefix."""

    prefix: str = ""
    levels: int = LEVELS
    tick: int = TICK_MS

    @property
    def own(self) -> str:
        """Return what the names of all objects begin with, except the queues of endpoints."""
        return f"{self.prefix}onceonly:"

    def queue(self, endpoint: str) -> str:
        return self.prefix + endpoint

    def exchange(self, event: str) -> str:
        """Name the exchange of an event type: plain where AMQP allows it, else escaped, and hashed when it is long."""
        return f"{self.own}event:{_EVENTS.write(event, LONGEST)}"

    def event_of(self, exchange: str) -> str | None:
        """Return the event type of an exchange.

        None for other exchanges, and for a name that is too long to be written: only its hash is stored.
        """
        begin = f"{self.own}event:"
        return _EVENTS.read(exchange.removeprefix(begin), LONGEST) if exchange.startswith(begin) else None

    def level(self, destination: str, number: int) -> str:
        """Name the queue and the exchange of a level of one destination. Below the lowest is the exchange of what is due."""
        owner = destination if len(destination) <= LONGEST_OWNER else _ESCAPED.hash(destination)
        return f"{self.levels_begin}{owner}:{number:02}" if number >= 0 else self.due

    @property
    def levels_begin(self) -> str:
        """Return what the names of all levels begin with."""
        return f"{self.own}delay:"

    @property
    def due(self) -> str:
        """Name the exchange of what is due, for all destinations."""
        return f"{self.levels_begin}due"

    @property
    def discarded(self) -> str:
        """Name the queue that also gets, and drops, each delayed event: one without subscribers must not wait."""
        return f"{self.levels_begin}unheard"

    @property
    def subscribed(self) -> str:
        """Name the exchange that gets each event that is due, and to which subscribers bind. It leads on if none has."""
        return f"{self.levels_begin}subscribed"

    @property
    def unsubscribed(self) -> str:
        """Name the exchange of delayed events without subscribers."""
        return f"{self.levels_begin}unsubscribed"

    def unsubscribed_of(self, publisher: str) -> str:
        """Name the queue of an endpoint's delayed events without subscribers."""
        return f"{self.own}unsubscribed:{publisher}"

    def inbox(self, endpoint: str) -> str:
        """Name the exchange that leads to an endpoint's queue, also when the queue is deleted and declared again."""
        return f"{self.own}inbox:{endpoint}"

    def missing(self, endpoint: str) -> str:
        """Name the exchange and the queue for what is due while an endpoint's queue is missing."""
        return f"{self.inbox(endpoint)}:missing"

    @property
    def census(self) -> str:
        """Name the exchange through which receivers are asked what they hold."""
        return f"{self.own}census"

    def route(self, destination: str, milliseconds: int, *, publisher: str = "") -> tuple[str, str]:
        """Return the exchange and the routing key of a message that is to wait; late by less than a tick, never early.

        The key of an event names its publisher too.
        """
        ticks = min(max(1, -(-milliseconds // self.tick)), 2**self.levels - 1)
        digits = f"{ticks:0{self.levels}b}"
        owner = (_ESCAPED.write(publisher, LONGEST),) if publisher else ()
        return self.level(destination, ticks.bit_length() - 1), ".".join((*digits, *owner, destination))


def command(endpoint: str) -> str:
    """Return the last words of a delayed command's routing key. They name its levels of delay, too."""
    return f"{_ESCAPED.write(endpoint, LONGEST)}.command"


def any_event_of(publisher: str) -> str:
    """Return the pattern of the routing keys of an endpoint's delayed events."""
    return f"#.{_ESCAPED.write(publisher, LONGEST)}.*.event"


def event(kind: str) -> str:
    """Return the last words of a delayed event's routing key. They name its levels of delay, too."""
    return f"{_ESCAPED.write(kind, LONGEST)}.event"
