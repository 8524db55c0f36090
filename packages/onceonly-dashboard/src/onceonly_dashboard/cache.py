"""What pages read: places that stay open between requests, and results that all viewers of a page share."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

from msgspec import Struct

from onceonly.model.errors import RetryableError, SetupError
from onceonly.runtime.environment import Timer
from onceonly_dashboard.probes import LONGEST_PERIOD, SLOW_SECONDS

IDLE_SECONDS = 60.0
"""A place is closed when no page has read it for this long."""
RESULTS = 50
"""Results that are shared at once. The one that was unused for longest is dropped."""
EARLY = 0.9
"""The part of a period after which a result is read again, so that a page that comes in time is never one period late."""

_Opened = TypeVar("_Opened")
_Value = TypeVar("_Value")


class _Holder(Generic[_Opened]):
    """A task that has something open. Only this task closes it."""

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[_Opened]]) -> None:
        self.loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[_Opened] = self.loop.create_future()
        self.ready.add_done_callback(_retrieve)
        self.over = asyncio.Event()
        self.broken = False
        self._readers = 0
        self._idle: asyncio.TimerHandle | None = None
        self.task = self.loop.create_task(self._run(open_), name="onceonly dashboard place")
        self.task.add_done_callback(_retrieve)

    async def _run(self, open_: Callable[[], AbstractAsyncContextManager[_Opened]]) -> None:
        try:
            async with open_() as opened:
                self.ready.set_result(opened)
                await self.over.wait()
        except BaseException as error:
            self.over.set()
            if self.ready.done():
                raise
            if not isinstance(error, Exception):
                self.ready.cancel()
                raise
            self.ready.set_exception(error)

    def enter(self) -> None:
        self._readers += 1
        if self._idle is not None:
            self._idle.cancel()

    def leave(self) -> None:
        """Note that a reader has ended. The last one closes what is broken, and the rest after a while."""
        self._readers -= 1
        if self._readers:
            return
        if self.broken:
            self.over.set()
        else:
            self._idle = self.loop.call_later(IDLE_SECONDS, self.over.set)


class KeptOpen(Generic[_Opened]):
    """Something that many requests read. The first opens it, and it stays open until no request has read it for a minute.

    After an error it is opened again for the next request. Requests that still read it end first.
    """

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[_Opened]]) -> None:
        self._open = open_
        self._holder: _Holder[_Opened] | None = None

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[_Opened]:
        """Yield what is open. Raises what opening raises."""
        holder = self._holder
        if holder is None or holder.over.is_set() or holder.broken or holder.loop is not asyncio.get_running_loop():
            holder = self._holder = _Holder(self._open)
        holder.enter()
        try:
            yield await asyncio.shield(holder.ready)
        except (RetryableError, SetupError, OSError, TimeoutError):
            holder.broken = True
            raise
        finally:
            holder.leave()

    async def close(self) -> None:
        """Close it. Requests that read it fail."""
        holder, self._holder = self._holder, None
        if holder is None or holder.loop is not asyncio.get_running_loop():
            return
        holder.over.set()
        if not holder.ready.done():
            holder.task.cancel()
        await asyncio.wait([holder.task])


class _Result(Struct):
    """What was read last, or is read now. `at` is when it ended, `period` for how long it is shared, both in seconds."""

    period: float
    reading: asyncio.Task[Any]
    at: float = 0.0


class SharedResults:
    """Results of reads by name. A page that refreshes itself gets one that is younger than its period, if there is one.

    Many open tabs cost as much as one. A read of more than 250 ms doubles its period, up to a minute.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._results: OrderedDict[Hashable, _Result] = OrderedDict()

    async def get(self, key: Hashable, read: Callable[[], Awaitable[_Value]], *, period: float, refreshing: bool) -> _Value:
        """Return a shared result if the page is `refreshing`, else read. Raises what `read` raises, which is not shared."""
        found = self._results.get(key)
        if found is None or not refreshing or not self._is_usable(found):
            lasting = period if found is None else max(period, found.period)
            reading = asyncio.get_running_loop().create_task(self._read(key, read, period))
            reading.add_done_callback(_retrieve)
            found = self._results[key] = _Result(lasting, reading)
        self._results.move_to_end(key)
        while len(self._results) > RESULTS:
            self._results.popitem(last=False)
        value: _Value = await asyncio.shield(found.reading)
        return value

    def _is_usable(self, found: _Result) -> bool:
        reading = found.reading
        if not reading.done():
            return reading.get_loop() is asyncio.get_running_loop()
        failed = reading.cancelled() or reading.exception() is not None
        return not failed and self._timer.seconds() - found.at < found.period * EARLY

    async def _read(self, key: Hashable, read: Callable[[], Awaitable[_Value]], period: float) -> _Value:
        began = self._timer.seconds()
        value = await read()
        ended = self._timer.seconds()
        result = self._results.get(key)
        if result is not None and result.reading is asyncio.current_task():
            result.at = ended
            slow = ended - began > SLOW_SECONDS
            result.period = min(LONGEST_PERIOD, result.period * 2) if slow else max(period, result.period / 2)
        return value


def _retrieve(done: asyncio.Future[Any]) -> None:
    """Retrieve an error, which the event loop would log if every request that waited for it were gone."""
    if not done.cancelled():
        done.exception()
