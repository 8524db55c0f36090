"""Threads for `def` handlers, which may block: the event loop of the application goes on meanwhile.

A handler has its thread for itself while it runs. Whatever touches the unit is awaited by the event loop, one thing after
another, in the task of the handler. When the time of the handler is over, the event loop refuses everything that the thread
asks for. A thread cannot be ended from outside. One that does not return is left behind, and its unit is given up.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import HandlerExpired
from onceonly.ports.store import Resources, SyncThread, Work
from onceonly.runtime.observe.loop_monitor import place_of

LEAVE_SECONDS = 1.0
"""Seconds that a handler's thread has to return after its time is over. Its unit is not kept for longer than that."""
MOST_LEFT = 16
"""Threads of a process that may be left behind and still run. With more, its worker ends."""
IDLE_THREADS = 8
"""Threads of a process that wait for the next handler. Others end with their handler."""

_log = EventLogger(logging.getLogger("onceonly.worker"))
_ENDED = object()

Answer = tuple[Any, BaseException | None]


class ThreadPool:
    """Daemon threads, so that none keeps the process from ending. There are as many as handlers run at once."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew. A process that was forked has none of the threads of its parent."""
        self._idle: list[SimpleQueue[Work]] = []

    def start(self, work: Work) -> None:
        try:
            jobs = self._idle.pop()
        except IndexError:
            jobs = SimpleQueue()
            threading.Thread(target=self._run, args=(jobs,), name="onceonly def handler", daemon=True).start()
        jobs.put(work)

    def _run(self, jobs: "SimpleQueue[Work]") -> None:
        while True:
            last = jobs.get()()
            ends = len(self._idle) >= IDLE_THREADS
            if not ends:
                self._idle.append(jobs)
            last()
            if ends:
                return
            del last  # and what it holds of the handler


THREADS = ThreadPool()
os.register_at_fork(after_in_child=THREADS.forget)
_LEFT: set["HandlerThread"] = set()


class HandlerThread:
    """The thread of one run of a handler; see the port. Everything about its end is decided in the event loop."""

    def __init__(self, name: str, *, seconds: float, leave: float = LEAVE_SECONDS) -> None:
        """Prepare a thread for the handler of this name, which has this many `seconds`, and `leave` seconds more to return."""
        self.is_out = True
        self._name = name
        self._seconds = seconds
        self._on_expiry: list[Callable[[HandlerExpired], object]] = []
        self._leave = leave
        self._is_closed = False
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._out = asyncio.Event()
        self._ident = 0

    @property
    def is_left(self) -> bool:
        return self in _LEFT

    async def run(self, function: Callable[[], Any], start: Callable[[Work], object] | None = None) -> Any:
        """Call the function in the thread, in a copy of the caller's context; see the port."""
        self._loop = loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[Any] = loop.create_future()
        self.is_out = False
        (start or THREADS.start)(partial(self._work, partial(copy_context().run, function)))
        try:
            while (awaitable := await self._asked) is not _ENDED:
                self._asked = loop.create_future()
                await self._answer(awaitable)
        except asyncio.CancelledError:
            await self._end_time()
            raise
        left, error = self._ended
        if error is not None:
            raise error
        return left

    def on_expiry(self, function: Callable[[HandlerExpired], object]) -> None:
        """Call a function in the event loop when the time is over; see the port."""
        self._on_expiry.append(function)

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Await this in the event loop; see the port."""
        try:
            self.check()
            self._loop.call_soon_threadsafe(self._request, awaitable)
        except (HandlerExpired, RuntimeError) as error:  # RuntimeError: the event loop is closed, the worker has ended
            _close(awaitable)
            raise self.expired() from error
        left, raised = self._answers.get()
        if raised is not None:
            raise raised
        return left

    def check(self) -> None:
        if self._is_closed:
            raise self.expired()

    def expired(self) -> HandlerExpired:
        return HandlerExpired(
            f"the unit of handler {self._name} was rolled back because the handler did not end within {self._seconds:g} s, or"
            " because its worker was stopped. This thread cannot use it any more; return from the handler"
        )

    def _work(self, function: Callable[[], Any]) -> Callable[[], object]:
        self._ident = threading.get_ident()
        left, error = None, None
        try:
            left = function()
        except BaseException as raised:  # noqa: BLE001 - raised by `run`
            error = raised
        return partial(self._finish, left, error)

    def _finish(self, left: Any, error: BaseException | None) -> None:
        try:
            self._loop.call_soon_threadsafe(self._end, left, error)
        except RuntimeError:  # the event loop is closed: the worker has ended
            _LEFT.discard(self)

    def _request(self, awaitable: Awaitable[Any]) -> None:
        if self._is_closed or self._asked.done():  # done: it is being cancelled
            _close(awaitable)
            self._answers.put((None, self.expired()))
        else:
            self._asked.set_result(awaitable)

    async def _answer(self, awaitable: Awaitable[Any]) -> None:
        try:
            answer: Answer = (await awaitable, None)
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # the statement was interrupted: nothing follows it
                self._close()
                self._answers.put((None, cancelled))
                raise
            answer = (None, cancelled)
        except BaseException as raised:  # noqa: BLE001 - raised in the thread
            answer = (None, raised)
        self._answers.put(answer)

    def _close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            for function in self._on_expiry:
                function(self.expired())

    async def _end_time(self) -> None:
        """Refuse everything from now on, and wait for the thread to return, but not for long."""
        self._close()
        if self._asked.done() and not self._asked.cancelled() and (asked := self._asked.result()) is not _ENDED:
            _close(asked)  # the thread has just asked for it
            self._answers.put((None, self.expired()))
        if not self.is_out:
            try:
                async with asyncio.timeout(self._leave):
                    await self._out.wait()
            except TimeoutError:
                self._leave_behind()

    def _leave_behind(self) -> None:
        _LEFT.add(self)
        place = place_of(self._ident)
        fields = {"handler": self._name, "seconds": self._seconds, "place": place.text, "threads": len(_LEFT)}
        _log.warning("handler thread did not end in time, left running", extra=fields | {"traceback": place.stack})

    def _end(self, left: Any, error: BaseException | None) -> None:
        self._ended = (left, error)
        self.is_out = True
        self._out.set()
        if self in _LEFT:
            _LEFT.discard(self)
            _log.info("handler thread ended after its time", extra={"handler": self._name, "threads": len(_LEFT)})
        if not self._asked.done():
            self._asked.set_result(_ENDED)


class ThreadResources:
    """The resources of a unit, for a handler that runs in a thread."""

    def __init__(self, resources: Resources, thread: HandlerThread) -> None:
        self._resources = resources
        self._thread = thread
        self.get = resources.get

    def attempt(self, handler: str = "") -> AbstractAsyncContextManager[None]:
        """Enclose one handler's work; see the port."""
        return self._resources.attempt(handler)

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        """Write what an asynchronous handler has left, which a `def` one has returned."""
        return self._resources.leave(is_last=is_last)

    def is_busy(self) -> bool:
        return self._resources.is_busy()

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        def run(get: Callable[[type], object]) -> object:
            self._thread.check()
            return function(get)

        return await self._resources.run_sync(run, thread or self._thread, is_last=is_last)


def too_many_left() -> bool:
    """Return whether this many threads are left behind that their worker has to end."""
    return len(_LEFT) > MOST_LEFT


def _close(awaitable: object) -> None:
    """Close a coroutine that nothing awaits, so that Python does not warn of it."""
    close = getattr(awaitable, "close", None)
    if callable(close):
        close()
