"""Checking again and again that a broker still stores messages as it did at the start of the endpoint.

An operator can change a queue while it is in use: a limit that drops messages, a count after which they are given up. The start
refuses such a setting; a worker that found it later would lose messages without a word.
"""

import asyncio
from collections.abc import Awaitable, Callable

from onceonly.model.errors import QueueMissing, RetryableError, SetupError, Unsafe
from onceonly.model.message import Delivery
from onceonly.ports.transport import Transport
from onceonly.runtime.environment import Timer

UNSAFE_SECONDS = 1.0
"""Seconds between two checks while a setting is wrong."""


class CheckedTransport:
    """A transport that receives nothing while a setting of its broker breaks a promise.

    `check` returns after how many seconds it is due again, None for never. All other methods are the transport's own: what was
    received is finished.
    """

    def __init__(self, transport: Transport, check: Callable[[], Awaitable[float | None]], timer: Timer) -> None:
        """Use this transport. Nothing is checked before `start`."""
        self._transport = transport
        self._check = check
        self._timer = timer
        self._due: float | None = None
        self._problem = ""
        self._checking = asyncio.Lock()
        self.traits = transport.traits
        self.send = transport.send
        self.ack = transport.ack
        self.release = transport.release
        self.extend = transport.extend
        self.declare = transport.declare
        self.depth = transport.depth

    async def start(self) -> None:
        """Check for the first time. Raises SetupError, RetryableError."""
        self._again_after(await self._check())

    async def receive(self, limit: int, wait: float) -> tuple[Delivery, ...]:
        """Check if it is time, then receive. Raises Unsafe while a setting is wrong, and what `receive` raises."""
        if self._due is not None and self._timer.seconds() >= self._due:
            await self._check_again()
        if self._problem:
            raise Unsafe(self._problem)
        return await self._transport.receive(limit, wait)

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
                self._again_after(UNSAFE_SECONDS)  # an outage changes no setting, and receiving reports it
            else:
                self._problem = ""
                self._again_after(again)

    def _again_after(self, seconds: float | None) -> None:
        self._due = None if seconds is None else self._timer.seconds() + seconds
