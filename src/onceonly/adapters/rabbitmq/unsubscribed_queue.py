"""Delayed events that had no subscriber when they were due.

RabbitMQ returns a prompt event that it cannot route, but nothing returns an event that leaves a level of delay. So what is due
also goes to an exchange to which subscribers bind (`subscribed`). If none has bound itself to the type, its alternate exchange
puts the event into a queue of its publisher, which processes of the publisher empty and count.

The alternate exchange does not see every subscriber: queues of other programs are bound to the exchange of the event type
only. They have received the event. To find out, one event is published again to the exchange of its type, as mandatory.
RabbitMQ returns it if no queue is bound. Otherwise the subscribers get a duplicate, at most once an hour for each type and
process.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from onceonly.adapters.rabbitmq.frames import ConsumedMessage, delivered
from onceonly.adapters.rabbitmq.link import MANY_ANSWERS_SECONDS, Channel, RabbitMQLink, shielded, translated
from onceonly.adapters.rabbitmq.names import RabbitMQNames
from onceonly.adapters.rabbitmq.publisher import PublishOutcome, PublishRequest
from onceonly.adapters.rabbitmq.topology import count, declare_event, declare_unsubscribed
from onceonly.adapters.rabbitmq.wire import due_of, headers_of, properties, type_of
from onceonly.model.errors import OutcomeUnknown
from onceonly.queues.destinations import UnsubscribedEvents

BATCH = 200
SEARCH_SECONDS = 60.0
"""Seconds after which a queue that did not exist is looked for again: another process may have declared it."""
HEARD_SECONDS = 3600.0
"""Seconds for which a type that has other subscribers is not published again."""

Publish = Callable[[Sequence[PublishRequest]], Awaitable[list[PublishOutcome]]]


class UnsubscribedQueue:
    """The queue of one publisher's delayed events that had no subscriber. Any number of processes may empty it."""

    def __init__(self, link: RabbitMQLink, names: RabbitMQNames, endpoint: str, publish: Publish) -> None:
        self._link = link
        self._names = names
        self._endpoint = endpoint
        self._queue = names.unsubscribed_of(endpoint)
        self._publish = publish
        self._exists = False
        self._search_at = 0.0
        self._heard: dict[str, float] = {}

    async def declare(self) -> None:
        """Create the queue. Raises CommitFailed, SetupError."""
        async with self._link.temporary_channel() as channel:
            await declare_unsubscribed(channel, self._names, self._endpoint)
        self._exists = True

    async def collect(self, events: UnsubscribedEvents) -> None:
        """Count all events in the queue, and delete them. Raises CommitFailed, OutcomeUnknown, SetupError."""
        now = asyncio.get_running_loop().time()
        if not self._exists and now < self._search_at:
            return
        found = await count(self._link, self._queue)
        self._exists, self._search_at = found is not None, now + SEARCH_SECONDS
        if not found or not found[0]:
            return
        async with self._link.temporary_channel() as channel:
            while await self._collect_batch(channel, events) == BATCH:
                pass

    async def _collect_batch(self, channel: Channel, events: UnsubscribedEvents) -> int:
        """Return how many events were deleted. One that was counted may be counted again after a crash or an error."""
        found: Counter[str] = Counter()
        samples: dict[str, ConsumedMessage] = {}
        last = 0
        async with translated(f"empty queue {self._queue!r}", definite=True, within=MANY_ANSWERS_SECONDS):
            while found.total() < BATCH and (got := await shielded(channel.basic_get(self._queue))).delivery_tag:
                message, last = delivered(got), got.delivery_tag
                kind = type_of(headers_of(message))
                found[kind] += 1
                samples.setdefault(kind, message)
        for kind, number in found.items():
            if kind and not await self._has_subscriber(kind, samples[kind]):
                events.add(kind, number)
        if last:
            async with translated(f"empty queue {self._queue!r}"):
                await shielded(channel.basic_ack(last, multiple=True))
        return found.total()

    async def _has_subscriber(self, kind: str, sample: ConsumedMessage) -> bool:
        now = asyncio.get_running_loop().time()
        if now < self._heard.get(kind, 0.0):
            return True
        known = properties(headers_of(sample), due=due_of(sample), frame=self._link.frame)
        if known is None:  # not an event of this library: it cannot be published again
            return False
        async with self._link.temporary_channel() as channel:  # publishing to a missing exchange closes the channel
            await declare_event(channel, self._names, kind, delayed=True)
        exchange = self._names.exchange(kind)
        (outcome,) = await self._publish(
            [PublishRequest(exchange=exchange, routing_key="", properties=known, body=sample.body)]
        )
        if outcome is PublishOutcome.CONFIRMED:
            self._heard[kind] = now + HEARD_SECONDS
            return True
        if outcome is not PublishOutcome.RETURNED:
            raise OutcomeUnknown(f"cannot find out whether events {kind!r} have subscribers: the broker did not confirm one")
        return False
