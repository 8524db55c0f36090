"""The objects in RabbitMQ: a queue for each endpoint, an exchange for each event type, and levels of delay.

Each destination of delayed messages, an endpoint or an event type, has levels of its own, so that its messages can be counted.
They are declared when the first message to it is delayed.

A delay is written in binary, in ticks of a second. Level n is a queue that keeps a message for 2^n ticks. A message passes
the levels of its ones, the greatest first, and then goes to its destination. Its routing key has one word for each digit, then
the destination:

    shop.command:05 (exchange) --1--> shop.command:05 (queue, 32 s) --expired--+
            |                                                                  v
            +--------------------0----------------> shop.command:04 (exchange) ... --> delay:due (exchange) --> destination

Each endpoint has an exchange of its own behind `delay:due`, which stays when its queue is deleted. What is due then waits in a
second queue until the endpoint's queue is declared again:

    delay:due --> inbox:shop (exchange) --> shop (queue)
                       | no such queue       ^
                       v                     | expired, at least once
                  inbox:shop:missing (exchange and queue)

What happens to an event without a subscriber is in `unsubscribed`:

    delay:due --> subscribed (exchange) --> inbox:shop (exchange of a subscriber)
                       | no subscriber
                       v
                  unsubscribed (exchange) --> unsubscribed:till (queue of the publisher)

All these names but the endpoint's begin with `onceonly:`. RabbitMQ puts one message into one queue once, however many ways lead
there (decision 0026).
"""

from collections.abc import Sequence
from typing import Any

from onceonly.adapters.rabbitmq.link import MANY_ANSWERS_SECONDS, Channel, RabbitMQLink, attempt, shielded, translated
from onceonly.adapters.rabbitmq.names import LEVELS, TICK_MS, RabbitMQNames, any_event_of, command, event
from onceonly.ports.transport import Topology

__all__ = [
    "LEVELS",
    "TICK_MS",
    "RabbitMQNames",
    "command",
    "count",
    "count_delayed",
    "declare",
    "declare_event",
    "declare_levels",
    "declare_shared",
    "declare_unsubscribed",
    "event",
    "remove",
]

NEVER = 1_000_000_000  # deliveries: a limit would count conflicts; RabbitMQ 4 has one of 20 unless told otherwise
BACK = 5  # ticks after which what is due for a missing queue is tried again, once; after that RabbitMQ tries every 3 minutes
_QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}
_LIMITED: dict[str, Any] = {"x-max-length": 100_000, "x-max-length-bytes": 64 * 1024 * 1024, "x-delivery-limit": NEVER}
_AT_LEAST_ONCE = {"x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish", "x-delivery-limit": NEVER}


async def declare(link: RabbitMQLink, names: RabbitMQNames, topologies: Sequence[Topology]) -> None:
    """Create what is missing, and unbind what is gone. Harmless when several processes do it at once.

    Raises SetupError, CommitFailed.
    """
    await declare_shared(link, names)
    async with link.temporary_channel() as channel:
        for topology in topologies:
            await _declare_endpoint(channel, names, topology)


async def declare_shared(link: RabbitMQLink, names: RabbitMQNames) -> None:
    """Create what all endpoints share: the exchange of what is due, and that of the census."""
    async with link.temporary_channel() as channel, translated("declare the shared exchanges", definite=True):
        await shielded(channel.exchange_declare(names.due, exchange_type="topic", durable=True))
        await shielded(channel.queue_declare(names.discarded, durable=True, arguments={"x-message-ttl": 0}))
        await shielded(channel.queue_bind(names.discarded, names.due, "#.event"))
        await shielded(channel.exchange_declare(names.unsubscribed, exchange_type="topic", durable=True))
        instead = {"alternate-exchange": names.unsubscribed}
        await shielded(channel.exchange_declare(names.subscribed, exchange_type="topic", durable=True, arguments=instead))
        await shielded(channel.exchange_bind(names.subscribed, names.due, "#.event"))
        await shielded(channel.exchange_declare(names.census, exchange_type="topic", durable=True))


async def declare_event(channel: Channel, names: RabbitMQNames, kind: str, *, delayed: bool) -> None:
    """Create the exchange of an event type: the first publisher may be earlier than all subscribers."""
    exchange = names.exchange(kind)
    async with translated(f"declare exchange {exchange!r}", definite=True):
        await shielded(channel.exchange_declare(exchange, exchange_type="fanout", durable=True))
        if delayed:
            await shielded(channel.exchange_bind(exchange, names.due, f"#.{event(kind)}"))


async def declare_unsubscribed(channel: Channel, names: RabbitMQNames, publisher: str) -> None:
    """Create the queue of an endpoint's delayed events without subscribers. It drops the oldest when nothing empties it."""
    queue = names.unsubscribed_of(publisher)
    async with translated(f"declare queue {queue!r}", definite=True):
        await shielded(channel.queue_declare(queue, durable=True, arguments=_QUORUM | _LIMITED))
        await shielded(channel.queue_bind(queue, names.unsubscribed, any_event_of(publisher)))


async def declare_levels(link: RabbitMQLink, names: RabbitMQNames, destination: str, *, again: bool = False) -> None:
    """Create the levels of delay of one destination, from the lowest up, unless the highest is there. `again`: in any case."""
    highest = names.level(destination, names.levels - 1)

    async def look(channel: Channel) -> Any:
        await channel.queue_declare(highest, passive=True)
        return await channel.exchange_declare(highest, passive=True)

    if not again and await attempt(link, f"check exchange {highest!r}", look) is not None:
        return
    async with (
        link.temporary_channel() as channel,
        translated("declare the delay queues", definite=True, within=MANY_ANSWERS_SECONDS),
    ):
        for number in range(names.levels):
            await _declare_level(channel, names, destination, number)


async def remove(link: RabbitMQLink, names: RabbitMQNames, topologies: Sequence[Topology]) -> None:
    """Delete everything behind a prefix: these queues with their messages, their events, all delays."""
    endpoints = [topology.endpoint for topology in topologies]
    kinds = sorted({kind for topology in topologies for kind in topology.events})
    destinations = [*map(command, endpoints), *map(event, kinds)]
    levels = [names.level(each, number) for each in destinations for number in range(names.levels)]
    missing = [*map(names.missing, endpoints)]
    inboxes, events = map(names.inbox, endpoints), map(names.exchange, kinds)
    shared = (names.due, names.subscribed, names.unsubscribed, names.census)
    unsubscribed = map(names.unsubscribed_of, endpoints)
    async with link.temporary_channel() as channel, translated("delete queues and exchanges", within=MANY_ANSWERS_SECONDS):
        for queue in (*map(names.queue, endpoints), *missing, *levels, *unsubscribed, names.discarded):
            await shielded(channel.queue_delete(queue))
        for exchange in (*events, *inboxes, *missing, *levels, *shared):
            await shielded(channel.exchange_delete(exchange))


async def count(link: RabbitMQLink, queue: str) -> tuple[int, int] | None:
    """Count the messages that wait in a queue and its consumers; None if the queue does not exist."""
    found = await attempt(link, f"check queue {queue!r}", lambda channel: channel.queue_declare(queue, passive=True))
    return None if found is None else (found.message_count or 0, found.consumer_count or 0)


async def count_delayed(link: RabbitMQLink, names: RabbitMQNames, destinations: Sequence[str]) -> int:
    """Count what the levels of these destinations keep."""
    total = 0
    for each in destinations:
        if await count(link, names.level(each, names.levels - 1)) is None:
            continue  # nothing to it was ever delayed
        async with (
            link.temporary_channel() as channel,
            translated("check the delay queues", definite=True, within=MANY_ANSWERS_SECONDS),
        ):
            for number in reversed(range(names.levels)):  # the way that messages go: none is overtaken
                found = await shielded(channel.queue_declare(names.level(each, number), passive=True))
                total += found.message_count or 0
    return total


async def _declare_endpoint(channel: Channel, names: RabbitMQNames, topology: Topology) -> None:
    queue = names.queue(topology.endpoint)
    async with translated(f"declare queue {queue!r}", definite=True):
        await shielded(channel.queue_declare(queue, durable=True, arguments=_QUORUM | {"x-delivery-limit": NEVER}))
    inbox = await _declare_inbox(channel, names, topology.endpoint)
    for kind in topology.events:
        await declare_event(channel, names, kind, delayed=True)
        async with translated(f"bind queue {queue!r} to event {kind!r}", definite=True):
            await shielded(channel.queue_bind(queue, names.exchange(kind)))
            await shielded(channel.exchange_bind(inbox, names.due, f"#.{event(kind)}"))
            await shielded(channel.exchange_bind(inbox, names.subscribed, f"#.{event(kind)}"))
    for kind in topology.gone:
        async with translated(f"unbind queue {queue!r} from event {kind!r}", definite=True):
            await shielded(channel.queue_unbind(queue, names.exchange(kind)))
            await shielded(channel.exchange_unbind(inbox, names.due, f"#.{event(kind)}"))
            await shielded(channel.exchange_unbind(inbox, names.subscribed, f"#.{event(kind)}"))


async def _declare_inbox(channel: Channel, names: RabbitMQNames, endpoint: str) -> str:
    """Create what keeps delayed messages that are due while the endpoint's queue is missing; returns its exchange."""
    queue, inbox, missing = names.queue(endpoint), names.inbox(endpoint), names.missing(endpoint)
    back = {"x-message-ttl": BACK * names.tick, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}
    async with translated(f"declare exchange {inbox!r}", definite=True):
        await shielded(channel.queue_declare(missing, durable=True, arguments=_QUORUM | _AT_LEAST_ONCE | back))
        await shielded(channel.exchange_declare(missing, exchange_type="fanout", durable=True))
        await shielded(channel.queue_bind(missing, missing))
        instead = {"alternate-exchange": missing}
        await shielded(channel.exchange_declare(inbox, exchange_type="fanout", durable=True, arguments=instead))
        await shielded(channel.queue_bind(queue, inbox))
        await shielded(channel.exchange_bind(inbox, names.due, f"#.{command(endpoint)}"))
    return inbox


async def _declare_level(channel: Channel, names: RabbitMQNames, destination: str, number: int) -> None:
    here, below = names.level(destination, number), names.level(destination, number - 1)
    before = "*." * (names.levels - 1 - number)
    await shielded(channel.queue_declare(here, durable=True, arguments=_level_arguments(names, destination, number)))
    await shielded(channel.exchange_declare(here, exchange_type="topic", durable=True))
    await shielded(channel.queue_bind(here, here, f"{before}1.#"))
    await shielded(channel.exchange_bind(below, here, f"{before}0.#"))


def _level_arguments(names: RabbitMQNames, destination: str, number: int) -> dict[str, Any]:
    """Dead-letter at least once: by default a message vanishes when its next place is not there at the moment."""
    here = {"x-message-ttl": names.tick * 2**number, "x-dead-letter-exchange": names.level(destination, number - 1)}
    return _QUORUM | _AT_LEAST_ONCE | here
