"""The child's side of a process: its event loop, the stop event for signals and for an orphan, ticks, garbage collection."""

import asyncio
import faulthandler
import gc
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from multiprocessing import parent_process
from typing import Any

from onceonly.formats.log_events import EventLogger
from onceonly.runtime.processes.counters import Column, CounterRow, SharedCounters
from onceonly.runtime.processes.early_start import SIGNALS

_log = EventLogger(logging.getLogger("onceonly"))

TICK_SECONDS = 0.25
PARENT_CHECK_SECONDS = 0.5
ORPHAN_GRACE_SECONDS = 60.0
SAME_SIGNAL_SECONDS = 1.0
"""A signal that comes twice within this time was sent to the process and to its group, or forwarded."""

ChildMain = Callable[[asyncio.Event, CounterRow], Coroutine[Any, Any, None]]

AGAIN_SECONDS = 0.5
"""Seconds until the second freeze, when connections are open and the first messages have filled the caches."""
THRESHOLDS = (2_000, 10, 100)
"""How many new objects start a collection of the youngest generation, and how many collections one of the next."""


def run_child(
    index: int, counters_path: str, main: ChildMain, *, tick: float = TICK_SECONDS, grace: float = ORPHAN_GRACE_SECONDS
) -> None:
    """Run `main(stop, row)` in a child of a Supervisor, until it returns.

    SIGTERM sets `stop`, and so does the end of the parent, however it ended. Ctrl-C is the parent's to answer. Row `index`
    of the shared counters gets a tick every `tick` seconds while the event loop runs. SIGUSR1 writes the stack to standard
    error.

    No supervisor is left then to kill a process that does not stop. So the process ends itself `grace` seconds later.

    When a handler stops the event loop, the process ends with exit code 1 and cancels nothing: the supervisor finds the mark
    of the handler that was running.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)
    if (parent := parent_process()) is not None and parent.pid is not None:
        threading.Thread(target=_end_after, args=(parent.pid, grace), name="onceonly parent", daemon=True).start()
    has_ended = False

    async def child() -> None:
        nonlocal has_ended
        try:
            await _child(main, row, tick)
        finally:
            has_ended = True

    with SharedCounters.open(counters_path) as counters:
        row = counters.row(index)
        row.occupy()  # before any connection is opened: when this process ends, its lock is released before them
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            try:
                runner.run(child())
            except BaseException:
                if has_ended:
                    raise
                _log.exception("event loop stopped, process exiting")
                os._exit(1)


def run_here(main: Callable[[asyncio.Event], Awaitable[None]], *, one_asking: float = SAME_SIGNAL_SECONDS) -> None:
    """Run `main(stop)` in this process; SIGTERM or Ctrl-C sets `stop`, and another one, later, ends it at once."""
    with suppress(asyncio.CancelledError), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_here(main, one_asking))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop: uvloop's where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def stopping_on_signals(
    stop: asyncio.Event, hurry: Callable[[], object], *, one_asking: float = SAME_SIGNAL_SECONDS
) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT; one that comes `one_asking` seconds after the first, or later, calls `hurry`."""
    loop = asyncio.get_running_loop()
    first: float | None = None

    def told() -> None:
        nonlocal first
        now = time.monotonic()
        first = now if first is None else first
        if stop.is_set() and now - first >= one_asking:
            hurry()
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, told)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


async def _here(main: Callable[[asyncio.Event], Awaitable[None]], one_asking: float) -> None:
    stop = asyncio.Event()
    task = asyncio.ensure_future(main(stop))
    with stopping_on_signals(stop, task.cancel, one_asking=one_asking):
        await task


async def _child(main: ChildMain, row: CounterRow, tick: float) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked since before the start: none was missed, none killed us
    parent = parent_process()
    ticking = asyncio.create_task(_tick(row, tick, stop, parent.pid if parent is not None else None))
    if parent is not None:
        loop.add_reader(parent.sentinel, _orphaned, stop, parent.sentinel)
    try:
        await main(stop, row)
    finally:
        if parent is not None:
            loop.remove_reader(parent.sentinel)
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # asked twice, by the parent and a service manager: it is on its way


def _orphaned(stop: asyncio.Event, sentinel: int) -> None:
    """The parent's end of the pipe is closed: it ended, perhaps by SIGKILL."""
    asyncio.get_running_loop().remove_reader(sentinel)
    stop.set()


def _end_after(parent: int, grace: float) -> None:
    """End this process some time after its parent has ended; in a thread, as the event loop may be blocked."""
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    time.sleep(grace)
    _log.error("supervisor has ended and process does not stop, exiting", extra={"grace": grace})
    os._exit(1)


async def _tick(row: CounterRow, seconds: float, stop: asyncio.Event, parent: int | None) -> None:
    """Tick, and look who the parent is: a process that the parent forked may hold its end of the pipe open."""
    while True:
        row.add(Column.TICK)
        if parent is not None and os.getppid() != parent:
            stop.set()
        await asyncio.sleep(seconds)


@asynccontextmanager
async def frozen_start(*, again_seconds: float = AGAIN_SECONDS) -> AsyncIterator[None]:
    """Exempt all objects that exist now, and those that exist `again_seconds` later, from garbage collection.

    Collections then traverse only what messages make, and they are rarer: thresholds are raised to `THRESHOLDS`. Greater ones
    of the program stay, and so does a collector that it has turned off. Reference counting frees frozen objects as before.
    A frozen reference cycle stays in memory, so both freezes collect first.

    This is a setting of the whole process. It is undone at the end, also for objects that the program has frozen itself.
    """
    before = gc.get_threshold()
    _freeze()
    gc.set_threshold(*(own and max(own, ours) for own, ours in zip(before, THRESHOLDS, strict=True)))
    again = asyncio.get_running_loop().call_later(again_seconds, _freeze)
    try:
        yield
    finally:
        again.cancel()
        gc.set_threshold(*before)
        gc.unfreeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()
