"""Delayed messages: SQS delays a message by 15 minutes at most, and a FIFO queue delays none.

The time when a message is due travels with it. It is sent with the delay that is left, at most 15 minutes. Whoever receives it
before it is due sends it again with what is left then, and deletes the original. In a FIFO queue it cannot wait, so it waits in
a queue of its own, and receivers of the endpoint move it when it is due.

Crash while sending again: 1 copy stored, 2 original not deleted, 3 its lease ends, it is sent again, 4 both come, 5 one claim:
handled once.
"""

import asyncio
from collections.abc import Sequence

from onceonly.adapters.aws.client import ServiceError
from onceonly.adapters.aws.sqs_address import LONGEST_DELAY_SECONDS, MOST_ENTRIES
from onceonly.adapters.aws.sqs_batches import Outcome, Outgoing, Target, on_deliveries, send_all
from onceonly.adapters.aws.sqs_client import MISSING_QUEUE, Link, missing, reason_of
from onceonly.adapters.aws.sqs_inbox import SYSTEM_ATTRIBUTES
from onceonly.adapters.aws.sqs_wire import Arrival, read, write
from onceonly.model.errors import OnceOnlyError, RetryableError, SetupError
from onceonly.ports.environment import Clock

LOOK_SECONDS = 5
"""For which one request waits at the queue of delayed messages."""
PAUSE_SECONDS = 1.0
"""Between two requests, after an error."""


class DelayedMessages:
    """The delayed messages of one endpoint."""

    def __init__(self, link: Link, endpoint: str, clock: Clock) -> None:
        self._link = link
        self._queue = link.names.queue(endpoint)
        self._delayed = link.names.delayed(endpoint)
        self._clock = clock
        self._receivers = 0
        self._moving: asyncio.Task[None] | None = None

    def seconds_until(self, due: int) -> int:
        """Return the delay of a message that is due at a time: whole seconds, rounded up, at most what SQS offers."""
        return min(LONGEST_DELAY_SECONDS, max(0, -(-(due - self._clock.now()) // 1000)))

    async def postpone(self, messages: Sequence[Arrival]) -> None:
        """Send messages of the queue for delays again, then delete them. What is not confirmed comes again after its lease."""
        url = await self._link.url(self._delayed)
        if url is not None:
            await self._pass_on(messages, Target(url), url)

    def begin(self) -> None:
        """Note a receiver. As long as there is one, what is due is moved to the FIFO queue."""
        self._receivers += 1
        if self._delayed != self._queue and self._moving is None:
            self._moving = asyncio.create_task(self._move())

    def end(self) -> None:
        """Note that a receiver has left."""
        self._receivers -= 1

    async def close(self) -> None:
        """Stop moving. What is being moved may be late by a lease."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])

    async def _move(self) -> None:
        try:
            while self._receivers:
                try:
                    await self._look()
                except (RetryableError, SetupError):
                    await asyncio.sleep(PAUSE_SECONDS)  # receiving fails as well, and reports it
        finally:
            self._moving = None

    async def _look(self) -> None:
        url = await self._link.need(self._delayed)
        with self._link.translated(f"receive from {self._delayed!r}"):
            try:
                answer = await self._link.polls.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=MOST_ENTRIES,
                    WaitTimeSeconds=LOOK_SECONDS,
                    VisibilityTimeout=self._link.address.lease,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=list(SYSTEM_ATTRIBUTES),
                )
            except ServiceError as error:
                if reason_of(error) in MISSING_QUEUE:
                    self._link.forget(url)
                    raise missing(self._delayed) from error
                raise
            found = [read(message) for message in answer.get("Messages") or ()]
        now = self._clock.now()
        early = [message for message in found if message.due > now]
        due = [message for message in found if message.due <= now]
        if early:
            await self._pass_on(early, Target(url), url)
        queue = await self._link.url(self._queue) if due else None
        if queue is not None:  # otherwise it was deleted: the messages come again after their lease
            await self._pass_on(due, Target(queue, fifo=True), url)

    async def _pass_on(self, messages: Sequence[Arrival], target: Target, source: str) -> None:
        copies = [
            Outgoing(
                write(each.headers, each.body, due=0 if target.fifo else each.due),
                delay=0 if target.fifo else self.seconds_until(each.due),
            )
            for each in messages
        ]
        results = await send_all(self._link, target, copies)
        taken = [each.handle for each, result in zip(messages, results, strict=True) if result is Outcome.TAKEN]
        # Crash here: the copies are stored, and the originals are not deleted; see above.
        await delete(self._link, source, taken)


async def delete(link: Link, url: str, handles: Sequence[str]) -> OnceOnlyError | None:
    """Delete deliveries from a queue. Return an error if some may be left. A handle that is not known any more is none."""

    async def request(entries: list[dict[str, str]]) -> object:
        return await link.sqs.delete_message_batch(QueueUrl=url, Entries=entries)

    _, error = await on_deliveries(handles, request, link, "acknowledge messages")
    return error
