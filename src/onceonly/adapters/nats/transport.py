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
from typing import TypeVar

from msgspec import Struct

from onceonly.adapters.nats import topology
from onceonly.adapters.nats.address import read_address
from onceonly.adapters.nats.delays import NatsDelayedMessages
from onceonly.adapters.nats.inbox import NatsInbox, NatsReceipt, acknowledge, acknowledgements, deliveries_of
from onceonly.adapters.nats.link import NatsArrival, NatsLink, NatsRequest
from onceonly.adapters.nats.names import CONSUMER, NatsNames
from onceonly.adapters.nats.wire import MOST_BYTES, is_unreadable, read_headers, write_headers
from onceonly.formats.cloudevents import arrival
from onceonly.model.destination import Subject, is_destination, read_destination
from onceonly.model.errors import CommitFailed, OnceOnlyError, OutcomeUnknown
from onceonly.model.limits import is_endpoint_name
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.queues.deliveries import DueMover
from onceonly.queues.destinations import CopyOutcome, UnsubscribedEvents, combined_answer, report_unsent
from onceonly.queues.messages import queue_missing, write_to_fit

__all__ = ["NatsTransport"]

_Value = TypeVar("_Value")
LONGEST_PAUSE_SECONDS = 1.0
"""Between two looks for messages that are due, as long as a receiver runs."""


class _Copies(Struct):
    """The messages that one send becomes. `refused` is whether it can never be stored, `error` why it cannot be addressed."""

    requests: list[NatsRequest]
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

    def __init__(self, link: NatsLink, endpoint: str, *, clock: Clock) -> None:
        self.traits = link.address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._endpoint = endpoint
        self._clock = clock
        self._names = NatsNames(link.address.prefix)
        self._stream = self._names.queue(endpoint)
        self._known: set[str] = set()
        self._known_by = 0
        self._inbox = NatsInbox(link, self._stream, CONSUMER, self._give_back, clock=clock, exists=self._exists)
        self._delays = NatsDelayedMessages(link, self._names, endpoint, clock)
        self._mover = DueMover(self._move, self._is_due)

    @staticmethod
    async def connect(url: str, random: RandomSource) -> NatsLink:
        """Make the connection that all queues of a URL share; see `QueueClass`."""
        return NatsLink(read_address(url), random)

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what waits; see the port. Meanwhile, move what is due."""
        self._mover.begin()
        try:
            taken = await self._inbox.take(limit, wait)
        finally:
            self._mover.end()
        return tuple(self._delivery(message) for message in taken)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Publish all, then wait for all answers; see the port. Raises CommitFailed when the servers are away.

        REFUSED: a command that cannot be routed, a body over `max_body`, headers that are too large, a subject of another
        program that no stream has. UNKNOWN: no answer came,
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
        unrouted = (each for each, outcome in zip(requests, outcomes, strict=True) if outcome is CopyOutcome.MISSING)
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
        self._inbox.leases.settle(held)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release deliveries as copies; those whose lease has ended are ignored, they come again."""
        held = [(reply, each.headers, each.body) for each in deliveries if (reply := self._inbox.holds(each.receipt))]
        await self._copy(held)
        self._inbox.leases.settle([reply for reply, _, _ in held])

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew leases; a lease that has ended is not renewed."""
        held = [reply for each in deliveries if (reply := self._inbox.holds(each.receipt))]
        if held:
            connection = await self._link.connection()
            await connection.write(acknowledgements(held, b"+WPI"))
            self._inbox.leases.hold(held)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create streams, consumers and subscriptions; see the port. Raises SetupError when one exists with other settings."""
        await topology.declare(self._link, self._names, topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port. NATS counts a message whose lease has ended as held until it is delivered again."""
        consumer = await topology.consumer_of(self._link, self._names.queue(endpoint))
        if consumer is None:
            raise queue_missing(f"queue {endpoint!r}")
        due, delayed = await self._delays.count(endpoint)
        return Depth(waiting=consumer.num_pending + due, held=consumer.num_ack_pending, delayed=delayed)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; see the protocol. Types with very long names are left out."""
        return await topology.subscriptions(self._link, self._names, endpoint)

    async def check(self) -> BrokerReport:
        return await topology.report(self._link, self._names, self._endpoint)

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues, and all subscriptions and delayed messages behind the prefix: for demos and tests."""
        await topology.remove(self._link, self._names, topologies)

    async def close(self) -> None:
        """Stop moving delayed messages, and wait until deliveries of ended requests are released."""
        await self._mover.close()
        await self._inbox.close()

    def _delivery(self, message: NatsArrival) -> Delivery:
        receipt = NatsReceipt(message.reply.decode())
        suspect = deliveries_of(message) > 1
        return arrival(receipt, self._endpoint, read_headers(message.headers), message.body, suspect=suspect)

    async def _exists(self) -> bool:
        return await topology.consumer_of(self._link, self._stream) is not None

    def _is_due(self) -> bool:
        return self._clock.now() >= self._delays.next_look

    async def _move(self) -> float:
        """Move what is due; return the seconds until the next look."""
        if self._is_due():
            await self._delays.move()
        return min(LONGEST_PAUSE_SECONDS, max(0.0, (self._delays.next_look - self._clock.now()) / 1000))

    async def _give_back(self, messages: list[NatsArrival]) -> None:
        """Release what no receiver took: as copies, which are not suspects."""
        await self._copy([(each.reply.decode(), read_headers(each.headers), each.body) for each in messages])

    async def _copy(self, contents: Sequence[tuple[str, Headers, bytes]]) -> None:
        """Send copies to the own queue; then acknowledge the originals. Raises OutcomeUnknown, CommitFailed.

        What cannot be read, or is too large when it is written anew, is delivered again by the server itself.
        """
        subject = self._names.queue_subject(self._endpoint)
        copies = {
            reply: NatsRequest(subject, body, written)
            for reply, headers, body in contents
            if not is_unreadable(headers) and len(written := write_headers(headers)) <= MOST_BYTES
        }
        odd = [reply for reply, _, _ in contents if reply not in copies]
        outcomes = await self._link.publish(tuple(copies.values()))
        stored = [reply for reply, outcome in zip(copies, outcomes, strict=True) if outcome is CopyOutcome.TAKEN]
        # Crash here: 1 copy stored, 2 original not acked, 3 both come, the original as a suspect, 4 one claim: handled once.
        await acknowledge(self._link, stored)
        self._inbox.leases.settle(stored)
        await acknowledge(self._link, odd, b"-NAK")
        if CopyOutcome.MISSING in outcomes:
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
        streams += dict.fromkeys(send.to for send in sends if is_destination(send.to))
        subscribers, exist = await asyncio.gather(
            asyncio.gather(*(_result(topology.subscribers(self._link, self._names, kind, self._endpoint)) for kind in kinds)),
            asyncio.gather(*(_result(self._has(stream)) for stream in streams)),
        )
        return _Found(dict(zip(kinds, subscribers, strict=True)), dict(zip(streams, exist, strict=True)))

    async def _has(self, stream: str) -> bool:
        """Return whether a stream exists, which for that of delayed messages is always so in the end.

        For a subject of another program, return whether a stream has it. Else a subscriber alone would take the message, and
        nothing would confirm it.
        """
        if stream in self._known:
            return True
        if is_destination(stream):
            subject = _subject(stream)
            if subject is None or not await topology.has_stream(self._link, subject):
                return False
            self._known.add(stream)
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
        is_known = not send.to or is_endpoint_name(send.to) or is_destination(send.to)
        if len(message.body) > self.traits.max_body or not is_known:
            return None
        most = min(MOST_BYTES, max_payload - len(message.body))

        def write(headers: Headers, _body: bytes) -> bytes | None:
            written = write_headers(headers)
            return written if len(written) <= most else None

        written = write_to_fit(send, write)
        return None if written is None else (written, message.body)

    def _copies(self, send: Send, now: int, found: _Found, max_payload: int) -> _Copies:
        content = self._written(send, max_payload)
        if content is None:
            return _Copies([], refused=True)
        headers, body = content
        if is_destination(send.to):
            return self._copy_to_subject(send, now, found, headers)
        endpoints = (send.to,) if send.to else found.subscribers[send.message.type]
        if isinstance(endpoints, OnceOnlyError):
            return _Copies([], error=endpoints)
        if send.due <= now:
            return _Copies([NatsRequest(self._names.queue_subject(each), body, headers) for each in endpoints])
        stream = self._names.delayed
        for each in [self._names.queue(send.to)] * bool(send.to) + [stream] * bool(endpoints):
            exists = found.streams[each]
            if isinstance(exists, OnceOnlyError) or not exists:
                return _Copies([], refused=exists is False, error=exists or None)
        if self._endpoint in endpoints:
            self._delays.note(send.due)
        return _Copies([NatsRequest(self._names.delayed_until(each, send.due), body, headers, stream) for each in endpoints])

    def _copy_to_subject(self, send: Send, now: int, found: _Found, headers: bytes) -> _Copies:
        exists, subject = found.streams[send.to], _subject(send.to)
        if isinstance(exists, OnceOnlyError):
            return _Copies([], error=exists)
        if subject is None or not exists or send.due > now:
            return _Copies([], refused=True)
        return _Copies([NatsRequest(subject, send.message.body, headers)])

    def _answer(self, send: Send, copies: _Copies, outcomes: Sequence[CopyOutcome], missing: frozenset[str]) -> Answer:
        if copies.refused:
            return Answer.REFUSED
        if copies.error is not None:
            report_unsent(self._endpoint, send.to or send.message.type, copies.error)
            return Answer.UNKNOWN
        found = [
            CopyOutcome.UNKNOWN if outcome is CopyOutcome.MISSING and request.destination not in missing else outcome
            for request, outcome in zip(copies.requests, outcomes, strict=True)
        ]
        answer = combined_answer(send, found)
        if answer is not Answer.TAKEN:
            self._known.discard(send.to)  # the stream of a subject may have been deleted
        if answer is Answer.TAKEN and CopyOutcome.TAKEN not in found:
            self.unsubscribed.add(send.message.type)
        return answer

    async def _missing(self, requests: Iterable[NatsRequest]) -> frozenset[str]:
        """Return the subjects that no stream has. In a cluster, one without a leader does not answer either."""
        destinations = {each.destination for each in requests}
        self._known -= destinations  # the stream of delayed messages was deleted: the next send creates it again
        subjects = [*destinations - {self._names.delayed}]
        found = await asyncio.gather(*(_result(topology.has_stream(self._link, subject)) for subject in subjects))
        return frozenset(subject for subject, exists in zip(subjects, found, strict=True) if exists is False)


def _subject(to: str) -> str | None:
    found = read_destination(to)
    return found.name if isinstance(found, Subject) else None


async def _result(call: Awaitable[_Value]) -> _Value | OnceOnlyError:
    try:
        return await call
    except OnceOnlyError as error:
        return error
