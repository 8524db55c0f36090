"""The live environment: the system's clock, random numbers, ids, timer and temporary directory."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol
from uuid import uuid4

from onceonly.model.errors import SetupError
from onceonly.ports.environment import Clock, IdGenerator, RandomSource


class Timer(Protocol):
    """How long things take, and waiting; for the runtime only, the algorithms never wait."""

    def seconds(self) -> float:
        """Return seconds since some fixed moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after this many seconds."""


class SystemClock:
    def now(self) -> int:
        return time.time_ns() // 1_000_000


class SystemRandomSource:
    """Python's random numbers: they spread delays, and guard no secret."""

    def fraction(self) -> float:
        return random.random()  # noqa: S311 - spreads delays, guards nothing


class SystemIdGenerator:
    """Random ids of 122 bits (RFC 9562, version 4)."""

    def new_id(self) -> str:
        return uuid4().hex


class SystemTimer:
    """The monotonic clock, and the event loop's sleep."""

    def seconds(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Yield to the event loop for this long."""
        await asyncio.sleep(seconds)


class Environment(NamedTuple):
    """Time and chance, as arguments; the live ones unless something else is given."""

    clock: Clock = SystemClock()
    random: RandomSource = SystemRandomSource()
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


@contextmanager
def temporary_directory(prefix: str, use: str) -> Iterator[str]:
    """Make a directory for what `use` names, and remove it at the end.

    A container with a read-only file system may have none. Raises SetupError with what to mount.
    """
    import tempfile  # noqa: PLC0415 - for processes that need one

    try:
        directory = tempfile.TemporaryDirectory(prefix=prefix)
    except OSError as error:
        tried = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the name is for a person
        raise SetupError(
            f"no writable temporary directory for {use}: tried {tried} ({error.strerror or error}). Mount a writable"
            f" directory of a few megabytes at {tried}, such as a tmpfs or an emptyDir, or set TMPDIR to one"
        ) from error
    with directory as name:
        yield name
