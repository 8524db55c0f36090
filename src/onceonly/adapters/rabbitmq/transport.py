"""A transport on RabbitMQ: durable quorum queues, publisher confirms, acknowledgements of many at once.

A delivery is held until its connection ends; then the broker gives it to another, marked. A release is a copy, sent to the
own queue and confirmed, then the original is acknowledged: a copy bears no mark, whereas whatever the broker itself puts
back does. Crash between the two: 1 the copy is taken, 2 the original is not acknowledged, 3 both come, the original as a
suspect, 4 one claim: handled once.

What was brought ahead to a process that dies comes again as a suspect too, although no handler had begun; and so does what a
process held that only lost its connection, unless it comes back to that very process.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from onceonly.adapters.rabbitmq import management, topology
from onceonly.adapters.rabbitmq.address import read_address
from onceonly.adapters.rabbitmq.exchanges import ForeignExchanges
from onceonly.adapters.rabbitmq.frames import ConsumedMessage
from onceonly.adapters.rabbitmq.inbox import LINGER_AT_WORK_SECONDS, RabbitMQInbox, RabbitMQReceipt
from onceonly.adapters.rabbitmq.link import (
    CLOSE_SECONDS,
    Channel,
    Properties,
    RabbitMQLink,
    answered,
    is_blocked,
    is_open,
    publish,
    shielded,
)
from onceonly.adapters.rabbitmq.publisher import OwnProperties, PublishOutcome, PublishRequest
from onceonly.adapters.rabbitmq.queue_depth import QueueDepth
from onceonly.adapters.rabbitmq.topology import RabbitMQNames
from onceonly.adapters.rabbitmq.unsubscribed_queue import UnsubscribedQueue
from onceonly.adapters.rabbitmq.wire import as_it_came, due_of, headers_of, properties
from onceonly.formats.cloudevents import UNREADABLE, arrival, encode
from onceonly.model.destination import LONGEST_SHORT, Exchange, Queue, is_destination, read_destination
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, RetryableError, SetupError
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Depth, Topology
from onceonly.queues.destinations import UnsubscribedEvents, report_unsent
from onceonly.queues.messages import queue_missing

__all__ = ["RabbitMQTransport"]

_SILENT = PublishOutcome.SILENT
_ANSWERS = {
    PublishOutcome.CONFIRMED: Answer.TAKEN,
    PublishOutcome.RETURNED: Answer.REFUSED,
    PublishOutcome.UNKNOWN: Answer.UNKNOWN,
    PublishOutcome.MISSING: Answer.REFUSED,
}


class RabbitMQTransport:
    """One endpoint's queue on a RabbitMQ server. Any number of processes may share it.

    `unsubscribed` counts the events sent from here that no queue had subscribed to. RabbitMQ returns them. Delayed events that
    had no subscriber when they were due wait in a queue for `collect_unsubscribed`.
    """

    def __init__(
        self,
        link: RabbitMQLink,
        endpoint: str,
        *,
        clock: Clock,
        names: RabbitMQNames | None = None,
        linger: float = LINGER_AT_WORK_SECONDS,
    ) -> None:
        """Use this connection; opens nothing. `names` and `linger` are for tests, which cannot wait for seconds."""
        self.traits = link.address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._endpoint = endpoint
        self._clock = clock
        self._names = names or RabbitMQNames(link.address.prefix)
        self._queue = self._names.queue(endpoint)
        self._publisher: Channel | None = None
        self._opening = asyncio.Lock()
        self._known: set[str] = set()
        self._suspected: set[str] = set()
        self._inbox = RabbitMQInbox(link, self._queue, self._give_back, linger=linger)
        self._exchanges = ForeignExchanges(link, endpoint, self._publish_on)
        self._late = UnsubscribedQueue(link, self._names, endpoint, self._publish)
        self._queue_depth = QueueDepth(link, self._names, endpoint, self._inbox)

    @staticmethod
    async def connect(url: str, random: RandomSource) -> RabbitMQLink:
        """Make the connection that all queues of a URL share; see `QueueClass`."""
        return RabbitMQLink(read_address(url), random)

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. While the server blocks this connection nothing is taken: no ack would get through.

        Raises CommitFailed while the server is away, SetupError if the queue does not exist. A later call may succeed.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        if not await self._link.ready(wait):
            return ()
        await self._queue_depth.answer_requests()
        while True:
            taken, early = await self._inbox.take(limit, max(0.0, end - clock()), self._is_early)
            if not early:
                return tuple(self._delivery(message) for message in taken)
            await shielded(self._put_off(taken))

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Publish all, then wait for all confirms; see the port. Raises CommitFailed when the server is away.

        CommitFailed also when it is full for longer than `timeout`. REFUSED: a command that cannot be routed, a body over
        `max_body`, headers that AMQP cannot carry, a queue or an exchange of another program that does not exist. UNKNOWN: no
        confirm came. A delayed message is late by up to a second and what its way takes, never early.
        """
        if not sends:
            return ()
        now = self._clock.now()
        if any(not send.to or send.due > now for send in sends):
            await self._channel()  # what is known of the server is forgotten with it
        requests = [await self._publish_request(send, now) for send in sends]
        outcomes = iter(await self._publish_all([request for request in requests if request]))
        return tuple(
            self._answer(send, request, next(outcomes)) if request else Answer.REFUSED
            for send, request in zip(sends, requests, strict=True)
        )

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Settle deliveries; those of an earlier connection are ignored, they come again."""
        await self._inbox.settle(self._inbox.current(delivery.receipt for delivery in deliveries))

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries as copies; those of an earlier connection are ignored, they come again."""
        held = [(message, delivery.headers, 0) for delivery in deliveries if (message := self._inbox.held(delivery.receipt))]
        await shielded(self._copy(held))

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: a delivery is held as long as its connection lives."""

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Make queues, exchanges and bindings; see the port. Raises SetupError when one is there with other arguments."""
        await topology.declare(self._link, self._names, topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port.

        RabbitMQ reports how many wait; what is held, and what waits with a receiver, the receivers are asked for. One that
        does not answer counts as holding a delivery. RabbitMQ counts a message nowhere, or in both places, while it moves from
        level to level or to its queue, some milliseconds. An empty queue is looked at twice, so that what moves for longer
        than that takes is all it misses.
        """
        if await topology.count(self._link, self._names.queue(endpoint)) is None:
            raise queue_missing(f"queue {endpoint!r}")
        return await self._queue_depth.measure(endpoint, events)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; see the protocol.

        AMQP does not list bindings, so this needs the option `management` in the URL. Types whose exchange has a hash for a
        name are left out.
        """
        address = self._link.address
        if not address.management:
            return None
        found = await management.sources(address, self._names.queue(endpoint))
        return frozenset(kind for source in found if (kind := self._names.event_of(source)) is not None)

    async def collect_unsubscribed(self) -> None:
        """Count the delayed events of this endpoint that had no subscriber; see the protocol."""
        await self._late.collect(self.unsubscribed)

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues with all that is in them, their events' exchanges, and the delays: for demos and tests."""
        await topology.remove(self._link, self._names, topologies)

    async def close(self) -> None:
        """Stop receiving, and release what was brought and not taken."""
        await self._inbox.close()
        await self._queue_depth.close()
        await self._exchanges.close()
        if self._publisher is not None and is_open(self._publisher):
            with suppress(Exception):  # nothing is in flight, and the connection goes as well
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._publisher.close()

    def _delivery(self, message: ConsumedMessage) -> Delivery:
        receipt: RabbitMQReceipt = self._inbox.receipt(message)
        suspect = self._inbox.is_suspect(message)
        return arrival(receipt, self._endpoint, headers_of(message), message.body, suspect=suspect)

    def _is_early(self, message: ConsumedMessage) -> bool:
        due = due_of(message)
        return due > 0 and due > self._clock.now() and self._written(headers_of(message), due) is not None

    async def _give_back(self, messages: list[ConsumedMessage]) -> None:
        """Release what was not taken, as copies, which are not marked."""
        await self._copy([(message, headers_of(message), due_of(message)) for message in messages])

    async def _put_off(self, messages: list[ConsumedMessage]) -> None:
        """Send what came too early round again."""
        now, destination = self._clock.now(), topology.command(self._endpoint)
        try:
            await self._levels(destination)
            await self._exchange([(message, self._again(message, now)) for message in messages])
        except (RetryableError, SetupError):
            self._known.discard(destination)  # a level may have been deleted
            self._suspected.add(destination)
            self._inbox.put_back(messages)
            raise

    def _again(self, message: ConsumedMessage, now: int) -> PublishRequest | None:
        due = due_of(message)
        exchange, key = self._names.route(topology.command(self._endpoint), due - now)
        known = self._written(headers_of(message), due)
        return PublishRequest(exchange=exchange, routing_key=key, properties=known, body=message.body) if known else None

    async def _copy(self, contents: Sequence[tuple[ConsumedMessage, Headers, int]]) -> None:
        """Send copies to the own queue, each with its headers and due instant; then settle the originals."""
        copies: list[tuple[ConsumedMessage, PublishRequest | None]] = []
        for message, headers, due in contents:
            known = self._carried(message, headers, due)
            request = PublishRequest(routing_key=self._queue, properties=known, body=message.body) if known else None
            copies.append((message, request))
        await self._exchange(copies)

    def _carried(self, message: ConsumedMessage, headers: Headers, due: int) -> OwnProperties | Properties | None:
        """Return the properties of a copy: written anew, or as they came where AMQP cannot carry them so; None for neither."""
        return self._written(headers, due) or as_it_came(message, self._link.frame)

    def _written(self, headers: Headers, due: int) -> OwnProperties | None:
        is_readable = not (headers and headers[0][0] == UNREADABLE)
        return properties(headers, due=due, frame=self._link.frame) if is_readable else None

    async def _exchange(self, copies: Sequence[tuple[ConsumedMessage, PublishRequest | None]]) -> None:
        """Acknowledge what has been taken as a copy; have the broker put back what has none.

        Raises OutcomeUnknown, CommitFailed when some was not taken.
        """
        outcomes = iter(await self._publish([request for _, request in copies if request]))
        answers = [(self._inbox.receipt(message), next(outcomes) if request else None) for message, request in copies]
        # Crash here: 1 copy taken, 2 original not acked, 3 both come, the original as a suspect, 4 one claim: handled once.
        await self._inbox.settle([receipt for receipt, outcome in answers if outcome is PublishOutcome.CONFIRMED])
        await self._inbox.reject([receipt for receipt, outcome in answers if outcome is None])
        found = [outcome for _, outcome in answers]
        if PublishOutcome.RETURNED in found:
            raise CommitFailed(f"cannot requeue messages: queue {self._queue!r} does not exist")
        if PublishOutcome.UNKNOWN in found:
            raise OutcomeUnknown(f"cannot requeue messages: the broker did not confirm every copy to queue {self._queue!r}")

    async def _publish(self, requests: Sequence[PublishRequest]) -> list[PublishOutcome]:
        if not requests:
            return []
        if not await self._link.ready(self._link.address.timeout):  # what is published now arrives at an unknown time
            raise CommitFailed(f"{self._link.address.place} does not accept messages: it is low on memory or disk space")
        return await self._publish_on(await self._channel(), requests)

    async def _publish_all(self, requests: Sequence[PublishRequest]) -> list[PublishOutcome]:
        """Publish, and what goes to exchanges of other programs at the same time, each of these apart."""
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(request.exchange if request.foreign else "", []).append(number)
        if groups.keys() <= {""}:
            return await self._publish(requests)
        if not await self._link.ready(self._link.address.timeout):
            raise CommitFailed(f"{self._link.address.place} does not accept messages: it is low on memory or disk space")
        calls = [
            (self._exchanges.publish if exchange else self._publish)([requests[number] for number in numbers])
            for exchange, numbers in groups.items()
        ]
        done = await asyncio.gather(*calls, return_exceptions=True)
        outcomes = [PublishOutcome.UNKNOWN] * len(requests)
        errors = [each for each in done if isinstance(each, BaseException)]
        if errors and (len(errors) == len(done) or not all(isinstance(each, OnceOnlyError) for each in errors)):
            raise errors[0]
        for exchange, numbers, found in zip(groups, groups.values(), done, strict=True):
            if isinstance(found, BaseException):
                report_unsent(self._endpoint, exchange or self._link.address.place, found)  # type: ignore[arg-type]
                continue
            for number, outcome in zip(numbers, found, strict=True):
                outcomes[number] = outcome
        return outcomes

    async def _publish_on(self, channel: Channel, requests: Sequence[PublishRequest]) -> list[PublishOutcome]:
        known = answered(channel)
        outcomes = await publish(channel, requests, self._link.address.timeout, self._link.silent)
        unanswered = [each.destination for each, outcome in zip(requests, outcomes, strict=True) if outcome is _SILENT]
        # While the server answers for some messages, its silence about others is about their queues.
        is_suspected = unanswered and is_open(channel) and not is_blocked(channel)
        if is_suspected and (answered(channel) != known or await self._link.works(channel)):
            self._link.silent.add(unanswered)
        return [PublishOutcome.UNKNOWN if outcome is _SILENT else outcome for outcome in outcomes]

    async def _channel(self) -> Channel:
        if self._publisher is not None and is_open(self._publisher):
            return self._publisher
        async with self._opening:
            if self._publisher is None or not is_open(self._publisher):
                self._known.clear()
                self._publisher = await self._link.channel(confirms=True)
            return self._publisher

    async def _publish_request(self, send: Send, now: int) -> PublishRequest | None:
        """Address a message; None when it can never be taken."""
        if len(send.message.body) > self.traits.max_body:
            return None
        waits = send.due > now
        due = send.due if waits else 0
        headers, body = encode(send)
        formatted = send.message if send.formatted else None
        known = properties(headers, due=due, frame=self._link.frame, formatted=formatted)
        if known is None and send.history:  # its own headers nearly fill a frame
            headers, _ = encode(send, tracebacks=False)
            known = properties(headers, due=due, frame=self._link.frame)
        if known is None or not await self._is_routable(send, waits=waits):
            return None
        if is_destination(send.to):
            return None if waits else _to_destination(send.to, known, body)
        if waits:
            publisher = "" if send.to else self._endpoint
            exchange, key = self._names.route(_destination(send), send.due - now, publisher=publisher)
        elif send.to:
            exchange, key = "", self._names.queue(send.to)
        else:
            exchange, key = self._names.exchange(send.message.type), ""
        return PublishRequest(exchange=exchange, routing_key=key, properties=known, body=body)

    async def _is_routable(self, send: Send, *, waits: bool) -> bool:
        """Make sure that what the broker does not answer for is there: events' exchanges, delays, delayed commands' queues."""
        if send.to and (not waits or is_destination(send.to)):
            return True
        place = _destination(send) if waits else self._names.exchange(send.message.type)
        if place in self._known:
            return True
        if send.to:
            if await topology.count(self._link, self._names.queue(send.to)) is None:
                return False
        else:
            await self._event(send.message.type, delayed=waits)
        if waits:
            await self._levels(place)
        self._known.add(place)
        return True

    async def _event(self, kind: str, *, delayed: bool) -> None:
        """Create the exchange of an event type; with a binding for what is due, where one is delayed."""
        if delayed:
            await self._shared()
            await self._late.declare()
        async with self._link.temporary_channel() as channel:
            await topology.declare_event(channel, self._names, kind, delayed=delayed)

    async def _shared(self) -> None:
        if self._names.due not in self._known:
            await topology.declare_shared(self._link, self._names)
            self._known.add(self._names.due)

    async def _levels(self, destination: str) -> None:
        """Create the levels of delay of one destination, once for each connection, and after one was found missing."""
        if destination in self._known:
            return
        await self._shared()
        await topology.declare_levels(self._link, self._names, destination, again=destination in self._suspected)
        self._suspected.discard(destination)
        self._known.add(destination)

    def _answer(self, send: Send, request: PublishRequest, outcome: PublishOutcome) -> Answer:
        if outcome is PublishOutcome.RETURNED and request.foreign:
            self.unsubscribed.add(send.message.type)  # nothing is bound to the exchange for this key
            return Answer.TAKEN
        if outcome is PublishOutcome.RETURNED and request.exchange.startswith(self._names.levels_begin):
            self._known.discard(_destination(send))  # a level was deleted: create it again, and send again
            self._suspected.add(_destination(send))
            return Answer.UNKNOWN
        if outcome is PublishOutcome.RETURNED and not send.to:
            self.unsubscribed.add(send.message.type)
            return Answer.TAKEN
        return _ANSWERS[outcome]


def _to_destination(to: str, known: OwnProperties, body: bytes) -> PublishRequest | None:
    """Address a message to a queue or an exchange of another program; None for another kind."""
    found = read_destination(to)
    if isinstance(found, Exchange):
        return PublishRequest(exchange=found.name, routing_key=found.routing_key, properties=known, body=body, foreign=True)
    if isinstance(found, Queue) and len(found.name.encode()) <= LONGEST_SHORT:
        return PublishRequest(routing_key=found.name, properties=known, body=body)
    return None


def _destination(send: Send) -> str:
    return topology.command(send.to) if send.to else topology.event(send.message.type)
