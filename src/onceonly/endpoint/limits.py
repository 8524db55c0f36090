"""A handler's run: in a task of its own, within its time.

The first step of a task is taken at once, as by eager tasks since Python 3.12: a handler that waits for nothing costs no turn
of the event loop. All handlers share one timer, which stays set when a handler ends: when it rings, it checks which handlers
are still running. Setting and cancelling a timer for each handler would cost more than all else around a short one.
"""

import asyncio
import sys
from asyncio import taskgroups
from asyncio.tasks import _enter_task, _leave_task  # what alternative implementations of tasks are to use
from collections.abc import Coroutine
from contextvars import Context, copy_context
from math import inf
from types import FrameType
from typing import Any

from onceonly.endpoint.left_tasks import TaskWatch
from onceonly.model.errors import HandlerStuck

EARLY_SECONDS = 0.001
"""Seconds by which an event loop may ring too early."""
CANCEL_SECONDS = 1.0
"""Seconds that a handler has to end when its worker is cancelled: longer than that, its unit is not kept for it."""

_MISSING = object()
Outcome = tuple[Any, BaseException | None]
"""What a handler returned, or what it raised."""


class TimeLimits:
    """The handlers that run at the moment in one event loop, and until when each may."""

    def __init__(self, grace: float = 10.0) -> None:
        """Allow a handler `grace` seconds to end once it was cancelled because its time is over."""
        self._grace = grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[LimitedRun] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = 0.0
        self.spare: HandlerTask | None = None
        """A task that has not begun yet: handlers that wait for nothing share it."""

    def start(self, run: "LimitedRun", until: float, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:  # the one before has ended, and its timer with it
            self._loop, self._timer = loop, None
            self._running.clear()
        run.until = until
        self._running.add(run)
        if self._timer is None or self._rings_at > until:
            self._set(until, loop)

    def stop(self, run: "LimitedRun") -> None:
        """Stop limiting a run. The timer stays set, and has no effect if no run is left."""
        self._running.discard(run)

    def _set(self, until: float, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = until
        self._timer = loop.call_at(until, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time() + EARLY_SECONDS
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


class LimitedRun:
    """One run of a handler; `expired` is true if it took longer than its time-out.

    The handler has its own task and its own copy of the context. Changes to them do not affect other handlers.
    """

    __slots__ = ("_limits", "_seconds", "_turn", "_watch", "expired", "until")

    def __init__(self, limits: TimeLimits, seconds: float, watch: TaskWatch | None = None) -> None:
        """Limit the run to `seconds`. `watch` finds the tasks that it leaves."""
        self.until = 0.0
        self.expired = False
        self._limits = limits
        self._seconds = seconds
        self._turn: HandlerTask | None = None
        self._watch = watch

    async def __call__(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it. Returns what it returned, or raises what it raised.

        Raises TimeoutError when its time was over, whatever came of it then; CancelledFromInside; HandlerStuck when it does
        not end. CancelledError means that the caller is cancelled.
        """
        loop = asyncio.get_running_loop()
        begun, context, limits = loop.time(), copy_context(), self._limits
        if self._watch is not None and begun >= self._watch.due:
            return await self._watched(self._watch, HandlerTask(context, loop), work, begun)
        turn = limits.spare
        if turn is None or not turn.serves(context, loop):
            turn = limits.spare = HandlerTask(context, loop)
        return self._outcome(turn, *(turn.begin(work) or await self._end(turn, begun, loop)))

    async def _watched(self, watch: TaskWatch, turn: "HandlerTask", work: Coroutine[Any, Any, Any], begun: float) -> Any:
        """Run it in a task that no other run shares, and look for tasks that it leaves."""
        loop, marks = asyncio.get_running_loop(), [watch.begin(turn.context, begun)]
        ended = turn.begin(work) or await self._end(turn, begun, loop)
        watch.end(turn.context, marks, loop.time())
        return self._outcome(turn, *ended)

    def _outcome(self, turn: "HandlerTask", left: Any, error: BaseException | None) -> Any:
        if self.expired:
            raise TimeoutError from error
        if turn.task.cancelling() > turn.task.by_groups or isinstance(error, asyncio.CancelledError):
            self._limits.spare = None
            raise CancelledFromInside from error
        if error is not None:
            raise error
        return left

    async def _end(self, turn: "HandlerTask", begun: float, loop: asyncio.AbstractEventLoop) -> Outcome:
        """Wait for the end of a handler that waits for something."""
        limits, self._turn = self._limits, turn
        limits.spare, turn.ended = None, loop.create_future()
        if self._seconds < inf:
            limits.start(self, begun + self._seconds, loop)
        try:
            return await turn.ended
        except BaseException:  # the worker is cancelled, or the handler does not end
            turn.task.cancel()
            if turn.ended.cancelled():
                await asyncio.wait({turn.task}, timeout=CANCEL_SECONDS)
            raise
        finally:
            limits.stop(self)

    def expire(self) -> None:
        self.expired = True
        if self._turn is not None:
            self._turn.task.cancel()

    def give_up(self) -> None:
        ended = self._turn and self._turn.ended
        if ended is not None and not ended.done():
            ended.set_exception(HandlerStuck("a handler has not ended although it was cancelled"))


class CountingTask(asyncio.Task[None]):
    """A task that counts the cancellations by task groups which they do not take back.

    Up to Python 3.12 a task group leaves `cancelling()` at 1 if one of its tasks fails while it waits for their end. Such a
    cancellation reached only the group. Any other one may have cut off the handler, even if the handler then returned.
    """

    by_groups = 0

    def cancel(self, msg: Any = None) -> bool:
        self.by_groups += _is_task_groups(sys._getframe(1))  # noqa: SLF001 - there is no other way to see who calls
        return super().cancel(msg)

    def uncancel(self) -> int:
        self.by_groups -= _is_task_groups(sys._getframe(1))  # noqa: SLF001 - the same
        return super().uncancel()


def _is_task_groups(frame: FrameType) -> bool:
    return frame.f_globals is vars(taskgroups)


class HandlerTask(Coroutine[Any, Any, None]):
    """A task that handlers run in: any number that wait for nothing, one after another, or one that waits for something.

    A task that is made takes its first step in the next turn of the event loop. What handlers do before is done here, with the
    task as the current one; where one waits, the task goes on with it from there. So handlers that wait for nothing share the
    cost of a task, and each begins with the context of its caller, as long as none has changed it.

    This is the task's coroutine. Whatever the handler raises is an outcome: a task lets `SystemExit` through to the event loop.
    """

    __slots__ = ("_awaited", "_loop", "_snapshot", "_work", "context", "ended", "task")

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        """Make the task; its handlers run in this context."""
        self._loop = loop
        self.context, self._snapshot = context, context.copy()
        self._work: Coroutine[Any, Any, Any] | None = None
        self._awaited: Any = None
        self.ended: asyncio.Future[Outcome] | None = None
        """What came of the handler that waits for something."""
        # Not `loop.create_task`: a task factory may take the first step at once, or wrap the coroutine.
        self.task = CountingTask(self, loop=loop, name="onceonly handler", context=context)

    def serves(self, context: Context, loop: asyncio.AbstractEventLoop) -> bool:
        """Return whether one more handler, with this context, may run in its task."""
        if self.task.done() or self._loop is not loop or self._work is not None:
            return False
        if getattr(self.task, "_must_cancel", False):  # `uncancel` of Python 3.11 and 3.12 does not take a cancellation back
            return False
        if not _is_same(self.context, self._snapshot):
            return False  # a handler has changed it
        return _is_same(self._snapshot, context) or self._follow(context)

    def _follow(self, context: Context) -> bool:
        """Take on the values of a context with the same variables. False if it has others: none can be taken away.

        The span of each message is such a value. No handler is in progress here that could see the change.
        """
        snapshot, changed = self._snapshot, []
        if len(context) != len(snapshot):
            return False
        for name, value in context.items():
            known = snapshot.get(name, _MISSING)
            if known is _MISSING:
                return False
            if known is not value:
                changed.append((name, value))
        for name, value in changed:
            self.context.run(name.set, value)
        self._snapshot = context
        return True

    def begin(self, work: Coroutine[Any, Any, Any]) -> Outcome | None:
        """Take the first step of a handler. Returns what came of it, None when it waits for something."""
        loop, task = self._loop, self.task
        caller = asyncio.current_task(loop)
        if caller is not None:
            _leave_task(loop, caller)
        _enter_task(loop, task)
        self._work = work
        try:
            self._awaited = _unmarked(self.context.run(work.send, None))
        except StopIteration as over:
            self._work = None
            return over.value, None
        except BaseException as error:  # noqa: BLE001 - the handler's; raised by whoever runs it
            self._work = None
            return None, error
        finally:
            _leave_task(loop, task)
            if caller is not None:
                _enter_task(loop, caller)
        return None

    def send(self, value: Any) -> Any:
        """Go on: first with what the handler's first step waits for, if it is not just the next turn of the loop."""
        awaited, self._awaited = self._awaited, None
        if self._work is None:  # no handler waited for anything
            raise StopIteration
        if awaited is not None:
            return _marked(awaited)
        try:
            return self._work.send(value)
        except BaseException as error:  # noqa: BLE001 - an outcome
            return self._finish(error)

    def throw(self, error: Any, value: Any = None, trace: Any = None) -> Any:
        """Raise in the handler where it waits. A cancellation goes to what it waits for first, as in any task."""
        awaited, self._awaited = self._awaited, None
        if self._work is None:
            raise error
        if (
            isinstance(awaited, asyncio.Future)
            and isinstance(error, asyncio.CancelledError)
            and awaited.cancel(*error.args[:1])
        ):
            return _marked(awaited)
        try:
            return self._work.throw(error)
        except BaseException as raised:  # noqa: BLE001 - an outcome
            return self._finish(raised)

    def close(self) -> None:
        if self._work is not None:
            self._work.close()

    def __await__(self) -> Any:
        raise TypeError("this is a task's coroutine")

    def __getattr__(self, name: str) -> Any:
        """Show the handler's frame and state (`cr_frame`, `cr_await`) to tools that look into tasks."""
        if name.startswith("cr_") and self._work is not None:
            return getattr(self._work, name)
        raise AttributeError(name)

    def _finish(self, error: BaseException) -> None:
        self._work = None
        if self.ended is not None and not self.ended.done():
            self.ended.set_result((error.value, None) if isinstance(error, StopIteration) else (None, error))
        raise StopIteration


def _is_same(one: Context, other: Context) -> bool:
    """Report whether two contexts have the same values: equal ones may be changed by one handler for another."""
    if len(one) != len(other):
        return False
    for name, value in one.items():  # noqa: SIM110 - a generator takes three times as long, and each handler comes here
        if other.get(name, _MISSING) is not value:
            return False
    return True


def _unmarked(awaited: Any) -> Any:
    """Unmark what a handler waits for, so that others can wait for it: a marked future belongs to one task."""
    if getattr(awaited, "_asyncio_future_blocking", None):
        awaited._asyncio_future_blocking = False  # noqa: SLF001 - the protocol between futures and tasks
    return awaited


def _marked(awaited: Any) -> Any:
    """Hand to the task what the handler waits for, as the future itself would."""
    if getattr(awaited, "_asyncio_future_blocking", None) is False:
        awaited._asyncio_future_blocking = True  # noqa: SLF001 - the same
    return awaited
