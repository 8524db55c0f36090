"""Growth: more units at once while handlers wait for something else than the store.

A worker that may grow handles one batch at a time, as long as its handlers compute or use the database. While a handler waits
for something else, such as an HTTP request, both the event loop and the database connection are idle. So the worker samples.
Every `TICK_SECONDS` it checks which units run a handler whose connection has nothing to do, if the process used little CPU. A
unit that is found so twice in a row opens one more turn, up to the limit. A batch without a sample closes one, and so does a
receive that brings nothing.

Sampling costs a database-bound handler nothing but its entry in a set. Batches become smaller as well: see `Backpressure`.
"""

import asyncio
from time import process_time

from onceonly.ports.store import Resources

TICK_SECONDS = 0.005
LATE_SECONDS = 3 * TICK_SECONDS
"""A sample that is so late stands for the ones that are missing: a loop that was blocked takes one sample of a long wait."""
IDLE = 0.5
"""The least part of a tick in which the process must not have used the CPU."""


class ElasticSemaphore(asyncio.Semaphore):
    """A semaphore with `least` places at first, and up to `most`."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(least)
        self.size = least
        self._least, self._most = least, most
        self._surplus = 0

    @property
    def can_grow(self) -> bool:
        return self._most > self._least

    def grow(self) -> None:
        if self.size >= self._most:
            return
        self.size += 1
        if self._surplus:
            self._surplus -= 1
        else:
            super().release()

    def shrink(self) -> None:
        if self.size > self._least:
            self.size -= 1
            self._surplus += 1

    def release(self) -> None:
        """Release a place: the next waiter gets it, unless there are too many."""
        if self._surplus:
            self._surplus -= 1
        else:
            super().release()


class ElasticTurns(ElasticSemaphore):
    """Turns of a worker's loops, and room for the batches in flight: `in_flight` for each turn at first, one for each more.

    A batch is in flight until it is finished. Its turn ends earlier, at its commit. What follows needs connections too, so the
    room limits those of a worker.
    """

    def __init__(self, least: int, most: int, *, in_flight: int = 1) -> None:
        super().__init__(least, most)
        self._ahead = (in_flight - 1) * least
        self.loops = self._ahead + most
        """How many loops can have a batch in flight, at most."""
        self.room = ElasticSemaphore(self._ahead + least, self.loops)

    def grow(self) -> None:
        """Open one more turn, if the limit allows it, and room for its batches."""
        super().grow()
        while self.room.size < self._ahead + self.size:
            self.room.grow()

    def shrink(self) -> None:
        super().shrink()
        while self.room.size > self._ahead + self.size:
            self.room.shrink()


class WaitSample:
    """What is known of the waiting in one loop's batch."""

    __slots__ = ("has_grown", "resources", "seconds", "tick")

    def __init__(self) -> None:
        self.resources: Resources | None = None
        self.begin_batch()

    def begin_batch(self) -> None:
        self.seconds = 0.0
        """How long its handlers waited for something else than the store, as far as samples tell."""
        self.tick = 0
        self.has_grown = False


class WaitSampler:
    """Looks from time to time which handlers of a worker wait for something else than the store, and lets its turns grow."""

    def __init__(self, turns: ElasticTurns) -> None:
        self._turns = turns
        self._running: set[WaitSample] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._tick = 0
        self._seen_at, self._used = 0.0, 0.0

    def enter(self, sample: WaitSample, resources: Resources) -> None:
        sample.resources = resources
        self._running.add(sample)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._seen_at, self._used = loop.time(), process_time()
            self._timer = loop.call_later(TICK_SECONDS, self._take_sample, loop)

    def leave(self, sample: WaitSample) -> None:
        self._running.discard(sample)

    def _take_sample(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sample, and go on as long as a handler runs."""
        self._timer = None
        now, used = loop.time(), process_time()
        elapsed, idle = now - self._seen_at, now - self._seen_at - (used - self._used)
        if not self._running:
            return
        self._tick += 1
        if idle >= IDLE * elapsed:
            for sample in self._running:
                if sample.resources is not None and not sample.resources.is_busy():
                    self._add(sample, elapsed)
        self._seen_at, self._used = now, used
        self._timer = loop.call_later(TICK_SECONDS, self._take_sample, loop)

    def _add(self, sample: WaitSample, elapsed: float) -> None:
        again = sample.tick == self._tick - 1 and self._tick > 1
        sample.tick = self._tick
        if again or elapsed >= LATE_SECONDS:
            sample.seconds += elapsed
            if not sample.has_grown:
                sample.has_grown = True
                self._turns.grow()
