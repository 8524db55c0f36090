"""A transport on NATS JetStream: work-queue streams, pull consumers, acknowledgements of each message.

A delivery is held for the lease, the consumer's `ack_wait`. After that the server delivers it again, and counts that. A
delivery with a count above one is a suspect. So a release is a copy, sent to the own queue and confirmed, then the original is
acknowledged: a copy begins at one. Crash between the two: 1 copy stored, 2 original not acknowledged, 3 both come, the
original as a suspect, 4 one claim: handled once.

The server accepts a late acknowledgement, also while another receiver holds the message. Here none is sent after the lease. One
that is late on its way is harmless: it is sent when the message was handled and its effects are dispatched.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from onceonly.adapters.nats import topology
from onceonly.adapters.nats.delays import DelayedMessages
from onceonly.adapters.nats.inbox import Inbox, NatsReceipt, acknowledge, acknowledgements, deliveries_of
from onceonly.adapters.nats.link import REFUSED, STORED, UNROUTED, Arrival, Link, PublishOutcome, Request
from onceonly.adapters.nats.names import CONSUMER, TopologyNames
from onceonly.adapters.nats.wire import MOST_BYTES, is_unreadable, read_headers, write_headers
from onceonly.formats.cloudevents import arrival, encode
from onceonly.model.endpoint_name import is_endpoint_name
from onceonly.model.errors import CommitFailed, OutcomeUnknown, QueueMissing, RetryableError, SetupError
from onceonly.model.message import Delivery, Headers, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.systems.unsubscribed import UnsubscribedEvents

__all__ = ["NatsTransport"]

LONGEST_PAUSE_SECONDS = 1.0
"""Between two looks for messages that are due, as long as a receiver runs."""


class _Copies(Struct):
    """The messages that one send becomes. `refused` is whether it can never be stored; `owner` is in the subject of delays."""

    requests: list[Request]
    refused: bool = False
    delayed: bool = False


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
        targets = await topology.subscribers(
            self._link, self._names, [each.message.type for each in sends if not each.to], self._endpoint
        )
        copies = [await self._copies(send, now, targets.get(send.message.type, ()), connection.max_payload) for send in sends]
        outcomes = iter(await self._link.publish([request for each in copies for request in each.requests]))
        return tuple(
            [
                await self._answer(send, each, [next(outcomes) for _ in each.requests])
                for send, each in zip(sends, copies, strict=True)
            ]
        )

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

    async def _copies(self, send: Send, now: int, subscribed: Sequence[str], max_payload: int) -> _Copies:
        """Address a message to each of its queues."""
        message = send.message
        if len(message.body) > self.traits.max_body:
            return _Copies([], refused=True)
        headers, body = encode(send)
        written = write_headers(headers)
        most = min(MOST_BYTES, max_payload - len(body))
        if len(written) > most and send.history:
            headers, _ = encode(send, tracebacks=False)
            written = write_headers(headers)
        if len(written) > most:
            return _Copies([], refused=True)
        if send.to and not is_endpoint_name(send.to):
            return _Copies([], refused=True)
        endpoints = (send.to,) if send.to else subscribed
        if send.due <= now:
            return _Copies([Request(self._names.queue_subject(each), body, written) for each in endpoints])
        if send.to and not await self._is_declared(send.to):
            return _Copies([], refused=True)
        if endpoints:
            await self._declare_delayed()
        if self._endpoint in endpoints:
            self._delays.note(send.due)
        return _Copies([Request(self._names.delayed_until(each, send.due), body, written) for each in endpoints], delayed=True)

    async def _is_declared(self, endpoint: str) -> bool:
        stream = self._names.queue(endpoint)
        if stream not in self._known and await topology.exists(self._link, stream):
            self._known.add(stream)
        return stream in self._known

    async def _declare_delayed(self) -> None:
        if self._names.delayed not in self._known:
            await topology.declare_delayed(self._link, self._names)
            self._known.add(self._names.delayed)

    async def _answer(self, send: Send, copies: _Copies, outcomes: Sequence[PublishOutcome]) -> Answer:
        if copies.refused or REFUSED in outcomes:
            return Answer.REFUSED
        settled = [outcome for outcome in outcomes if outcome is STORED]
        for request, outcome in zip(copies.requests, outcomes, strict=True):
            if outcome is UNROUTED and not await self._is_missing(request.subject, delayed=copies.delayed):
                return Answer.UNKNOWN
        if any(outcome not in (STORED, UNROUTED) for outcome in outcomes):
            return Answer.UNKNOWN
        if settled:
            return Answer.TAKEN
        if send.to:
            return Answer.REFUSED
        self.unsubscribed.add(send.message.type)
        return Answer.TAKEN

    async def _is_missing(self, subject: str, *, delayed: bool) -> bool:
        """Return whether no stream has a subject. In a cluster, one without a leader does not answer either."""
        if delayed:
            self._known.discard(self._names.delayed)  # it was deleted: the next send creates it again
            return False
        with suppress(CommitFailed):
            return not await topology.has_stream(self._link, subject)
        return False
