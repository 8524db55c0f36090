"""A transport on Azure Queue Storage: two queues for each endpoint, one of them for what is not due.

A delivery is hidden from other receivers for the lease, and visible again afterwards. Azure counts how often it was delivered:
a delivery with a count above one is a suspect. A release makes the message visible and puts a mark before its text, in one
request: the mark has the count, so the next delivery is not a suspect.

Azure does not tell receivers when a message arrives. They look again after pauses that grow up to the option `poll`. What a
process sends itself wakes its own receivers.
"""

import asyncio
from collections.abc import Sequence

from onceonly.adapters.azure.queue import topology
from onceonly.adapters.azure.queue.address import LONGEST_HIDDEN_SECONDS, read_queue
from onceonly.adapters.azure.queue.client import MessageRefused, QueueLink, QueueNotFound
from onceonly.adapters.azure.queue.delays import AzureDelayedMessages, hidden_seconds
from onceonly.adapters.azure.queue.inbox import AzureQueueReceipt, QueueInbox
from onceonly.adapters.azure.queue.wire import write, write_plain
from onceonly.model.destination import Queue, is_destination, read_destination
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import BrokerReport, Depth, Topology
from onceonly.queues.deliveries import BackgroundCalls
from onceonly.queues.destinations import CopyOutcome, UnsubscribedEvents, combined_answer
from onceonly.queues.messages import write_to_fit
from onceonly.queues.polls import Polls

__all__ = ["AzureQueueReceipt", "AzureQueueTransport"]

UNENCRYPTED = (
    "the endpoint of Azure Queue is http://: messages are not encrypted on the way, and an emulator may lose them in a crash. "
    "Use https:// in production"
)


class AzureQueueTransport:
    """One endpoint's queue in a storage account. Any number of processes may share it.

    `unsubscribed` counts the events sent from here that no endpoint had subscribed to.
    """

    def __init__(self, link: QueueLink, endpoint: str, *, clock: Clock) -> None:
        self.traits = link.address.traits
        self.unsubscribed = UnsubscribedEvents(endpoint)
        self._link = link
        self._clock = clock
        self._queue = link.names.queue(endpoint)
        self._inbox = QueueInbox(link, self._queue, endpoint)
        self._delays = AzureDelayedMessages(link, endpoint, clock)
        self._background = BackgroundCalls()
        self._polls = Polls(link.wakes, self._queue, link.address.poll)

    @staticmethod
    async def connect(url: str, _random: RandomSource) -> QueueLink:
        """Make the connection that all queues of a URL share; see `QueueClass`."""
        return await QueueLink(read_queue(url)).open()

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Take what is visible; see the port. Moves what is due.

        Pauses between two looks at an empty queue go on from call to call, unless `wait` is 0.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        while not wait or await self._polls.wait(end, at_most_until=self._delays.look_at):
            self._polls.begin()
            self._delays.begin()
            taken = await self._inbox.take(limit)
            if not taken and await self._delays.moved():
                taken = await self._inbox.take(limit)
            self._polls.end(found=bool(taken))
            if taken or clock() >= end:
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
        targets = await topology.subscribers(self._link, [each.message.type for each in sends if not each.to])
        calls = (self._send(send, (send.to,) if send.to else targets[send.message.type], now) for send in sends)
        answers: list[Answer] = []
        errors: list[OnceOnlyError] = []
        for send, outcomes in zip(sends, await self._background.finish_all(calls), strict=True):
            if isinstance(outcomes, BaseException):
                raise outcomes
            errors += [each for each in outcomes if isinstance(each, OnceOnlyError)]
            answers.append(combined_answer(send, outcomes))
            if answers[-1] is Answer.TAKEN and CopyOutcome.TAKEN not in outcomes:
                self.unsubscribed.add(send.message.type)  # also where the queues of all subscribers were deleted
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
        """Renew leases; a lease that has ended is not renewed. Raises CommitFailed, OutcomeUnknown."""
        await self._inbox.extend(deliveries)

    async def declare(self, topologies: Sequence[Topology]) -> None:
        """Create queues and subscriptions; see the port. Raises SetupError if this identity may not, RetryableError."""
        await topology.declare(self._link, topologies)

    async def depth(self, endpoint: str, events: Sequence[str] = ()) -> Depth:
        """Count a queue; see the port. With 32 or more visible messages, those that are held count as waiting, too."""
        return await topology.depth(self._link, endpoint)

    async def subscriptions(self, endpoint: str) -> frozenset[str] | None:
        """Return the types that an endpoint is subscribed to; see the protocol."""
        return await topology.subscriptions(self._link, endpoint)

    async def check(self) -> BrokerReport:
        """Check that this identity may read the queue; see the protocol. The service does not report its redundancy."""
        await self._link.exists(self._queue, starts=True)
        is_plain = self._link.address.account.endpoint.startswith("http://")
        return BrokerReport(warnings=(UNENCRYPTED,) if is_plain else ())

    async def remove(self, topologies: Sequence[Topology]) -> None:
        """Delete these queues, and the subscriptions of these endpoints: for demos and tests."""
        await topology.remove(self._link, topologies)

    async def close(self) -> None:
        await self._delays.close()
        await self._background.close()
        await self._inbox.close()

    async def _send(self, send: Send, endpoints: Sequence[str], now: int) -> list[CopyOutcome | OnceOnlyError]:
        """Store a copy of a message for each of these endpoints."""
        if len(send.message.body) > self.traits.max_body:
            return [CopyOutcome.REFUSED]
        hidden = hidden_seconds(send.due, now)
        if is_destination(send.to):
            return [await self._put_to_other(send, hidden)]
        if send.formatted:  # what moves delayed messages finds when they are due in a CloudEvent
            text = None if hidden >= LONGEST_HIDDEN_SECONDS else write_to_fit(send, write_plain)
        else:
            text = write_to_fit(send, lambda headers, body: write(headers, body, due=send.due if hidden else 0))
        if text is None:
            return [CopyOutcome.REFUSED]
        return await asyncio.gather(*(self._put(endpoint, text, hidden) for endpoint in endpoints))

    async def _put_to_other(self, send: Send, hidden: int) -> CopyOutcome | OnceOnlyError:
        """Store a message in a queue of another program. Azure itself hides it until it is due."""
        found = read_destination(send.to)
        text = write_to_fit(send, write_plain if send.formatted else write)
        if not isinstance(found, Queue) or text is None:
            return CopyOutcome.REFUSED
        try:
            await self._link.put(found.name, text, hidden=hidden)
        except (QueueNotFound, MessageRefused):
            return CopyOutcome.MISSING
        except OnceOnlyError as error:
            return error
        return CopyOutcome.TAKEN

    async def _put(self, endpoint: str, text: str, hidden: int) -> CopyOutcome | OnceOnlyError:
        queue = self._link.names.queue(endpoint)
        try:
            if hidden:
                await self._put_delayed(queue, self._link.names.delayed(endpoint), text, hidden)
            else:
                await self._link.put(queue, text)
                self._link.wakes.wake(queue)
        except (QueueNotFound, MessageRefused):
            return CopyOutcome.MISSING
        except OnceOnlyError as error:
            return error
        return CopyOutcome.TAKEN

    async def _put_delayed(self, queue: str, delayed: str, text: str, hidden: int) -> None:
        try:
            await self._link.put(delayed, text, hidden=hidden)
        except QueueNotFound:
            if not await self._link.exists(queue):
                raise
            await self._link.create(delayed)
            await self._link.put(delayed, text, hidden=hidden)
