"""The names of all objects in RabbitMQ: those of this version, and those of the version before it.

An endpoint's queue has the name of the endpoint, which other programs send to. All other objects begin with `onceonly:`, behind
the prefix of the URL. Names of endpoints have no colon, so no two names are equal.
"""

import re
from functools import lru_cache
from hashlib import blake2b

from msgspec import Struct

LEVELS = 17
"""A pass through all levels keeps a message for 36 hours. One that must wait longer passes them again."""
TICK_MS = 1000
LONGEST = 80
"""Characters of a written name: an exchange's name may have 127 bytes."""
LONGEST_OWNER = 60
"""Limit for the characters of an owner in the level's name."""
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_WITH_DOTS = _PLAIN | {"."}
_ESCAPED = re.compile(r"(?::[0-9a-f]{2})+")


class PreviousNames(Struct, frozen=True):
    """The names that the previous version gave: its levels of delay were shared by all endpoints behind a prefix."""

    prefix: str = ""
    levels: int = LEVELS

    def exchange(self, event: str) -> str:
        """Name the exchange of an event type."""
        return f"{self.prefix}event:{_written(event, _WITH_DOTS)}"

    def level(self, number: int) -> str:
        """Name the queue and the exchange of a level."""
        return f"{self.prefix}delay:{number:02}"

    @property
    def due(self) -> str:
        """Name the exchange of what is due."""
        return f"{self.prefix}delay:due"

    @property
    def unheard(self) -> str:
        """Name the queue that dropped delayed events."""
        return f"{self.prefix}delay:unheard"

    @property
    def census(self) -> str:
        """Name the exchange through which receivers were asked what they hold."""
        return f"{self.prefix}census:ask"

    def inbox(self, endpoint: str) -> str:
        """Name the exchange for what was due for an endpoint."""
        return f"{self.prefix}inbox:{endpoint}"

    def missing(self, endpoint: str) -> str:
        """Name the exchange and the queue for what was due while an endpoint's queue was missing."""
        return f"{self.inbox(endpoint)}:missing"


class TopologyNames(Struct, frozen=True):
    """The names of all objects behind a prefix. `serves_previous`: objects of the previous version are served as well."""

    prefix: str = ""
    levels: int = LEVELS
    tick: int = TICK_MS
    serves_previous: bool = True

    @property
    def previous(self) -> PreviousNames:
        """Give the names of the previous version's objects."""
        return PreviousNames(self.prefix, self.levels)

    @property
    def own(self) -> str:
        """Give what the names of all objects begin with, except the queues of endpoints."""
        return f"{self.prefix}onceonly:"

    def queue(self, endpoint: str) -> str:
        """Name an endpoint's input queue."""
        return self.prefix + endpoint

    def exchange(self, event: str) -> str:
        """Name the exchange of an event type: plain where AMQP allows it, else escaped, and hashed when it is long."""
        return f"{self.own}event:{_written(event, _WITH_DOTS)}"

    def event_of(self, exchange: str) -> str | None:
        """Return the event type of an exchange, of this version or the previous one.

        None for other exchanges, and for a name that is too long to be written: only its hash is stored.
        """
        for begin in (f"{self.own}event:", f"{self.prefix}event:"):
            if exchange.startswith(begin):
                return _read(exchange.removeprefix(begin))
        return None

    def level(self, words: str, number: int) -> str:
        """Name the queue and the exchange of a level of one destination. Below the lowest is the exchange of what is due."""
        return f"{self.levels_begin}{_owner(words)}:{number:02}" if number >= 0 else self.due

    @property
    def levels_begin(self) -> str:
        """Give what the names of all levels begin with."""
        return f"{self.own}delay:"

    @property
    def due(self) -> str:
        """Name the exchange of what is due, for all destinations."""
        return f"{self.levels_begin}due"

    @property
    def unheard(self) -> str:
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

    @property
    def looking(self) -> str:
        """Name the queue that exists while a process looks into the shared levels of the previous version."""
        return f"{self.levels_begin}looking"

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

    def route(self, words: str, milliseconds: int, *, publisher: str = "") -> tuple[str, str]:
        """Give the exchange and the routing key of a message that is to wait; late by less than a tick, never early.

        The key of an event names its publisher too.
        """
        ticks = min(max(1, -(-milliseconds // self.tick)), 2**self.levels - 1)
        digits = f"{ticks:0{self.levels}b}"
        owner = (_written(publisher, _PLAIN),) if publisher else ()
        return self.level(words, ticks.bit_length() - 1), ".".join((*digits, *owner, words))


def command(endpoint: str) -> str:
    """Give the last words of a delayed command's routing key. They name its levels of delay, too."""
    return f"{_written(endpoint, _PLAIN)}.command"


def any_event_of(publisher: str) -> str:
    """Give the pattern of the routing keys of an endpoint's delayed events."""
    return f"#.{_written(publisher, _PLAIN)}.*.event"


def event(kind: str) -> str:
    """Give the last words of a delayed event's routing key. They name its levels of delay, too."""
    return f"{_written(kind, _PLAIN)}.event"


@lru_cache(1000)
def _written(name: str, plain: frozenset[str]) -> str:
    """Write a name in these characters, every other byte as a colon and two digits; no two names become one."""
    parts = (letter if letter in plain else "".join(f":{byte:02x}" for byte in letter.encode()) for letter in name)
    written = "".join(parts)
    return written if len(written) <= LONGEST else ":hash:" + _hash(name)


def _read(written: str) -> str | None:
    """Return the name that was written; None for a hash, and for what `_written` does not write."""
    try:
        name = _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace(":", "")).decode(), written)
    except UnicodeDecodeError:
        return None
    return name if _written(name, _WITH_DOTS) == written else None


@lru_cache(1000)
def _owner(words: str) -> str:
    return words if len(words) <= LONGEST_OWNER else ":hash:" + _hash(words)


def _hash(name: str) -> str:
    return blake2b(name.encode(), digest_size=16).hexdigest()
