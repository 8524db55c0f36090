"""What one process has of one queue in RabbitMQ: a consumer, what it brought, and what is in work.

A consumer may bring what the receivers ask for and no more: what it brings beyond waits here while others are idle, and comes
again as a suspect when this process dies. Reading ahead was measured to gain nothing (decision 0007).

A consumer exists while there are receivers. Soon after the last one has gone it is cancelled, and what it brought is
released as copies: a delivery put back by the broker would come again marked, as if its process had died.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from itertools import count
from typing import Any

from msgspec import Struct

from onceonly.adapters.rabbitmq.frames import ConsumedMessage
from onceonly.adapters.rabbitmq.link import Channel, RabbitMQLink, consume, is_blocked, is_open, shielded, translated, watch
from onceonly.adapters.rabbitmq.publisher import PUBLISH
from onceonly.model.errors import OutcomeUnknown, RetryableError, SetupError

LINGER_SECONDS = 0.1  # that a consumer outlives its last receiver
LINGER_AT_WORK_SECONDS = 1.5
"""The same while what it brought is in work: longer than the handlers of a unit usually take."""
FEW_ACKS = 8
"""Acknowledgements at most that are written one by one at once: for each of them a quorum queue writes to its log."""
ACK_SECONDS = 0.05  # that others wait at most for a delivery below them, with which one acknowledgement covers all
CLOSE_SECONDS = 2.0  # to release what waits here; then the end of the connection does it
MOST_AHEAD = 5_000  # deliveries a consumer may bring before any is settled
TURNS = 1  # of the loop without a new delivery: what the server has sent is handed over in the turn that reads it
AHEAD = 4  # times what is asked for that a consumer may bring: a worker dispatches some batches while it handles another
GROWS_BY = 16
"""A replaced consumer may bring this many more than needed, but no more than are in work. Replacing stops all receivers."""
SHRINK = 16 * AHEAD  # one that may bring this many times what is asked for is replaced
REMEMBERED = 10_000
_SERIAL = count(1)


class RabbitMQReceipt(Struct, frozen=True):
    """Which opening of a channel brought it, and its delivery tag there."""

    channel: int
    tag: int


class RabbitMQInbox:
    """Deliveries of one queue, for all receivers of one process. `give_back` copies deliveries to the queue and acks them."""

    def __init__(
        self,
        link: RabbitMQLink,
        queue: str,
        give_back: Callable[[list[ConsumedMessage]], Awaitable[None]],
        *,
        linger: float = LINGER_AT_WORK_SECONDS,
    ) -> None:
        self._link = link
        self._queue = queue
        self._give_back = give_back
        self._linger = linger
        self._channel: Channel | None = None
        self._serial = 0
        self._consumer = ""
        self._prefetch = 0
        self._wanted = 0  # what the present receivers ask for, together
        self._waiting: deque[ConsumedMessage] = deque()
        self._held: dict[int, ConsumedMessage] = {}
        self._unacknowledged: dict[int, str] = {}
        """Settled here, and not acknowledged yet: a delivery below these is still in work. Consumers by delivery tags."""
        self._lost: dict[str, None] = {}
        self._settled: deque[str] = deque(maxlen=REMEMBERED)  # on this channel: nobody tells which of these the server knows
        self._changing = asyncio.Lock()
        self._settling = asyncio.Lock()
        self._rung = asyncio.Event()
        self._resting: asyncio.Task[None] | None = None
        self._acknowledging: asyncio.Task[None] | None = None
        self._watching: set[asyncio.Task[None]] = set()
        self._idle_since = 0.0
        self.brought = 0

    async def take(
        self, limit: int, wait: float, is_early: Callable[[ConsumedMessage], bool]
    ) -> tuple[list[ConsumedMessage], bool]:
        """Take deliveries that wait, at most `limit`, none after `wait` seconds; when some are early, those alone, and True."""
        clock = asyncio.get_running_loop().time
        end = clock() + wait
        self._wanted += limit
        rung = False
        try:
            while True:
                if not await self._link.ready(max(0.0, end - clock())):
                    return [], False
                self._rung.clear()
                if not self._suffices() and not (len(self._waiting) >= limit and is_open(self._channel)):
                    await shielded(self._consume())
                if self._waiting:
                    if not rung:  # what has just come has come together, and is handed out at once
                        await self._let_come(limit)
                    return self._hand_out(limit, is_early)
                left = end - clock()
                if left <= 0:
                    await self._let_come(limit)
                    return self._hand_out(limit, is_early)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        rung = await self._rung.wait()
        finally:
            self._wanted -= limit
            self._idle_since = clock()
            if not self._wanted and self._resting is None:
                self._resting = asyncio.create_task(self._rest())

    def put_back(self, messages: Iterable[ConsumedMessage]) -> None:
        """Put deliveries that were taken back among those that wait here."""
        for message in messages:
            if self._held.get(message.delivery_tag) is message:
                del self._held[message.delivery_tag]
                self._waiting.appendleft(message)

    def current(self, receipts: Iterable[object]) -> list[RabbitMQReceipt]:
        """Return those of deliveries that are still held: those of an earlier channel come again on their own."""
        if not is_open(self._channel):
            return []
        known = [each for each in receipts if isinstance(each, RabbitMQReceipt) and each.channel == self._serial]
        return [each for each in known if each.tag in self._held]

    def receipt(self, message: ConsumedMessage) -> RabbitMQReceipt:
        """Return the receipt of a delivery that was just taken."""
        return RabbitMQReceipt(self._serial, message.delivery_tag)

    def held(self, receipt: object) -> ConsumedMessage | None:
        """Return a delivery that is still held; None for one of an earlier channel, which RabbitMQ redelivers."""
        if not isinstance(receipt, RabbitMQReceipt) or receipt.channel != self._serial or not is_open(self._channel):
            return None
        return self._held.get(receipt.tag)

    def is_suspect(self, message: ConsumedMessage) -> bool:
        """Return whether whoever held it may have died of it; not when it was this process, which lost its connection."""
        if not message.redelivered:
            return False
        copy, known = _copy_of(message), len(self._lost)
        self._lost.pop(copy, None)
        return len(self._lost) == known

    async def settle(self, receipts: Iterable[RabbitMQReceipt]) -> None:
        """Acknowledge what is held: all up to a tag below which all is settled at once, and a few others one by one.

        More than a few wait for the deliveries below them, but not for long. Receipts of an earlier channel are ignored: there
        the same tags were other deliveries. One call at a time: an acknowledgement of many that overtook an earlier one would
        settle its tags, and then the server ends the channel.
        """
        async with self._settling:
            found = [held for each in self.current(receipts) if (held := self._held.pop(each.tag, None)) is not None]
            if found:
                self._settled.extend(map(_copy_of, found))
                self._unacknowledged |= {message.delivery_tag: message.consumer_tag for message in found}
                await self._acknowledge(FEW_ACKS)

    async def _acknowledge(self, most: int) -> None:
        """Acknowledge what is settled, but at most this number one by one: if there are more, these wait."""
        # An ack with `multiple` covers all lower tags, so it stops below the lowest delivery that is held or waits here. Only
        # the last ack waits until it is written: the channel keeps their order.
        # Crash here: 1 effects sent, 2 some acks not received, 3 those come again as suspects, 4 their claims know them.
        # If only the connection ends, they come again too, and `is_suspect` knows that this process has not died.
        channel = self._channel
        if channel is None or not self._unacknowledged:
            return
        lowest = min([*self._held, *(message.delivery_tag for message in self._waiting), max(self._unacknowledged) + 1])
        below = [tag for tag in self._unacknowledged if tag < lowest]
        above = sorted(self._unacknowledged.keys() - below)
        if len(above) > most:
            above = []
            self._acknowledging = self._acknowledging or asyncio.create_task(self._acknowledge_later())
        for tag in (*below, *above):
            del self._unacknowledged[tag]
        try:
            async with translated("acknowledge messages"):
                if below:
                    await channel.basic_ack(max(below), multiple=True, wait=not above)
                for tag in above:
                    await channel.basic_ack(tag, wait=tag == above[-1])
        except OutcomeUnknown:
            await self._link.abandon(channel)  # what is held there and not acknowledged would not be delivered
            raise

    async def _acknowledge_later(self) -> None:
        await asyncio.sleep(ACK_SECONDS)
        self._acknowledging = None
        with suppress(RetryableError):  # they come again, and are known
            await self._acknowledge_rest()

    async def _acknowledge_rest(self) -> None:
        async with self._settling:
            await self._acknowledge(MOST_AHEAD)

    async def reject(self, receipts: Iterable[RabbitMQReceipt]) -> None:
        """Requeue deliveries at the broker. They come again marked; this process ignores the mark."""
        async with self._settling:
            channel, mine = self._channel, self.current(receipts)
            for each in mine:
                self._remember(_copy_of(self._held.pop(each.tag)))
                if channel is not None:
                    await self._reject(channel, each.tag)

    async def _reject(self, channel: Channel, tag: int) -> None:
        try:
            async with translated("requeue a message"):
                await channel.basic_reject(tag, requeue=True)
        except OutcomeUnknown:
            await self._link.abandon(channel)  # as in `_settle`
            raise

    def counts(self) -> tuple[int, int, int]:
        """Return how many deliveries are in work, how many wait here, and how many consumers of the queue these are."""
        if not is_open(self._channel):
            return 0, 0, 0
        consumers = {message.consumer_tag for message in (*self._held.values(), *self._waiting)}
        consumers.update(self._unacknowledged.values())
        return len(self._held), len(self._waiting), len(consumers | ({self._consumer} if self._consumer else set()))

    async def close(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            await asyncio.wait([self._resting])
        for watching in self._watching:
            watching.cancel()
        if is_open(self._channel):
            with suppress(RetryableError, SetupError, TimeoutError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._acknowledge_rest()
                    await shielded(self._stop_consuming())
        if self._acknowledging is not None:
            self._acknowledging.cancel()

    def _hand_out(self, limit: int, is_early: Callable[[ConsumedMessage], bool]) -> tuple[list[ConsumedMessage], bool]:
        first = [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]
        early = [message for message in first if is_early(message)]
        if early:
            self._waiting.extendleft([message for message in reversed(first) if message not in early])
        taken = early or first
        self._held |= {message.delivery_tag: message for message in taken}
        return taken, bool(early)

    async def _let_come(self, limit: int) -> None:
        """Yield until the loop has read what the server has already sent."""
        quiet, seen = 0, len(self._waiting)
        while quiet < TURNS and seen < limit:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._waiting) == seen else 0
            seen = len(self._waiting)

    def _needed(self) -> int:
        return min(MOST_AHEAD, len(self._held) + len(self._unacknowledged) + self._wanted)

    def _suffices(self) -> bool:
        """Return whether a consumer is there that may bring what the receivers ask for, and not much more."""
        needed = self._needed()
        return bool(self._consumer) and is_open(self._channel) and needed <= self._prefetch < SHRINK * needed

    async def _consume(self) -> None:
        """Make sure that a consumer is there which may bring what the receivers ask for, and not much more."""
        async with self._changing:
            if not is_open(self._channel):
                await self._open()
            if not self._wanted:  # the receivers were cancelled, so nothing would take what comes
                return
            if self._suffices():
                return
            needed = self._needed()
            ahead = min(MOST_AHEAD, needed + max((AHEAD - 1) * self._wanted, min(len(self._held), GROWS_BY)))
            channel = self._channel
            assert channel is not None  # noqa: S101 - opened above
            patience = self._link.address.timeout  # a queue without a leader never answers
            async with translated(f"receive from queue {self._queue!r}", definite=True, within=patience):
                await self._cancel(channel)
                self._prefetch = ahead
                await channel.basic_qos(prefetch_count=self._prefetch)
                self._consumer = await consume(channel, self._queue, self._bringer(self._serial))
                # What waits in the queue is here after two more answers: the first is given by the queue behind its
                # deliveries, the second by the channel behind those. So a receive that does not wait takes them as well.
                await channel.queue_declare(self._queue, passive=True)
                await channel.basic_qos(prefetch_count=self._prefetch)
            await self._return([self._waiting.pop() for _ in range(len(self._waiting) - 2 * ahead)])

    async def _open(self) -> None:
        # All of this before anything is awaited: from here on nothing of the old channel is brought, handed out or settled.
        self._serial = next(_SERIAL)
        failed, self._channel, self._consumer = self._channel, None, ""
        self._remember(*self._settled, *map(_copy_of, self._held.values()), *map(_copy_of, self._waiting))
        self._settled.clear()
        self._held.clear()
        self._unacknowledged.clear()
        self._waiting.clear()
        if failed is not None:
            await self._link.abandon(failed)
        self._channel = await self._link.channel(confirms=False)
        self._channel.on_consumer_cancel_callbacks.add(self._cancelled)
        self._channel.closing.add_done_callback(lambda _: self._rung.set())
        watching = asyncio.create_task(watch(self._link, self._channel, self._ask))
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def _ask(self, channel: Channel) -> None:
        """Make a call that changes nothing: it concerns later consumers, and each sets it anew. No queue is involved."""
        await channel.basic_qos(prefetch_count=self._prefetch)

    def _bringer(self, serial: int) -> Callable[[ConsumedMessage], None]:
        def bring(message: ConsumedMessage) -> None:
            if serial == self._serial:
                self._waiting.append(message)
                self.brought += 1
                self._rung.set()

        return bring

    def _cancelled(self, frame: Any) -> None:
        """Note that the server ended the consumer: its queue was deleted, or moved."""
        if frame.consumer_tag == self._consumer:
            self._consumer = ""
            self._rung.set()

    def _remember(self, *copies: str) -> None:
        """Remember what was lost with its channel while this process lived on, or may have been."""
        self._lost |= dict.fromkeys(filter(None, copies))
        for forgotten in list(self._lost)[:-REMEMBERED]:
            del self._lost[forgotten]

    async def _rest(self) -> None:
        clock = asyncio.get_running_loop().time
        try:
            while clock() < self._idle_since + (self._linger if self._held else LINGER_SECONDS) or self._is_blocked():  # noqa: ASYNC110 - waits for time, not for an event
                await asyncio.sleep(LINGER_SECONDS / 2)
            if not self._wanted:
                with suppress(RetryableError, SetupError):  # a broken channel gives all back on its own
                    await shielded(self._stop_consuming())
        finally:
            self._resting = None

    def _is_blocked(self) -> bool:
        """Return whether the server blocks the connection. It answers no call then; one that times out closes its channel."""
        channel = self._channel
        return channel is not None and is_open(channel) and is_blocked(channel)

    async def _stop_consuming(self) -> None:
        async with self._changing:
            channel = self._channel
            if channel is None or not is_open(channel):
                return
            async with translated("cancel a consumer", within=self._link.address.timeout):
                await self._cancel(channel)
            if not self._wanted:  # else it belongs to a receiver that came meanwhile
                back = list(self._waiting)
                self._waiting.clear()
                await self._return(back)

    async def _cancel(self, channel: Channel) -> None:
        """End the consumer when nothing is on its way to it: the server would put that back, and mark it.

        What was brought is here after two answers; see `_consume`. A message that comes between them and the cancellation, to a
        consumer that may still bring one, is put back and marked. It is a suspect then, so it runs alone.
        """
        if not self._consumer:
            return
        async with self._settling:
            await channel.queue_declare(self._queue, passive=True)
            await channel.basic_qos(prefetch_count=self._prefetch)
            consumer, self._consumer = self._consumer, ""
            self._rung.set()  # whoever waits for what it would bring needs another
            if consumer:
                await channel.basic_cancel(consumer)

    async def _return(self, messages: list[ConsumedMessage]) -> None:
        """Release to the queue what would wait here while others are idle."""
        self._held |= {message.delivery_tag: message for message in messages}
        if messages:
            try:
                await self._give_back(messages)
            except (RetryableError, SetupError):
                self.put_back(messages)
                raise


def _copy_of(message: ConsumedMessage) -> str:
    """Name this very copy: by its publish, else by its message id."""
    properties = message.properties
    name = (properties.headers or {}).get(PUBLISH)
    return name if isinstance(name, str) else properties.message_id or ""
