"""What one process receives from one queue, and the deliveries that it holds.

Azure changes the receipt of a message with each renewal of its lease. The current one is kept here, under the receipt of the
delivery, which does not change. One request at a time works on a delivery, so none uses a receipt that another one replaces.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from azure.storage.queue import QueueMessage
from msgspec import Struct

from onceonly.adapters.azure.queue.address import MOST_RECEIVED
from onceonly.adapters.azure.queue.client import LeaseLost, MessageRefused, QueueLink, QueueNotFound
from onceonly.adapters.azure.queue.wire import marked, read, unmarked
from onceonly.formats.cloudevents import arrival
from onceonly.model.message import Delivery
from onceonly.queues.deliveries import BackgroundCalls, raise_first
from onceonly.queues.messages import queue_missing

MOST_HELD = 20_000


class AzureQueueReceipt(Struct, frozen=True):
    """A message, and the receipt with which it was delivered. No two deliveries have the same."""

    id: str
    first: str


class HeldMessage:
    """A delivery. `until` is a time of the event loop: the lease ends there at the latest."""

    def __init__(self, message: QueueMessage, text: str, until: float) -> None:
        self.id = str(message.id)
        self.receipt = str(message.pop_receipt)
        self.count = int(message.dequeue_count or 1)
        self.text = text
        self.until = until
        self.lock = asyncio.Lock()


class QueueInbox:
    """The deliveries of one queue."""

    def __init__(self, link: QueueLink, queue: str, endpoint: str) -> None:
        self._link = link
        self._queue = queue
        self._endpoint = endpoint
        self._held: dict[AzureQueueReceipt, HeldMessage] = {}
        self._background = BackgroundCalls()
        self._was_full = False

    async def take(self, limit: int) -> tuple[Delivery, ...]:
        """Take what is visible. A cancelled call gives it back. Raises RetryableError, QueueMissing."""
        return await self._background.take(self._take(limit), self._give_back)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """Delete deliveries. One that another receiver holds, or that was deleted, is ignored. Raises RetryableError."""

        async def delete(held: HeldMessage) -> None:
            await self._link.delete(self._queue, held.id, held.receipt)

        await self._each(deliveries, delete, settles=True)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Make deliveries visible, with a mark. One that another receiver holds is ignored. Raises RetryableError."""

        async def release(held: HeldMessage) -> None:
            text = marked(held.text, held.count)  # too long: it comes again as a suspect, and runs alone
            held.receipt = await self._link.update(self._queue, held.id, held.receipt, hidden=0, text=text)

        await self._each(deliveries, release, settles=True)
        self._link.wakes.wake(self._queue)

    async def extend(self, deliveries: Sequence[Delivery]) -> None:
        """Renew leases. One that has ended is not renewed. Raises RetryableError."""
        clock = asyncio.get_running_loop().time

        async def extend(held: HeldMessage) -> None:
            began = clock()
            if held.until <= began:
                return
            lease = self._link.address.lease
            held.receipt = await self._link.update(self._queue, held.id, held.receipt, hidden=lease)
            held.until = began + lease

        await self._each(deliveries, extend, settles=False)

    async def close(self) -> None:
        await self._background.close()

    async def _each(
        self, deliveries: Sequence[Delivery], action: Callable[[HeldMessage], Awaitable[None]], *, settles: bool
    ) -> None:
        """Do something to each delivery, side by side, then raise the first error."""

        async def do(receipt: AzureQueueReceipt, held: HeldMessage) -> None:
            async with held.lock:
                if receipt not in self._held:
                    return
                try:
                    await action(held)
                except (LeaseLost, QueueNotFound):
                    self._held.pop(receipt, None)
                    return
                if settles:
                    self._held.pop(receipt, None)

        receipts = [each.receipt for each in deliveries if isinstance(each.receipt, AzureQueueReceipt)]
        known = [(each, self._held[each]) for each in dict.fromkeys(receipts) if each in self._held]
        raise_first(await self._background.finish_all(do(*each) for each in known))

    async def _take(self, limit: int) -> tuple[Delivery, ...]:
        """Receive with one request, and with several side by side where that is worth it."""
        sizes = [min(MOST_RECEIVED, limit - start) for start in range(0, limit, MOST_RECEIVED)]
        try:
            if self._was_full:
                found = await self._receive(sizes)
            else:
                found = await self._receive(sizes[:1])
                if len(found) == MOST_RECEIVED and sizes[1:]:
                    found += await self._receive(sizes[1:], required=False)
        except QueueNotFound as error:
            raise queue_missing(f"queue {self._queue} of endpoint {self._endpoint!r}", self._link.address.place) from error
        self._was_full = len(found) >= MOST_RECEIVED
        return tuple(found)

    async def _receive(self, sizes: Iterable[int], *, required: bool = True) -> list[Delivery]:
        """Make requests. What has come is returned: an error is raised if nothing came, and if something is required."""
        outcomes = await asyncio.gather(*map(self._receive_some, sizes), return_exceptions=True)
        found = [delivery for each in outcomes if not isinstance(each, BaseException) for delivery in each]
        if not found and required:
            raise_first(outcomes)
        return found

    async def _receive_some(self, size: int) -> list[Delivery]:
        clock, lease = asyncio.get_running_loop().time, self._link.address.lease
        until = clock() + lease  # before the request, so it ends here before it ends there
        messages = await self._link.receive(self._queue, size, lease)
        if len(self._held) > MOST_HELD:
            now = clock()
            self._held = {receipt: held for receipt, held in self._held.items() if held.until > now}
        return [self._delivery(message, until) for message in messages]

    def _delivery(self, message: QueueMessage, until: float) -> Delivery:
        whole = str(message.content or "")
        text, released = unmarked(whole)
        held = HeldMessage(message, text, until)
        receipt = AzureQueueReceipt(held.id, held.receipt)
        self._held[receipt] = held
        content = read(text, held.id)
        return arrival(receipt, self._endpoint, content.headers, content.body, suspect=held.count - released > 1)

    async def _give_back(self, deliveries: Sequence[Delivery]) -> None:
        with suppress(MessageRefused):
            await self.release(deliveries)
