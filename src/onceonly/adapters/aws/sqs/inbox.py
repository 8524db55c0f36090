"""What one process receives from one queue: requests for messages, and the deliveries that it holds.

A receiver first makes one request, which waits. If that brings ten messages, there may be more, and it makes the others side by
side. The next receiver makes all of them at once.

SQS hides a message when it answers, whether the answer is read or not. So a request is never cancelled. When its receiver
has left, the next one takes it over. If there is none, its messages are released as copies: a message that is received a
second time counts as a suspect.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from onceonly.adapters.aws.sqs.address import MOST_ENTRIES
from onceonly.adapters.aws.sqs.batches import portions
from onceonly.adapters.aws.sqs.client import LONGEST_POLL_SECONDS, SqsLink
from onceonly.adapters.aws.sqs.wire import SqsArrival
from onceonly.model.errors import RetryableError, SetupError
from onceonly.ports.environment import Clock
from onceonly.queues.deliveries import BackgroundCalls, HeldLeases

UNCLAIMED_SECONDS = 0.1
"""For which the messages of a request without a receiver are kept, before they are released."""
CLOSE_SECONDS = 2.0
"""For which the end of requests is waited for when the queue is closed."""


class SqsReceipt(Struct, frozen=True, order=True):
    """The handle of one delivery. Each delivery of a message has another one."""

    handle: str


class _Poll:
    """A request under way."""

    def __init__(self, task: "asyncio.Task[list[SqsArrival]]", limit: int) -> None:
        self.task = task
        self.limit = limit
        self.is_claimed = True


class SqsInbox:
    """Deliveries of one queue, for all receivers of one process.

    `postpone` sends what is not due yet again, and deletes it. `give_back` sends copies, and deletes the originals.
    """

    def __init__(
        self,
        link: SqsLink,
        name: str,
        clock: Clock,
        *,
        postpone: Callable[[Sequence[SqsArrival]], Awaitable[None]],
        give_back: Callable[[Sequence[SqsArrival]], Awaitable[None]],
    ) -> None:
        self._link = link
        self._name = name
        self._clock = clock
        self._postpone = postpone
        self._give_back = give_back
        self._polls: list[_Poll] = []
        self._background = BackgroundCalls()
        self.leases = HeldLeases(clock, link.address.lease)
        self._has_many = False

    async def take(self, limit: int, wait: float) -> list[SqsArrival]:
        """Take deliveries that wait, at most `limit`, none after `wait` seconds. Raises RetryableError, QueueMissing."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        got = await self._poll_together(limit) if self._has_many else []
        while not got:
            left = end - clock()
            got = await self._poll_once(min(limit, MOST_ENTRIES), max(left, 0.0))
            if len(got) == MOST_ENTRIES < limit:
                got = await self._poll_more(got, limit - MOST_ENTRIES)
            if end <= clock():
                break
        self._has_many = len(got) >= MOST_ENTRIES
        self.leases.hold([message.handle for message in got])
        return got

    def holds(self, receipt: object) -> str:
        """Return the handle of a delivery; empty if its lease has ended, as far as is known here."""
        return receipt.handle if isinstance(receipt, SqsReceipt) and self.leases.holds(receipt.handle) else ""

    async def close(self) -> None:
        """Wait for requests that are under way, and until what they brought is released."""
        tasks = [poll.task for poll in self._polls]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for poll in tuple(self._polls):
            self._return(poll)
        await self._background.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests

    async def _poll_once(self, limit: int, wait: float) -> list[SqsArrival]:
        """Make one request, or take one over, and wait for it at most so long."""
        poll = next((each for each in self._polls if not each.is_claimed and each.limit <= limit), None)
        if poll is None or (not wait and not poll.task.done()):
            poll = self._start(limit, min(math.ceil(wait), LONGEST_POLL_SECONDS))
        poll.is_claimed = True
        try:
            await asyncio.wait([poll.task], timeout=wait or None)
        except asyncio.CancelledError:
            self._leave(poll)
            raise
        if not poll.task.done():
            self._leave(poll)
            return []
        self._polls.remove(poll)
        return poll.task.result()

    async def _poll_together(self, limit: int) -> list[SqsArrival]:
        """Ask for what waits, by as many requests as it takes."""
        polls = [self._start(len(each), 0) for each in portions(range(limit))]
        try:
            await asyncio.wait([poll.task for poll in polls])
        except asyncio.CancelledError:
            for poll in polls:
                self._leave(poll)
            raise
        for poll in polls:
            self._polls.remove(poll)
        errors = [error for poll in polls if (error := poll.task.exception()) is not None]
        got = [message for poll in polls if poll.task.exception() is None for message in poll.task.result()]
        if errors and not got:
            raise errors[0]
        return got

    async def _poll_more(self, got: list[SqsArrival], limit: int) -> list[SqsArrival]:
        try:
            return got + await self._poll_together(limit)
        except (RetryableError, SetupError):
            return got  # the next call finds out what is wrong
        except asyncio.CancelledError:
            self._background.start(self._give_back(got))
            raise

    def _start(self, limit: int, seconds: int) -> _Poll:
        poll = _Poll(asyncio.create_task(self._receive_due(limit, seconds)), limit)
        self._polls.append(poll)
        return poll

    async def _receive_due(self, limit: int, seconds: int) -> list[SqsArrival]:
        arrived = await self._link.receive(self._name, limit, seconds)
        now = self._clock.now()
        early = [message for message in arrived if message.due > now]
        if early:
            await self._postpone(early)
        return [message for message in arrived if message.due <= now]

    # Requests without a receiver

    def _leave(self, poll: _Poll) -> None:
        """Leave a request to the next receiver. If none comes in time, what it brings is released."""
        poll.is_claimed = False
        loop = asyncio.get_running_loop()
        poll.task.add_done_callback(lambda _: loop.call_later(UNCLAIMED_SECONDS, self._return, poll))

    def _return(self, poll: _Poll) -> None:
        if poll.is_claimed or poll not in self._polls or not poll.task.done():
            return
        self._polls.remove(poll)
        if not poll.task.cancelled() and poll.task.exception() is None and (messages := poll.task.result()):
            self._background.start(self._give_back(messages))
