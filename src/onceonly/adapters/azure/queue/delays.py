"""Delayed messages: a second queue for each endpoint, in which a message is hidden until it is due.

Receivers of the endpoint move what is visible to the queue of the endpoint, if it is due. Azure hides a message for seven days
at most. So the time when it is due is in the message, and what is visible too early is hidden again. A queue of its own keeps
what is delayed apart from what is held: Azure counts only what is hidden.

Crash while moving: 1 copy stored, 2 original not deleted, 3 moved again after `MOVE_SECONDS`, 4 one claim: handled once.
"""

import asyncio

from azure.storage.queue import QueueMessage

from onceonly.adapters.azure.queue.address import LONGEST_HIDDEN_SECONDS, MOST_RECEIVED
from onceonly.adapters.azure.queue.client import LeaseLost, MessageRefused, QueueLink, QueueNotFound
from onceonly.adapters.azure.queue.wire import read
from onceonly.ports.environment import Clock
from onceonly.queues.deliveries import raise_first

MOVE_SECONDS = 30
"""After which a message comes again that a process has begun to move."""
LOOK_SECONDS = 1.0
"""Between two looks at what is delayed, if the option `poll` is not longer."""
SLACK_SECONDS = 0.1
"""A look at the queue of the endpoint within this time before is one at what is delayed, too."""


def hidden_seconds(due: int, now: int) -> int:
    """Return for how many seconds a message is hidden that is due at this time, both in milliseconds."""
    return min(LONGEST_HIDDEN_SECONDS, max(0, -(-(due - now) // 1000)))


class AzureDelayedMessages:
    """The delayed messages of one endpoint."""

    def __init__(self, link: QueueLink, endpoint: str, clock: Clock) -> None:
        self._link = link
        self._queue = link.names.queue(endpoint)
        self._delayed = link.names.delayed(endpoint)
        self._clock = clock
        self.look_at = float("-inf")
        """When to move again, as a time of the event loop."""
        self._moving: asyncio.Task[bool] | None = None

    def begin(self) -> None:
        """Move what is due in the background, unless that was done a short time ago."""
        if self._moving is None and asyncio.get_running_loop().time() >= self.look_at - SLACK_SECONDS:
            self._moving = asyncio.create_task(self._move())
            self._moving.add_done_callback(self._ended)

    async def moved(self) -> bool:
        """Wait until nothing is being moved. Return whether something was moved. Raises CommitFailed, OutcomeUnknown."""
        return self._moving is not None and await asyncio.shield(self._moving)

    async def close(self) -> None:
        if self._moving is not None:
            await asyncio.wait([self._moving])

    def _ended(self, task: "asyncio.Task[bool]") -> None:
        self._moving = None
        if not task.cancelled():
            task.exception()  # the next look finds it again

    async def _move(self) -> bool:
        clock, count = asyncio.get_running_loop().time, MOST_RECEIVED
        is_moved = False
        try:
            while count == MOST_RECEIVED:
                messages = await self._link.receive(self._delayed, MOST_RECEIVED, MOVE_SECONDS)
                count = len(messages)
                outcomes = await asyncio.gather(*map(self._move_one, messages), return_exceptions=True)
                is_moved = is_moved or True in outcomes
                raise_first(outcomes)
        except QueueNotFound:
            pass  # it was never declared, or deleted: the next delayed message creates it
        finally:
            self.look_at = clock() + max(LOOK_SECONDS, self._link.address.poll)
            if is_moved:
                self._link.wakes.wake(self._queue)
        return is_moved

    async def _move_one(self, message: QueueMessage) -> bool:
        """Move a message that is due, and hide another one again. Return whether it was moved."""
        text, id_, receipt = str(message.content or ""), str(message.id), str(message.pop_receipt)
        hidden = hidden_seconds(read(text, id_).due, self._clock.now())
        try:
            if hidden:
                await self._link.update(self._delayed, id_, receipt, hidden=hidden)
                return False
            await self._link.put(self._queue, text)
            # Crash here: the copy is stored, and the original is not deleted; see above.
            await self._link.delete(self._delayed, id_, receipt)
        except LeaseLost:
            return not hidden  # another process has moved it, too
        except (QueueNotFound, MessageRefused):
            return False  # it waits for its queue, and is looked at again after `MOVE_SECONDS`
        return True
