"""What one process receives from one queue: requests for messages, and the deliveries that it holds.

A receiver first makes one request, which waits. If that brings ten messages, there may be more, and it makes the others side by
side. The next receiver makes all of them at once.

SQS hides a message when it answers, whether the answer is read or not. So a request is never cancelled. When its receiver
has left, the next one takes it over. If there is none, its messages are released as copies: a message that is received a
second time counts as a suspect.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence

from msgspec import Struct

from onceonly.adapters.aws.client import ServiceError
from onceonly.adapters.aws.sqs_address import MOST_ENTRIES
from onceonly.adapters.aws.sqs_batches import portions
from onceonly.adapters.aws.sqs_client import LONGEST_POLL_SECONDS, MISSING_QUEUE, Link, missing, reason_of
from onceonly.adapters.aws.sqs_wire import Arrival, read
from onceonly.model.errors import RetryableError, SetupError
from onceonly.ports.environment import Clock

UNCLAIMED_SECONDS = 0.1
"""For which the messages of a request without a receiver are kept, before they are released."""
CLOSE_SECONDS = 2.0
"""For which the end of requests is waited for when the queue is closed."""
MOST_HELD = 20_000
SYSTEM_ATTRIBUTES = ("ApproximateReceiveCount", "MessageDeduplicationId", "MessageGroupId")


class SqsReceipt(Struct, frozen=True, order=True):
    """The handle of one delivery. Each delivery of a message has another one."""

    handle: str


class _Poll:
    """A request under way."""

    def __init__(self, task: "asyncio.Task[list[Arrival]]", limit: int) -> None:
        self.task = task
        self.limit = limit
        self.is_claimed = True


class Inbox:
    """Deliveries of one queue, for all receivers of one process.

    `postpone` sends what is not due yet again, and deletes it. `give_back` sends copies, and deletes the originals.
    """

    def __init__(
        self,
        link: Link,
        name: str,
        clock: Clock,
        *,
        postpone: Callable[[Sequence[Arrival]], Awaitable[None]],
        give_back: Callable[[Sequence[Arrival]], Awaitable[None]],
    ) -> None:
        self._link = link
        self._name = name
        self._clock = clock
        self._postpone = postpone
        self._give_back = give_back
        self._polls: list[_Poll] = []
        self._returning: set[asyncio.Task[None]] = set()
        self._held: dict[str, int] = {}
        self._has_many = False

    async def take(self, limit: int, wait: float) -> list[Arrival]:
        """Take deliveries that wait, at most `limit`, none after `wait` seconds. Raises RetryableError, QueueMissing."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        got = await self._together(limit) if self._has_many else []
        while not got:
            left = end - clock()
            got = await self._one(min(limit, MOST_ENTRIES), max(left, 0.0))
            if len(got) == MOST_ENTRIES < limit:
                got = await self._more(got, limit - MOST_ENTRIES)
            if end <= clock():
                break
        self._has_many = len(got) >= MOST_ENTRIES
        self._hold(got)
        return got

    def holds(self, receipt: object) -> str:
        """Return the handle of a delivery; empty if its lease has ended, as far as is known here."""
        if not isinstance(receipt, SqsReceipt):
            return ""
        return receipt.handle if self._held.get(receipt.handle, 0) > self._clock.now() else ""

    def extended(self, handles: Iterable[str]) -> None:
        """Note that leases begin again."""
        self._held |= dict.fromkeys(handles, self._until())

    def settled(self, handles: Iterable[str]) -> None:
        """Forget deliveries."""
        for handle in handles:
            self._held.pop(handle, None)

    async def close(self) -> None:
        """Wait for requests that are under way, and until what they brought is released."""
        tasks = [poll.task for poll in self._polls]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_SECONDS)
        for poll in tuple(self._polls):
            self._return(poll)
        while self._returning:
            await asyncio.wait(self._returning)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Requests

    async def _one(self, limit: int, wait: float) -> list[Arrival]:
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

    async def _together(self, limit: int) -> list[Arrival]:
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

    async def _more(self, got: list[Arrival], limit: int) -> list[Arrival]:
        try:
            return got + await self._together(limit)
        except (RetryableError, SetupError):
            return got  # the next call finds out what is wrong
        except asyncio.CancelledError:
            self._run(self._given_back(got))
            raise

    def _start(self, limit: int, seconds: int) -> _Poll:
        poll = _Poll(asyncio.create_task(self._ask(limit, seconds)), limit)
        self._polls.append(poll)
        return poll

    async def _ask(self, limit: int, seconds: int) -> list[Arrival]:
        url = await self._link.need(self._name)
        with self._link.translated(f"receive from {self._name!r}"):
            try:
                answer = await self._link.polls.receive_message(
                    QueueUrl=url,
                    MaxNumberOfMessages=limit,
                    WaitTimeSeconds=seconds,
                    VisibilityTimeout=self._link.address.lease,
                    MessageAttributeNames=["All"],
                    MessageSystemAttributeNames=list(SYSTEM_ATTRIBUTES),
                )
            except ServiceError as error:
                if reason_of(error) in MISSING_QUEUE:
                    self._link.forget(url)
                    raise missing(self._name) from error
                raise
            arrived = [read(message) for message in answer.get("Messages") or ()]
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
            self._run(self._given_back(messages))

    async def _given_back(self, messages: Sequence[Arrival]) -> None:
        try:
            await self._give_back(messages)
        except (RetryableError, SetupError):
            return  # their leases end on their own

    def _run(self, call: Awaitable[None]) -> None:
        task = asyncio.ensure_future(call)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    # Leases

    def _hold(self, messages: Sequence[Arrival]) -> None:
        if len(self._held) > MOST_HELD:
            now = self._clock.now()
            self._held = {handle: ends for handle, ends in self._held.items() if ends > now}
        self._held |= dict.fromkeys([message.handle for message in messages], self._until())

    def _until(self) -> int:
        return self._clock.now() + self._link.address.lease * 1000
