"""The live surroundings: the system's clock, chance, identifiers and timer; and the bundle that hands them on."""

import asyncio
import random
import time
from contextlib import suppress
from typing import NamedTuple, Protocol
from uuid import uuid4

from onceonly.ports.environment import Clock, IdGenerator, RandomSource


class Timer(Protocol):
    """How long things take, and waiting; for the runtime only, the algorithms never wait."""

    def seconds(self) -> float:
        """Give seconds since some fixed moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds."""


class SystemClock:
    """The system's wall clock."""

    def now(self) -> int:
        """Give milliseconds since 1970, UTC."""
        return time.time_ns() // 1_000_000


class SystemRandomSource:
    """Python's random numbers: they spread delays, and guard no secret."""

    def fraction(self) -> float:
        """Give a number in [0, 1)."""
        return random.random()  # noqa: S311 - spreads delays, guards nothing


class SystemIdGenerator:
    """Random ids of 122 bits (RFC 9562, version 4)."""

    def new_id(self) -> str:
        """Give 32 hexadecimal digits."""
        return uuid4().hex


class SystemTimer:
    """The monotonic clock, and the event loop's sleep."""

    def seconds(self) -> float:
        """Give seconds of the monotonic clock."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let the event loop run something else for this long."""
        await asyncio.sleep(seconds)


class Environment(NamedTuple):
    """Time and chance, as arguments; the live ones unless something else is given."""

    clock: Clock = SystemClock()
    chance: RandomSource = SystemRandomSource()
    ids: IdGenerator = SystemIdGenerator()
    timer: Timer = SystemTimer()


LIVE = Environment()


async def pause(seconds: float, timer: Timer, stop: asyncio.Event) -> None:
    """Wait for this long, or until `stop` is set."""
    if seconds <= 0 or stop.is_set():
        return
    if isinstance(timer, SystemTimer):  # which the event loop itself can wake up from, without two tasks
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
        return
    asleep, stopped = asyncio.ensure_future(timer.sleep(seconds)), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({asleep, stopped}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        asleep.cancel()
        stopped.cancel()
