"""What stands in RabbitMQ: one queue for each endpoint, one exchange for each event type, and the levels of delay.

A delay is written in binary, in ticks of a second. Level n is a queue that keeps a message for 2^n ticks; a message passes
the levels of its ones, the greatest first, and then goes to its destination. Its routing key says all that: one word for
each digit, then the destination.

    delay:05 (exchange) --1--> delay:05 (queue, 32 s) --expired--+
            |                                                    v
            +-------------------0--------------------> delay:04 (exchange) ... --> delay:due (exchange) --> destination

Each endpoint has an exchange of its own behind `delay:due`, which stays when its queue is deleted. What is due then waits in a
queue beside it, until the endpoint's queue is there again:

    delay:due --> inbox:shop (exchange) --> shop (queue)
                       | no such queue       ^
                       v                     | expired, at least once
                  inbox:shop:missing (exchange and queue)
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from msgspec import Struct

from onceonly.adapters.rabbitmq.link import MANY_ANSWERS_SECONDS, Channel, Link, attempt, shielded, translated
from onceonly.ports.transport import Topology

LEVELS = 17  # one pass keeps a message for 36 hours; whoever must wait longer goes round again
TICK_MS = 1000
NEVER = 1_000_000_000  # deliveries: a limit would count conflicts; RabbitMQ 4 has one of 20 unless told otherwise
_LONGEST = 80  # of the 127 bytes of an exchange's name, and the 255 of a routing key
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_WITH_DOTS = _PLAIN | {"."}
DELAYS = "delays"
BACK = 5  # ticks after which what is due for a missing queue is tried again, once; after that RabbitMQ tries every 3 minutes
_QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
_AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": NEVER}


class TopologyNames(Struct, frozen=True):
    """The names of everything, behind a prefix. A colon keeps our own apart from endpoints: their names have none."""

    prefix: str = ""
    levels: int = LEVELS
    tick: int = TICK_MS

    def queue(self, endpoint: str) -> str:
        """Name an endpoint's input queue."""
        return self.prefix + endpoint

    def exchange(self, event: str) -> str:
        """Name the exchange of an event type: plain where AMQP allows it, else escaped, and hashed when it is long."""
        return f"{self.prefix}event:{_written(event, _WITH_DOTS)}"

    def level(self, number: int) -> str:
        """Name the queue and the exchange of a level; below the lowest is the exchange of what is due."""
        return f"{self.levels_begin}{number:02}" if number >= 0 else f"{self.levels_begin}due"

    @property
    def levels_begin(self) -> str:
        """Give what the names of all levels begin with."""
        return f"{self.prefix}delay:"

    def inbox(self, endpoint: str) -> str:
        """Name the exchange that leads to an endpoint's queue whatever becomes of it."""
        return f"{self.prefix}inbox:{endpoint}"

    def missing(self, endpoint: str) -> str:
        """Name the exchange and the queue for what is due while an endpoint's queue is not there."""
        return f"{self.inbox(endpoint)}:missing"

    @property
    def unheard(self) -> str:
        """Name the queue where every delayed event goes as well, and is dropped: one without subscribers must not wait."""
        return f"{self.prefix}delay:unheard"

    @property
    def census(self) -> str:
        """Name the exchange through which receivers are asked what they hold."""
        return f"{self.prefix}census:ask"

    def route(self, destination: str, milliseconds: int) -> tuple[str, str]:
        """Give the exchange and the routing key of a message that is to wait; late by less than a tick, never early."""
        ticks = min(max(1, -(-milliseconds // self.tick)), 2**self.levels - 1)
        digits = f"{ticks:0{self.levels}b}"
        return self.level(ticks.bit_length() - 1), ".".join((*digits, destination))


def command(endpoint: str) -> str:
    """Give the last words of a delayed command's routing key."""
    return f"{_written(endpoint, _PLAIN)}.command"


def event(kind: str, *, waits: bool) -> str:
    """Give the last words of a delayed event's routing key, and how a prompt one is remembered."""
    return f"{_written(kind, _PLAIN)}.{'event' if waits else 'prompt'}"


async def declare(link: Link, names: TopologyNames, topologies: Sequence[Topology]) -> None:
    """Make what is missing, and unbind what is gone; harmless when all is so already, also when several processes do it.

    Raises SetupError, CommitFailed.
    """
    await declare_delays(link, names)
    async with link.errand() as channel:
        for topology in topologies:
            await _declare_endpoint(channel, names, topology)


async def declare_event(channel: Channel, names: TopologyNames, kind: str, *, delayed: bool) -> None:
    """Make the exchange of an event type: whoever publishes first may come before all subscribers."""
    exchange = names.exchange(kind)
    async with translated(f"declare exchange {exchange!r}", definite=True):
        await shielded(channel.exchange_declare(exchange, exchange_type="fanout", durable=True))
        if delayed:
            await shielded(channel.exchange_bind(exchange, names.level(-1), f"#.{event(kind, waits=True)}"))


async def remove(link: Link, names: TopologyNames, topologies: Sequence[Topology]) -> None:
    """Delete everything behind a prefix: these queues with what is in them, their events, the delays."""
    levels = [names.level(number) for number in range(names.levels)]
    endpoints = [topology.endpoint for topology in topologies]
    queues = [*map(names.queue, endpoints), *map(names.missing, endpoints), *levels, names.unheard]
    events = {names.exchange(kind) for topology in topologies for kind in topology.events}
    async with link.errand() as channel, translated("delete queues and exchanges", within=MANY_ANSWERS_SECONDS):
        for queue in queues:
            await shielded(channel.queue_delete(queue))
        inboxes = [*map(names.inbox, endpoints), *map(names.missing, endpoints)]
        for exchange in (*sorted(events), *inboxes, *levels, names.level(-1), names.census):
            await shielded(channel.exchange_delete(exchange))


async def count(link: Link, queue: str) -> tuple[int, int] | None:
    """Count the messages that wait in a queue and its consumers; None when there is no such queue."""
    found = await attempt(link, f"look at queue {queue!r}", lambda channel: channel.queue_declare(queue, passive=True))
    return None if found is None else (found.message_count or 0, found.consumer_count or 0)


async def count_delayed(link: Link, names: TopologyNames) -> int:
    """Count what the levels keep, for whomever: they are shared."""
    total = 0
    async with link.errand() as channel, translated("look at the levels of delay", definite=True, within=MANY_ANSWERS_SECONDS):
        for number in reversed(range(names.levels)):  # the way that messages go: none is overtaken
            found = await shielded(channel.queue_declare(names.level(number), passive=True))
            total += found.message_count or 0
    return total


async def _declare_endpoint(channel: Channel, names: TopologyNames, topology: Topology) -> None:
    queue = names.queue(topology.endpoint)
    async with translated(f"declare queue {queue!r}", definite=True):
        await shielded(channel.queue_declare(queue, durable=True, arguments=_QUORUM | {"x-delivery-limit": NEVER}))
    inbox = await _declare_inbox(channel, names, topology.endpoint)
    for kind in topology.events:
        await declare_event(channel, names, kind, delayed=True)
        async with translated(f"bind queue {queue!r} to events {kind!r}", definite=True):
            await shielded(channel.queue_bind(queue, names.exchange(kind)))
            await shielded(channel.exchange_bind(inbox, names.level(-1), f"#.{event(kind, waits=True)}"))
    for kind in topology.gone:
        async with translated(f"unbind queue {queue!r} from events {kind!r}", definite=True):
            await shielded(channel.queue_unbind(queue, names.exchange(kind)))
            await shielded(channel.exchange_unbind(inbox, names.level(-1), f"#.{event(kind, waits=True)}"))


async def _declare_inbox(channel: Channel, names: TopologyNames, endpoint: str) -> str:
    """Make what keeps delayed messages that are due while the endpoint's queue is not there; gives its exchange.

    Bindings that an earlier version made straight to the queue stay: the server puts a message into a queue once.
    """
    queue, inbox, missing = names.queue(endpoint), names.inbox(endpoint), names.missing(endpoint)
    back = {"x-message-ttl": BACK * names.tick, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    async with translated(f"declare exchange {inbox!r}", definite=True):
        await shielded(channel.queue_declare(missing, durable=True, arguments=_QUORUM | _AT_LEAST_ONCE | back))
        await shielded(channel.exchange_declare(missing, exchange_type="fanout", durable=True))
        await shielded(channel.queue_bind(missing, missing))
        instead = {"alternate-exchange": missing}
        await shielded(channel.exchange_declare(inbox, exchange_type="fanout", durable=True, arguments=instead))
        await shielded(channel.queue_bind(queue, inbox))
        await shielded(channel.exchange_bind(inbox, names.level(-1), f"#.{command(endpoint)}"))
    return inbox


async def declare_delays(link: Link, names: TopologyNames) -> None:
    """Make the levels of delay, from the lowest up, unless all are there."""
    last = names.census

    async def look(channel: Channel) -> Any:
        for number in range(names.levels):
            await channel.queue_declare(names.level(number), passive=True)
            await channel.exchange_declare(names.level(number), passive=True)
        await channel.exchange_declare(names.level(-1), passive=True)
        await channel.queue_declare(names.unheard, passive=True)
        return await channel.exchange_declare(last, passive=True)

    if await attempt(link, "look at the levels of delay", look) is not None:
        return
    async with link.errand() as channel, translated("declare the levels of delay", definite=True, within=MANY_ANSWERS_SECONDS):
        await shielded(channel.exchange_declare(names.level(-1), exchange_type="topic", durable=True))
        await shielded(channel.queue_declare(names.unheard, durable=True, arguments={"x-message-ttl": 0}))
        await shielded(channel.queue_bind(names.unheard, names.level(-1), "#.event"))
        for number in range(names.levels):
            await _declare_level(channel, names, number)
        await shielded(channel.exchange_declare(last, exchange_type="direct", durable=True))


async def _declare_level(channel: Channel, names: TopologyNames, number: int) -> None:
    here, below = names.level(number), names.level(number - 1)
    before = "*." * (names.levels - 1 - number)
    await shielded(channel.queue_declare(here, durable=True, arguments=_level_arguments(names, number)))
    await shielded(channel.exchange_declare(here, exchange_type="topic", durable=True))
    await shielded(channel.queue_bind(here, here, f"{before}1.#"))
    await shielded(channel.exchange_bind(below, here, f"{before}0.#"))


def _level_arguments(names: TopologyNames, number: int) -> dict[str, Any]:
    """Dead-letter at least once: by default a message vanishes when its next place is not there at the moment."""
    here = {"x-message-ttl": names.tick * 2**number, "x-dead-letter-exchange": names.level(number - 1)}
    return _QUORUM | _AT_LEAST_ONCE | here


@lru_cache(1000)
def _written(name: str, plain: frozenset[str]) -> str:
    """Write a name in these characters, every other byte as a colon and two digits; no two names become one."""
    parts = (letter if letter in plain else "".join(f":{byte:02x}" for byte in letter.encode()) for letter in name)
    written = "".join(parts)
    return written if len(written) <= _LONGEST else ":hash:" + blake2b(name.encode(), digest_size=16).hexdigest()
