"""Probes: each reads one place periodically, keeps its last samples, and the start of an outage."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

from msgspec import Struct

from onceonly.model.errors import OnceOnlyError, RetryableError, SetupError
from onceonly.runtime.environment import Environment
from onceonly.sql.time_limits import limited_reads

SAMPLES = 720
"""Samples that a probe keeps: an hour, when it reads every 5 seconds."""
SLOW_SECONDS = 0.25
LONGEST_PERIOD = 60.0
ANSWER_SECONDS = 2.0
SERVER_SECONDS = ANSWER_SECONDS + 1
"""Seconds after which a server ends a read that was given up and is still executed."""
OPEN_SECONDS = 10.0
"""Seconds that opening may take: a connection with TLS to a server far away."""

_Opened = TypeVar("_Opened")
_Value = TypeVar("_Value")


class Sample(Struct, frozen=True):
    """Numbers at an instant, by name. Empty when nothing could be read. Milliseconds since 1970."""

    at: int
    numbers: Mapping[str, float]


class Outage(Struct, frozen=True):
    """Why a place cannot be read, and since when: milliseconds since 1970. `is_setup` if a person has to change something."""

    reason: str
    since: int
    is_setup: bool = False


@asynccontextmanager
async def answering() -> AsyncIterator[asyncio.Timeout]:
    """Give up what is read inside after 2 s. Raises TimeoutError."""
    with limited_reads(SERVER_SECONDS):
        async with asyncio.timeout(ANSWER_SECONDS) as limit:
            yield limit


async def answer_or_reason(read: Callable[[], Awaitable[_Value]]) -> tuple[_Value | None, str]:
    """Return what is read within 10 seconds, or None and why it cannot be read."""
    try:
        async with asyncio.timeout(OPEN_SECONDS):
            return await read(), ""
    except OnceOnlyError as error:
        return None, str(error)
    except TimeoutError:
        return None, f"no answer within {ANSWER_SECONDS:g} s"


class Probe(Generic[_Opened, _Value]):
    """Reads a value every `period` seconds, from something that stays open in between.

    A read longer than 250 ms doubles the period, up to 60 s; a shorter one halves it again. A read of more than 2 s doubles it
    too, is given up, and counts as an outage. After an outage the place is opened again.
    """

    def __init__(
        self,
        open_: Callable[[], AbstractAsyncContextManager[_Opened]],
        read: Callable[[_Opened], Awaitable[_Value]],
        *,
        numbers: Callable[[_Value], Mapping[str, float]] = lambda _: {},
        period: float,
        environment: Environment,
    ) -> None:
        self._open = open_
        self._read = read
        self._numbers = numbers
        self._shortest = period
        self._environment = environment
        self.period = period
        self.value: _Value | None = None
        self.at = 0
        """When `value` was read, in milliseconds since 1970."""
        self.outage: Outage | None = None
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._ended = asyncio.Condition()
        self.rounds = 0
        """How many reads have ended, with a value or an outage."""

    async def run(self) -> None:
        """Read until cancelled. What was opened is closed by this task."""
        while True:
            try:
                async with asyncio.timeout(OPEN_SECONDS) as opening, self._open() as opened:
                    opening.reschedule(None)
                    while await self._once(opened):
                        await self._rest()
            except (RetryableError, SetupError, OSError, TimeoutError) as error:
                await self._failed(error)
            await self._rest()

    async def wait_for(self, rounds: int = 1) -> None:
        """Wait until this number of reads in total have ended."""
        async with self._ended:
            await self._ended.wait_for(lambda: self.rounds >= rounds)

    async def _once(self, opened: _Opened) -> bool:
        timer, limit = self._environment.timer, None
        began = timer.seconds()
        try:
            async with answering() as limit:
                value = await self._read(opened)
        except (RetryableError, SetupError, OSError, TimeoutError) as error:
            if limit is not None and limit.expired():
                self._adapt(ANSWER_SECONDS)  # or a server that is too slow would be read as often as a fast one
            await self._failed(error)
            return False
        self._adapt(timer.seconds() - began)
        self.value, self.at, self.outage = value, self._environment.clock.now(), None
        await self._note(self._numbers(value))
        return True

    def _adapt(self, took: float) -> None:
        if took > SLOW_SECONDS:
            self.period = min(LONGEST_PERIOD, self.period * 2)
        else:
            self.period = max(self._shortest, self.period / 2)

    async def _failed(self, error: Exception) -> None:
        now = self._environment.clock.now()
        reason = f"no answer within {ANSWER_SECONDS:g} s" if isinstance(error, TimeoutError) else str(error)
        since = self.outage.since if self.outage is not None else now
        self.outage = Outage(reason or type(error).__name__, since, isinstance(error, SetupError))
        await self._note({})

    async def _note(self, numbers: Mapping[str, float]) -> None:
        self.samples.append(Sample(self._environment.clock.now(), numbers))
        async with self._ended:
            self.rounds += 1
            self._ended.notify_all()

    async def _rest(self) -> None:
        await self._environment.timer.sleep(self.period)


class Sampler:
    """Runs all probes of a dashboard in this event loop: one task for each, however many viewers there are."""

    def __init__(self, probes: list[Probe[object, object]], closing: Sequence[Callable[[], Awaitable[None]]] = ()) -> None:
        """Run these probes. `closing` is called after they have stopped."""
        self._probes = probes
        self._closing = closing
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self.since = 0
        """When the first sample was taken, in milliseconds since 1970."""

    def start(self, now: int) -> None:
        """Start what does not run in this event loop yet."""
        loop = asyncio.get_running_loop()
        if self._loop is loop and self._tasks:
            return
        self._loop, self.since = loop, now
        self._tasks = [loop.create_task(probe.run(), name="onceonly dashboard probe") for probe in self._probes]

    async def stop(self) -> None:
        """Stop, and wait until everything is closed."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for close in self._closing:
            await close()

    @asynccontextmanager
    async def running(self, now: int) -> AsyncIterator[None]:
        self.start(now)
        try:
            yield
        finally:
            await self.stop()
