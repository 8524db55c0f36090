"""A transport on Azure Queue Storage: two queues for each endpoint, one of them for what is not due.

A delivery is hidden from other receivers for the lease, and visible again afterwards. Azure counts how often it was delivered:
a delivery with a count above one is a suspect. A release makes the message visible and puts a mark before its text, in one
request: the mark has the count, so the next delivery is not a suspect.

Azure does not tell receivers when a message arrives. They look again after pauses that grow up to the option `poll`. What a
process sends itself wakes its own receivers.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from onceonly.adapters.azure import queue_topology as topology
from onceonly.adapters.azure.queue_client import Background, MessageRefused, QueueLink, QueueNotFound
from onceonly.adapters.azure.queue_delays import DelayedMessages, hidden_seconds
from onceonly.adapters.azure.queue_inbox import AzureQueueReceipt, QueueInbox
from onceonly.adapters.azure.queue_names import QueueNames
from onceonly.adapters.azure.queue_wire import write
from onceonly.formats.cloudevents import encode
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.systems.unsubscribed import UnsubscribedEvents

__all__ = ["AzureQueueReceipt", "AzureQueueTransport"]

SHORTEST_PAUSE_SECONDS = 0.02
"""The first pause between two looks at an empty queue. Each is twice as long as the one before, up to the option `poll`."""
UNENCRYPTED = (
    "the endpoint of Azure Queue is http://: messages are not encrypted on the way, and an emulator may lose them in a crash. "
    "Use https:// in production"
)


class _Copy(Struct, frozen=True):
    """A message for one endpoint. It is hidden for `hidden` seconds."""

    endpoint: str
    text: str
    hidden: int = 0


class AzureQueueTransport:
    """One endpoint's queue in a storage account. Any number of processes may share it.

    `unsubscribed` counts the events sent from here that no endpoint had subscribed to.
    """

    def __init__(self, link: QueueLink, endpoint: str, *, clock: Clock) -> None:
        """Use this connection; sends nothing."""
        self.traits = link.address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._clock = clock
        self._names = QueueNames(link.address.prefix)
        self._queue = self._names.queue(endpoint)
        self._inbox = QueueInbox(link, self._queue, endpoint)
        self._delays = DelayedMessages(link, self._names, endpoint, clock)
        self._background = Background()
        self._pause = SHORTEST_PAUSE_SECONDS / 2
        self._look_at = float("-inf")
        self._known = 0

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what is visible; see the port. Moves what is due.

        Pauses between two looks at an empty queue go on from call to call, unless `wait` is 0.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        while not wait or await self._is_time(end):
            self._known = self._link.wakes.count(self._queue)
            self._delays.begin()
            taken = await self._inbox.take(limit)
            if not taken and await self._delays.moved():
                taken = await self._inbox.take(limit)
            now = clock()
            self._pause = SHORTEST_PAUSE_SECONDS if taken else min(2 * self._pause, self._link.address.poll)
            self._look_at = now if taken else now + self._pause
            if taken or now >= end:
                return taken
        return ()

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Put each message into the queue of its endpoint, or of each subscriber, many side by side; see the port.

        REFUSED: a command to a queue that does not exist, a body over `max_body`, headers that do not fit. UNKNOWN:
        no answer, or the service is busy. Raises RetryableError if that is true of all of them.
        """
        if not sends:
            return ()
        now = self._clock.now()
        targets = await topology.subscribers(self._link, self._names, [each.message.type for each in sends if not each.to])
        copies = [self._copies(send, now, targets.get(send.message.type, ())) for send in sends]
        flat = [copy for each in copies if each is not None for copy in each]
        outcomes = iter(await self._background.finish_all(self._put(copy) for copy in flat))
        answers: list[Answer] = []
        errors: list[OnceOnlyError] = []
        for send, each in zip(sends, copies, strict=True):
            found = None if each is None else [next(outcomes) for _ in each]
            errors += [outcome for outcome in found or () if isinstance(outcome, OnceOnlyError)]
            answers.append(self._answer(send, found))
        if errors and Answer.TAKEN not in answers:
            raise errors[0]
        return tuple(answers)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete deliveries; those that another receiver holds are ignored. Raises CommitFailed, OutcomeUnknown."""
        await self._inbox.ack(deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Make deliveries visible; those that another receiver holds are ignored. Raises CommitFailed, OutcomeUnknown."""
        await self._inbox.release(deliveries)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Let the leases begin again; a lease that has ended is not renewed. Raises CommitFailed, OutcomeUnknown."""
        await self._inbox.extend(deliveries)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create queues and subscriptions; see the port. Raises SetupError if this identity may not, RetryableError."""
        await topology.declare(self._link, self._names, topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port. With 32 or more visible messages, those that are held count as waiting, too."""
        return await topology.depth(self._link, self._names, endpoint)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; see the protocol."""
        return await topology.subscriptions(self._link, self._names, endpoint)

    async def check(self) -> BrokerReport:
        """Check that this identity may read the queue; see the protocol. The service does not report its redundancy."""
        await self._link.exists(self._queue, starts=True)
        is_plain = self._link.address.account.endpoint.startswith("http://")
        return BrokerReport(warnings=(UNENCRYPTED,) if is_plain else ())

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues, and the subscriptions of these endpoints: for demos and tests."""
        await topology.remove(self._link, self._names, topologies)

    async def close(self) -> None:
        """Wait for requests whose callers were cancelled."""
        await self._delays.close()
        await self._background.close()
        await self._inbox.close()

    async def _is_time(self, end: float) -> bool:
        """Wait for the next look, or for a message of this process. Return false at the end."""
        clock = asyncio.get_running_loop().time
        at = min(self._look_at, self._delays.look_at)
        left = min(at, end) - clock()
        if at > clock() and await self._link.wakes.wait(self._queue, self._known, max(0.0, left)):
            self._pause = SHORTEST_PAUSE_SECONDS
            return True
        return at <= clock()

    def _copies(self, send: Send, now: int, subscribed: Sequence[str]) -> list[_Copy] | None:
        """Address a message to each of its endpoints. None if it can never be stored."""
        message = send.message
        if len(message.body) > self.traits.max_body:
            return None
        hidden = hidden_seconds(send.due, now)
        due = send.due if hidden else 0
        headers, body = encode(send)
        text = write(headers, body, due=due)
        if text is None and send.history:
            headers, body = encode(send, tracebacks=False)
            text = write(headers, body, due=due)
        if text is None:
            return None
        return [_Copy(endpoint, text, hidden) for endpoint in ((send.to,) if send.to else subscribed)]

    async def _put(self, copy: _Copy) -> Answer:
        """Store a copy. Return whether it was taken, or cannot be; raises OnceOnlyError."""
        queue = self._names.queue(copy.endpoint)
        try:
            if copy.hidden:
                await self._put_delayed(queue, copy)
            else:
                await self._link.put(queue, copy.text)
                self._link.wakes.wake(queue)
        except (QueueNotFound, MessageRefused):
            return Answer.REFUSED
        return Answer.TAKEN

    async def _put_delayed(self, queue: str, copy: _Copy) -> None:
        delayed = self._names.delayed(copy.endpoint)
        try:
            await self._link.put(delayed, copy.text, hidden=copy.hidden)
        except QueueNotFound:
            if not await self._link.exists(queue):
                raise
            await self._link.create(delayed)
            await self._link.put(delayed, copy.text, hidden=copy.hidden)

    def _answer(self, send: Send, outcomes: Sequence[Answer | BaseException] | None) -> Answer:
        """Combine the outcomes of the copies of one message; None if it can never be stored."""
        if outcomes is None:
            return Answer.REFUSED
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, OnceOnlyError):
                raise outcome
        if any(isinstance(outcome, OnceOnlyError) for outcome in outcomes):
            return Answer.UNKNOWN
        if Answer.TAKEN in outcomes:
            return Answer.TAKEN
        if send.to:
            return Answer.REFUSED
        self.unsubscribed.add(send.message.type)  # also where the queues of all subscribers were deleted
        return Answer.TAKEN
