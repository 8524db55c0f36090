"""Time limits of handlers: as `asyncio.timeout`, with one timer of the event loop for all handlers instead of one for each.

Most handlers end long before their time. Setting a timer and cancelling it again costs more than all else around a short one.
So the timer stays where it is: when it rings it looks who is running, and is set again for whoever is next.
"""

import asyncio
from types import TracebackType
from typing import Self

EARLY = 0.001
"""Seconds by which an event loop may ring too early."""


class TimeLimits:
    """The limits that run at the moment in one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[TimeLimit] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0

    def start(self, limit: "TimeLimit") -> None:
        """Let a limit count from now."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the one before has ended, and its timer with it
            self._loop, self._timer = loop, None
            self._running.clear()
        limit.until = loop.time() + limit.seconds
        self._running.add(limit)
        if self._timer is None or self._rings_at > limit.until:
            self._set(limit.until, loop)

    def stop(self, limit: "TimeLimit") -> None:
        """Forget a limit. Its timer may still ring, for nobody."""
        self._running.discard(limit)

    def _set(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = until
        self._timer = loop.call_at(until, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time() + EARLY
        for limit in [limit for limit in self._running if limit.until <= now]:
            self._running.discard(limit)
            limit.expire()
        if self._running:
            self._set(min(limit.until for limit in self._running), loop)


class TimeLimit:
    """Encloses what one task does for at most so many seconds; then the task is cancelled, and TimeoutError raised here."""

    def __init__(self, limits: TimeLimits, seconds: float) -> None:
        """Count from the moment it is entered; once."""
        self.seconds = seconds
        self.until = 0.0
        self.expired = False
        self._limits = limits
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0

    def expire(self) -> None:
        """Cut the task off."""
        self.expired = True
        if self._task is not None:
            self._task.cancel()

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if self._task is None:
            raise RuntimeError("a time limit needs a task")
        self._cancelling = self._task.cancelling()
        self._limits.start(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._limits.stop(self)
        task, self._task = self._task, None
        # whoever else cancelled the task meanwhile means all of it: that is no time-out
        is_own = self.expired and task is not None and task.uncancel() <= self._cancelling
        if is_own and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error
