"""Delayed messages: SQS delays a message by 15 minutes at most, and a FIFO queue delays none.

The time when a message is due travels with it. It is sent with the delay that is left, at most 15 minutes. Whoever receives it
before it is due sends it again with what is left then, and deletes the original. In a FIFO queue it cannot wait, so it waits in
a queue of its own, and receivers of the endpoint move it when it is due.

Crash while sending again: 1 copy stored, 2 original not deleted, 3 its lease ends, it is sent again, 4 both come, 5 one claim:
handled once.
"""

from collections.abc import Sequence

from onceonly.adapters.aws.sqs.address import LONGEST_DELAY_SECONDS, MOST_ENTRIES
from onceonly.adapters.aws.sqs.batches import SqsOutgoing, Target, on_deliveries, send_all
from onceonly.adapters.aws.sqs.client import SqsLink
from onceonly.adapters.aws.sqs.wire import SqsArrival, write
from onceonly.model.errors import OnceOnlyError
from onceonly.ports.environment import Clock
from onceonly.queues.deliveries import DueMover
from onceonly.queues.destinations import CopyOutcome

LOOK_SECONDS = 5
"""For which one request waits at the queue of delayed messages."""


class SqsDelayedMessages:
    """The delayed messages of one endpoint."""

    def __init__(self, link: SqsLink, endpoint: str, clock: Clock) -> None:
        self._link = link
        self._queue = link.names.queue(endpoint)
        self._delayed = link.names.delayed(endpoint)
        self._clock = clock
        self.mover = DueMover(self._look, lambda: self._delayed != self._queue)
        """What is delayed in a queue of its own is moved to the FIFO queue."""

    def seconds_until(self, due: int) -> int:
        """Return the delay of a message that is due at a time: whole seconds, rounded up, at most what SQS offers."""
        return min(LONGEST_DELAY_SECONDS, max(0, -(-(due - self._clock.now()) // 1000)))

    async def postpone(self, messages: Sequence[SqsArrival]) -> None:
        """Send messages of the queue for delays again, then delete them. What is not confirmed comes again after its lease."""
        url = await self._link.url(self._delayed)
        if url is not None:
            await self._pass_on(messages, Target(url), url)

    async def _look(self) -> float:
        found = await self._link.receive(self._delayed, MOST_ENTRIES, LOOK_SECONDS)
        url = await self._link.need(self._delayed)
        now = self._clock.now()
        early = [message for message in found if message.due > now]
        due = [message for message in found if message.due <= now]
        if early:
            await self._pass_on(early, Target(url), url)
        queue = await self._link.url(self._queue) if due else None
        if queue is not None:  # otherwise it was deleted: the messages come again after their lease
            await self._pass_on(due, Target(queue, fifo=True), url)
        return 0.0  # the request waits itself

    async def _pass_on(self, messages: Sequence[SqsArrival], target: Target, source: str) -> None:
        copies = [
            SqsOutgoing(
                write(each.headers, each.body, due=0 if target.fifo else each.due, formatted=each.formatted),
                delay=0 if target.fifo else self.seconds_until(each.due),
            )
            for each in messages
        ]
        results = await send_all(self._link, target, copies)
        taken = [each.handle for each, result in zip(messages, results, strict=True) if result is CopyOutcome.TAKEN]
        # Crash here: the copies are stored, and the originals are not deleted; see above.
        await delete(self._link, source, taken)


async def delete(link: SqsLink, url: str, handles: Sequence[str]) -> OnceOnlyError | None:
    """Delete deliveries from a queue. Return an error if some may be left. A handle that is not known any more is none."""

    async def request(entries: list[dict[str, str]]) -> object:
        return await link.sqs.delete_message_batch(QueueUrl=url, Entries=entries)

    _, error = await on_deliveries(handles, request, link, "acknowledge messages")
    return error
