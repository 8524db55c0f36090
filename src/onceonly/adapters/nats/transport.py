"""A transport on NATS JetStream: work-queue streams, pull consumers, acknowledgements of each message.

A delivery is held for the lease, the consumer's `ack_wait`. After that the server delivers it again, and counts that. A
delivery with a count above one is a suspect. So a release is a copy, sent to the own queue and confirmed, then the original is
acknowledged: a copy begins at one. Crash between the two: 1 copy stored, 2 original not acknowledged, 3 both come, the
original as a suspect, 4 one claim: handled once.

The server accepts a late acknowledgement, also while another receiver holds the message. Here none is sent after the lease. One
that is late on its way is harmless: it is sent when the message was handled and its effects are dispatched.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec import Struct

from onceonly.adapters.nats import topology
from onceonly.adapters.nats.delays import DelayedMessages
from onceonly.adapters.nats.inbox import Inbox, NatsReceipt, acknowledge, acknowledgements, deliveries_of
from onceonly.adapters.nats.link import REFUSED, STORED, UNROUTED, Arrival, Link, PublishOutcome, Request
from onceonly.adapters.nats.names import CONSUMER, TopologyNames
from onceonly.adapters.nats.wire import MOST_BYTES, is_unreadable, read_headers, write_headers
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.endpoint_name import is_endpoint_name
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown, QueueMissing, RetryableError, SetupError
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.systems.silent import report_unsent
from onceonly.systems.unsubscribed import UnsubscribedEvents

__all__ = ["NatsTransport"]

_Value = TypeVar("_Value")
LONGEST_PAUSE_SECONDS = 1.0
"""Between two looks for messages that are due, as long as a receiver runs."""


class _Copies(Struct):
    """The messages that one send becomes. `refused` is whether it can never be stored, `error` why it cannot be addressed."""

    requests: list[Request]
    refused: bool = False
    error: OnceOnlyError | None = None


class _Found(Struct):
    """What was found at the server for the messages of one call, or why it was not: who subscribes, which streams exist."""

    subscribers: dict[str, tuple[str, ...] | OnceOnlyError]
    streams: dict[str, bool | OnceOnlyError]


class NatsTransport:
    """One endpoint's queue in JetStream. Any number of processes may share it.

    `unsubscribed` counts the events sent from here that no endpoint had subscribed to.
    """

    def __init__(self, link: Link, endpoint: str, *, clock: Clock) -> None:
        """Use this connection; opens nothing."""
        self.traits = link.address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._endpoint = endpoint
        self._clock = clock
        self._names = TopologyNames(link.address.prefix)
        self._stream = self._names.queue(endpoint)
        self._known: set[str] = set()
        self._known_by = 0
        self._inbox = Inbox(link, self._stream, CONSUMER, self._give_back, clock=clock, exists=self._exists)
        self._delays = DelayedMessages(link, self._names, endpoint, clock)
        self._receivers = 0
        self._moving: asyncio.Task[None] | None = None

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. Meanwhile, move what is due."""
        self._receivers += 1
        try:
            if self._moving is None and self._clock.now() >= self._delays.next_look:
                self._moving = asyncio.create_task(self._move())
            taken = await self._inbox.take(limit, wait)
        finally:
            self._receivers -= 1
        return tuple(self._delivery(message) for message in taken)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Publish all, then wait for all answers; see the port. Raises CommitFailed when the servers are away.

        REFUSED: a command that cannot be routed, a body over `max_body`, headers that are too large. UNKNOWN: no answer came,
        or the stream is full. A delayed message is late by up to a second, never early.
        """
        if not sends:
            return ()
        connection = await self._link.connection()
        if self._known_by != connection.serial:
            self._known.clear()
            self._known_by = connection.serial
        now = self._clock.now()
        known = await self._find(sends, now)
        copies = [self._copies(send, now, known, connection.max_payload) for send in sends]
        requests = [request for each in copies for request in each.requests]
        outcomes = await self._link.publish(requests)
        unrouted = (each for each, outcome in zip(requests, outcomes, strict=True) if outcome is UNROUTED)
        missing, results = await self._missing(unrouted), iter(outcomes)
        answers = tuple(
            self._answer(send, each, [next(results) for _ in each.requests], missing)
            for send, each in zip(sends, copies, strict=True)
        )
        errors = [each.error for each in copies if each.error is not None]
        if errors and Answer.TAKEN not in answers:
            raise errors[0]
        return answers

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Acknowledge deliveries; those whose lease has ended are ignored, they come again. Raises OutcomeUnknown."""
        held = [reply for each in deliveries if (reply := self._inbox.holds(each.receipt))]
        await acknowledge(self._link, held)
        self._inbox.settled(held)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give deliveries back as copies; those whose lease has ended are ignored, they come again."""
        held = [(reply, each.headers, each.body) for each in deliveries if (reply := self._inbox.holds(each.receipt))]
        await self._copy(held)
        self._inbox.settled([reply for reply, _, _ in held])

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Let the leases begin again; a lease that has ended is not renewed."""
        held = [reply for each in deliveries if (reply := self._inbox.holds(each.receipt))]
        if held:
            connection = await self._link.connection()
            await connection.write(acknowledgements(held, b"+WPI"))
            self._inbox.extended(held)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create streams, consumers and subscriptions; see the port. Raises SetupError when one exists with other settings."""
        await topology.declare(self._link, self._names, topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port. NATS counts a message whose lease has ended as held until it is delivered again."""
        consumer = await topology.consumer_of(self._link, self._names.queue(endpoint))
        if consumer is None:
            raise QueueMissing(
                f"queue {endpoint!r} does not exist: run `onceonly topology create module:endpoint`, or start its endpoint"
            )
        due, delayed = await self._delays.count(endpoint)
        return Depth(waiting=consumer.num_pending + due, held=consumer.num_ack_pending, delayed=delayed)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; see the protocol. Types with very long names are left out."""
        return await topology.subscriptions(self._link, self._names, endpoint)

    async def check(self) -> BrokerReport:
        """Report the settings of the streams; see the protocol."""
        return await topology.report(self._link, self._names, self._endpoint)

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues, and all subscriptions and delayed messages behind the prefix: for demos and tests."""
        await topology.remove(self._link, self._names, topologies)

    async def close(self) -> None:
        """Stop moving delayed messages, and wait until deliveries of ended requests are released."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])
        await self._inbox.close()

    def _delivery(self, message: Arrival) -> Delivery:
        receipt = NatsReceipt(message.reply.decode())
        suspect = deliveries_of(message) > 1
        return arrival(receipt, self._endpoint, read_headers(message.headers), message.body, suspect=suspect)

    async def _exists(self) -> bool:
        return await topology.consumer_of(self._link, self._stream) is not None

    async def _move(self) -> None:
        """Move what is due, as long as a receiver runs."""
        try:
            while self._receivers:
                pause = LONGEST_PAUSE_SECONDS
                with suppress(RetryableError, SetupError):  # receiving fails as well, and reports it
                    if self._clock.now() >= self._delays.next_look:
                        await self._delays.move()
                    pause = min(pause, max(0.0, (self._delays.next_look - self._clock.now()) / 1000))
                await asyncio.sleep(pause)
        finally:
            self._moving = None

    async def _give_back(self, messages: list[Arrival]) -> None:
        """Release what no receiver took: as copies, which are not suspects."""
        await self._copy([(each.reply.decode(), read_headers(each.headers), each.body) for each in messages])

    async def _copy(self, contents: Sequence[tuple[str, Headers, bytes]]) -> None:
        """Send copies to the own queue; then acknowledge the originals. Raises OutcomeUnknown, CommitFailed.

        What cannot be read, or is too large when it is written anew, is delivered again by the server itself.
        """
        subject = self._names.queue_subject(self._endpoint)
        copies = {
            reply: Request(subject, body, written)
            for reply, headers, body in contents
            if not is_unreadable(headers) and len(written := write_headers(headers)) <= MOST_BYTES
        }
        odd = [reply for reply, _, _ in contents if reply not in copies]
        outcomes = await self._link.publish(tuple(copies.values()))
        stored = [reply for reply, outcome in zip(copies, outcomes, strict=True) if outcome is STORED]
        # Crash here: 1 copy stored, 2 original not acked, 3 both come, the original as a suspect, 4 one claim: handled once.
        await acknowledge(self._link, stored)
        self._inbox.settled(stored)
        await acknowledge(self._link, odd, b"-NAK")
        if UNROUTED in outcomes:
            raise CommitFailed(f"cannot requeue messages: stream {self._stream!r} does not exist")
        if len(stored) < len(copies):
            raise OutcomeUnknown(f"cannot requeue messages: stream {self._stream!r} did not confirm every copy")

    async def _find(self, sends: Sequence[Send], now: int) -> _Found:
        """Find what must be known before messages are addressed, all at once. What cannot be found costs only its messages."""
        kinds = [*dict.fromkeys(send.message.type for send in sends if not send.to)]
        waiting = [send for send in sends if send.due > now]
        streams = [*dict.fromkeys(self._names.queue(send.to) for send in waiting if is_endpoint_name(send.to))]
        if waiting:
            streams.append(self._names.delayed)
        subscribers, exist = await asyncio.gather(
            asyncio.gather(*(_result(topology.subscribers(self._link, self._names, kind, self._endpoint)) for kind in kinds)),
            asyncio.gather(*(_result(self._has(stream)) for stream in streams)),
        )
        return _Found(dict(zip(kinds, subscribers, strict=True)), dict(zip(streams, exist, strict=True)))

    async def _has(self, stream: str) -> bool:
        """Return whether a stream exists, which for that of delayed messages is always so in the end."""
        if stream in self._known:
            return True
        if stream == self._names.delayed:
            await topology.declare_delayed(self._link, self._names)
        elif not await topology.exists(self._link, stream):
            return False
        self._known.add(stream)
        return True

    def _written(self, send: Send, max_payload: int) -> tuple[bytes, bytes] | None:
        """Return headers and body; None for a message that can never be stored."""
        message = send.message
        if len(message.body) > self.traits.max_body or (send.to and not is_endpoint_name(send.to)):
            return None
        headers, body = encode(send)
        written = write_headers(headers)
        most = min(MOST_BYTES, max_payload - len(body))
        if len(written) > most and send.history:
            headers, _ = encode(send, tracebacks=False)
            written = write_headers(headers)
        return None if len(written) > most else (written, body)

    def _copies(self, send: Send, now: int, found: _Found, max_payload: int) -> _Copies:
        """Address a message to each of its queues."""
        content = self._written(send, max_payload)
        if content is None:
            return _Copies([], refused=True)
        headers, body = content
        endpoints = (send.to,) if send.to else found.subscribers[send.message.type]
        if isinstance(endpoints, OnceOnlyError):
            return _Copies([], error=endpoints)
        if send.due <= now:
            return _Copies([Request(self._names.queue_subject(each), body, headers) for each in endpoints])
        stream = self._names.delayed
        for each in [self._names.queue(send.to)] * bool(send.to) + [stream] * bool(endpoints):
            exists = found.streams[each]
            if isinstance(exists, OnceOnlyError) or not exists:
                return _Copies([], refused=exists is False, error=exists or None)
        if self._endpoint in endpoints:
            self._delays.note(send.due)
        return _Copies([Request(self._names.delayed_until(each, send.due), body, headers, stream) for each in endpoints])

    def _answer(self, send: Send, copies: _Copies, outcomes: Sequence[PublishOutcome], missing: frozenset[str]) -> Answer:
        if copies.refused or REFUSED in outcomes:
            return Answer.REFUSED
        if copies.error is not None:
            report_unsent(self._endpoint, send.to or send.message.type, copies.error)
            return Answer.UNKNOWN
        for request, outcome in zip(copies.requests, outcomes, strict=True):
            if outcome is not STORED and (outcome is not UNROUTED or request.destination not in missing):
                return Answer.UNKNOWN
        if STORED in outcomes:
            return Answer.TAKEN
        if send.to:
            return Answer.REFUSED
        self.unsubscribed.add(send.message.type)
        return Answer.TAKEN

    async def _missing(self, requests: Iterable[Request]) -> frozenset[str]:
        """Return the subjects that no stream has. In a cluster, one without a leader does not answer either."""
        destinations = {each.destination for each in requests}
        self._known -= destinations  # the stream of delayed messages was deleted: the next send creates it again
        subjects = [*destinations - {self._names.delayed}]
        found = await asyncio.gather(*(_result(topology.has_stream(self._link, subject)) for subject in subjects))
        return frozenset(subject for subject, exists in zip(subjects, found, strict=True) if exists is False)


async def _result(call: Awaitable[_Value]) -> _Value | OnceOnlyError:
    """Return what a call returns, or its error."""
    try:
        return await call
    except OnceOnlyError as error:
        return error
