"""Transports around a transport: one releases what an outage left held, one refuses a broker whose settings are unsafe."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager

from onceonly.model.errors import QueueMissing, RetryableError, SetupError, UnsafeSettings
from onceonly.model.message import Delivery, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import Timer

UNSAFE_SECONDS = 1.0
"""Seconds between two checks while a setting is wrong."""


class PatientTransport:
    """A transport that remembers what could not be settled, so that an outage of the broker suspects no message.

    A delivery whose ack or release failed would come again as a suspect when its lease ends. Here it is kept, and
    released as soon as the broker answers. Releasing an acknowledged delivery does nothing. All other methods are the
    transport's own.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._left: dict[Hashable, Delivery] = {}
        self._returning: set[Hashable] = set()
        self.traits = transport.traits
        self.receive = transport.receive
        self.send = transport.send
        self.extend = transport.extend
        self.declare = transport.declare
        self.depth = transport.depth

    @property
    def left(self) -> tuple[Delivery, ...]:
        return tuple(self._left.values())

    async def give_back(self) -> None:
        """Try again to release what is left. Raises what `release` raises."""
        if self._left:
            await self.release(self.left)

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        try:
            await self._transport.ack(deliveries)
        except RetryableError:
            self._keep(deliveries)
            raise

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        mine = {each.receipt: each for each in deliveries if each.receipt not in self._returning}
        if not mine:
            return
        self._returning |= mine.keys()  # another task may find them among what is left meanwhile
        try:
            await self._transport.release(tuple(mine.values()))
        except RetryableError:
            self._keep(tuple(mine.values()))
            raise
        finally:
            self._returning -= mine.keys()
        for receipt in mine:
            self._left.pop(receipt, None)

    def _keep(self, deliveries: Sequence[Delivery]) -> None:
        self._left |= {delivery.receipt: delivery for delivery in deliveries}


class CheckedTransport:
    """A transport that receives, sends and releases nothing while a setting of its broker breaks a promise.

    An operator can change a queue while it is in use: a limit that drops messages, a count after which they are given up. The
    start refuses such a setting; a worker that found it later would lose messages without a word.

    `check` returns after how many seconds it is due again, None for never. After an outage it is due at once: the broker may
    have restarted with other settings. A release may be a copy, which such a broker could drop. Acks and renewed leases go
    through: they store no message.
    """

    def __init__(self, transport: Transport, check: Callable[[], Awaitable[float | None]], timer: Timer) -> None:
        """Use this transport. Nothing is checked before `start`."""
        self._transport = transport
        self._check = check
        self._timer = timer
        self._due: float | None = None
        self._checked_at = 0.0
        self._problem = ""
        self._checking = asyncio.Lock()
        self.traits = transport.traits
        self.ack = transport.ack
        self.extend = transport.extend
        self.declare = transport.declare
        self.depth = transport.depth

    async def start(self) -> None:
        """Check for the first time. Raises SetupError, RetryableError."""
        self._again_after(await self._check())

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Check if it is time, then receive. Raises UnsafeSettings while a setting is wrong, and what `receive` raises."""
        await self._require_safe()
        with self._noticing_outages():
            return await self._transport.receive(limit, wait)

    async def send(self, sends: Sequence[Send]) -> tuple[Answer, ...]:
        """Check if it is time, then send. Raises UnsafeSettings while a setting is wrong: what is confirmed could be lost."""
        await self._require_safe()
        with self._noticing_outages():
            answers = await self._transport.send(sends)
        if Answer.UNKNOWN in answers:
            self._check_soon()
        return answers

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Check if it is time, then release. Raises UnsafeSettings while a setting is wrong: the deliveries stay held."""
        await self._require_safe()
        with self._noticing_outages():
            await self._transport.release(deliveries)

    async def _require_safe(self) -> None:
        if self._due is not None and self._timer.seconds() >= self._due:
            await self._check_again()
        if self._problem:
            raise UnsafeSettings(self._problem)

    @contextmanager
    def _noticing_outages(self) -> Iterator[None]:
        try:
            yield
        except RetryableError:
            self._check_soon()
            raise

    def _check_soon(self) -> None:
        """Make the next call check, where anything is checked; not more than once in `UNSAFE_SECONDS`."""
        if self._due is not None:
            self._due = min(self._due, self._checked_at + UNSAFE_SECONDS)

    async def _check_again(self) -> None:
        async with self._checking:
            if self._due is None or self._timer.seconds() < self._due:
                return  # another loop has checked meanwhile
            try:
                again = await self._check()
            except QueueMissing:
                self._problem = ""  # receiving reports it, and the worker declares the queue
                self._again_after(UNSAFE_SECONDS)
            except SetupError as error:
                self._problem = str(error)
                self._again_after(UNSAFE_SECONDS)
            except RetryableError:
                self._again_after(UNSAFE_SECONDS)  # an outage changes no setting, and the call reports it
            else:
                self._problem = ""
                self._again_after(again)

    def _again_after(self, seconds: float | None) -> None:
        self._checked_at = self._timer.seconds()
        self._due = None if seconds is None else self._checked_at + seconds
