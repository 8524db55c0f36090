"""A handler's run: in a task of its own, within its time.

The first step of a task is taken at once, as by eager tasks since Python 3.12: a handler that waits for nothing costs no turn
of the event loop. All handlers share one timer, which stays set when a handler ends: when it rings, it checks which handlers
are still running. Setting and cancelling a timer for each handler would cost more than all else around a short one.
"""

import asyncio
from asyncio.tasks import _enter_task, _leave_task  # what alternative implementations of tasks are to use
from collections.abc import Coroutine, Generator
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any

from onceonly.model.errors import HandlerStuck

EARLY = 0.001
"""Seconds by which an event loop may ring too early."""
LAST = 1.0
"""Seconds that a handler has to end when its worker is cancelled: longer than that, its unit is not kept for it."""

Outcome = tuple[Any, BaseException | None]
"""What a handler returned, or what it raised."""


class TimeLimits:
    """The handlers that run at the moment in one event loop, and until when each may."""

    def __init__(self, grace: float = 10.0) -> None:
        """Give a handler `grace` seconds to end once it was cancelled because its time is over."""
        self._grace = grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[HandlerRun] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self.spare: _Turn | None = None
        """A task that has not begun yet: handlers that wait for nothing share it."""

    def start(self, run: "HandlerRun", until: float, loop: asyncio.AbstractEventLoop) -> None:
        """Let a run be limited."""
        if loop is not self._loop:  # the one before has ended, and its timer with it
            self._loop, self._timer = loop, None
            self._running.clear()
        run.until = until
        self._running.add(run)
        if self._timer is None or self._rings_at > until:
            self._set(until, loop)

    def stop(self, run: "HandlerRun") -> None:
        """Limit a run no longer. The timer may still ring, for nobody."""
        self._running.discard(run)

    def _set(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = until
        self._timer = loop.call_at(until, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time() + EARLY
        for run in [run for run in self._running if run.until <= now]:
            if run.expired:
                self._running.discard(run)
                run.give_up()
            else:
                run.until = now + self._grace
                run.expire()
        if self._running:
            self._set(min(run.until for run in self._running), loop)


class CancelledFromInside(Exception):
    """A handler cancelled its own task, or what it waited for was cancelled."""


class HandlerRun:
    """One run of a handler; `expired` tells whether its time was over.

    The handler has a task and a copy of the context of its own: whatever it does to either concerns no other.
    """

    def __init__(self, limits: TimeLimits, seconds: float) -> None:
        """Limit it to so many seconds."""
        self.until = 0.0
        self.expired = False
        self._limits = limits
        self._seconds = seconds
        self._task: asyncio.Task[Outcome] | None = None
        self._ended: asyncio.Future[None] | None = None

    async def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it; gives what it returned, or raises what it raised.

        Raises TimeoutError when its time was over, whatever came of it then; CancelledFromInside; HandlerStuck when it does
        not end. CancelledError means that the caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        begun, context = loop.time(), copy_context()
        turn = self._limits.spare
        if turn is None or not turn.serves(context, loop):
            turn = self._limits.spare = _Turn(context, loop)
        outcome = turn.take(_caught(work)) or await self._end(turn, begun, loop)
        left, error = outcome
        if self.expired:
            raise TimeoutError from error
        if turn.task.cancelling() or isinstance(error, asyncio.CancelledError):
            self._limits.spare = None
            raise CancelledFromInside from error
        if error is not None:
            raise error
        return left

    async def _end(self, turn: "_Turn", begun: float, loop: asyncio.AbstractEventLoop) -> Outcome:
        """Wait for the end of a handler that waits for something."""
        self._limits.spare = None
        ended, task = loop.create_future(), turn.task
        self._ended, self._task = ended, task
        task.add_done_callback(self._note)
        self._limits.start(self, begun + self._seconds, loop)
        try:
            await ended
        except BaseException:  # the worker is cancelled, or the handler does not end
            task.cancel()
            if ended.cancelled():
                await asyncio.wait({task}, timeout=LAST)
            raise
        finally:
            self._limits.stop(self)
        if task.cancelled():  # it cancelled itself, and then waited for nothing more
            turn.close()
            return None, asyncio.CancelledError()
        outcome: Outcome = task.result()
        return outcome

    def expire(self) -> None:
        """Cut the handler off."""
        self.expired = True
        if self._task is not None:
            self._task.cancel()

    def give_up(self) -> None:
        """Wait for it no longer."""
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(HandlerStuck("a handler has not ended although it was cancelled"))

    def _note(self, _task: object) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)


async def _caught(work: Coroutine[Any, Any, Any]) -> Outcome:
    """Give whatever it raises as a value: a task lets `SystemExit` through to the event loop, and hides cancellation."""
    try:
        return await work, None
    except BaseException as error:  # noqa: BLE001 - raised by whoever waits for the task
        return None, error


class _Turn:
    """A task that handlers run in: any number that wait for nothing, one after another, or one that waits for something.

    A task that is made takes its first step in the next turn of the event loop. What handlers do before is done here, with the
    task as the current one; where one waits, the task goes on with it from there. So handlers that wait for nothing share the
    cost of a task, and each begins with the context of its caller, as long as none has changed it.
    """

    __slots__ = ("_awaited", "_context", "_loop", "_snapshot", "_work", "task")

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._context, self._snapshot = context, context.copy()
        self._work: Coroutine[Any, Any, Outcome] | None = None
        self._awaited: Any = None
        self.task: asyncio.Task[Any] = loop.create_task(self._rest(), name="onceonly handler", context=context)

    def serves(self, context: Context, loop: asyncio.AbstractEventLoop) -> bool:
        """Tell whether one more handler, with this context, may run in its task."""
        if self.task.done() or self._loop is not loop:
            return False
        return self._snapshot == context and self._context == context

    def take(self, work: Coroutine[Any, Any, Outcome]) -> Outcome | None:
        """Take the first step of a handler; gives what came of it, None when it waits for something."""
        loop, task = self._loop, self.task
        caller = asyncio.current_task(loop)
        if caller is not None:
            _leave_task(loop, caller)
        _enter_task(loop, task)
        try:
            self._awaited = self._context.run(work.send, None)
        except StopIteration as over:
            outcome: Outcome = over.value
            return outcome
        finally:
            _leave_task(loop, task)
            if caller is not None:
                _enter_task(loop, caller)
        self._work = work
        return None

    def close(self) -> None:
        """End a handler where it waits, without its task."""
        if self._work is not None:
            with suppress(RuntimeError):  # it waits for something although it is to end
                self._work.close()

    async def _rest(self) -> Outcome | None:
        return None if self._work is None else await self

    def __await__(self) -> Generator[Any, Any, Outcome]:
        """Go on with what the first step waits for."""
        work = self._work
        assert work is not None  # noqa: S101 - `_rest` looked
        while True:
            try:
                yield self._awaited
            except BaseException as error:  # noqa: BLE001 - it is the handler's
                try:
                    self._awaited = work.throw(error)
                except StopIteration as over:
                    outcome: Outcome = over.value
                    return outcome
            else:
                return (yield from work.__await__())
