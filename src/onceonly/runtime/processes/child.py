"""The child's side of a process: a stop event for signals and for an orphan, ticks in the shared counters, an event loop."""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import time
from bdb import BdbQuit
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from multiprocessing import parent_process
from pathlib import Path
from typing import Any, NamedTuple, Self

from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.runtime.processes.counters import Column, CounterRow, SharedCounters

_log = EventLogger(logging.getLogger("onceonly"))

TICK_SECONDS = 0.25
SAME_SIGNAL_SECONDS = 1.0
"""A signal that comes twice within this time was sent to the process and to its group, or forwarded."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
SETUP = 2
"""The exit code of a child that finds that its set-up is wrong. Another start would not help."""
SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that keeps Python from searching the current folder first."""
LIBRARY = str(Path(os.__file__).parent)

ChildMain = Callable[[asyncio.Event, CounterRow], Coroutine[Any, Any, None]]


def run_child(index: int, counters_path: str, main: ChildMain, *, tick: float = TICK_SECONDS) -> None:
    """Run `main(stop, row)` in a child of a Supervisor, until it returns.

    SIGTERM sets `stop`, and so does the end of the parent, however it ended. Ctrl-C is the parent's to answer. Row `index`
    of the shared counters gets a tick every `tick` seconds while the event loop runs. SIGUSR1 writes the stack to standard
    error.

    When a handler stops the event loop, the process ends with exit code 1 and cancels nothing: the supervisor finds the mark
    of the handler that was running.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.register(signal.SIGUSR1)
    has_ended = False

    async def child() -> None:
        nonlocal has_ended
        try:
            await _child(main, row, tick)
        finally:
            has_ended = True

    with SharedCounters.open(counters_path) as counters:
        row = counters.row(index)
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
    """Give a new event loop: uvloop's where it is installed."""
    try:
        import uvloop  # noqa: PLC0415 - optional
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


@contextmanager
def stopping_on_signals(
    stop: asyncio.Event, hurry: Callable[[], object], *, one_asking: float = SAME_SIGNAL_SECONDS
) -> Iterator[None]:
    """Let SIGTERM and SIGINT set `stop`; one that comes `one_asking` seconds after the first, or later, calls `hurry`."""
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


async def _tick(row: CounterRow, seconds: float, stop: asyncio.Event, parent: int | None) -> None:
    """Tick, and look who the parent is: a process that the parent forked may hold its end of the pipe open."""
    while True:
        row.add(Column.TICK)
        if parent is not None and os.getppid() != parent:
            stop.set()
        await asyncio.sleep(seconds)


def answer_breakpoints(hook: Callable[..., object]) -> None:
    """Have `breakpoint()` call this, unless the user has chosen a debugger."""
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = hook


def _no_terminal(*_: object, **__: object) -> None:
    """Raise what pdb raises where it can read no command, and name the cure."""
    raise BdbQuit("breakpoint() needs `onceonly run --debug`")


class SearchPath(NamedTuple):
    """Where a process searches for modules: `sys.path`, behind the modules of the standard library that it has loaded."""

    path: list[str]
    library: tuple[str, ...]
    safe: str | None
    """The value of the variable `SAFE_PATH`."""

    @classmethod
    def here(cls) -> Self:
        """Return that of this process."""
        loaded = filter(_is_in_library, sys.stdlib_module_names & sys.modules.keys())
        return cls(sys.path, tuple(loaded), os.environ.get(SAFE_PATH))

    def apply(self) -> None:
        """Let this process search there."""
        for name in self.library:
            import_module(name)
        sys.path = self.path
        if self.safe is None:
            os.environ.pop(SAFE_PATH, None)
        else:
            os.environ[SAFE_PATH] = self.safe


def _is_in_library(name: str) -> bool:
    """Return whether a loaded module is that of the standard library, and not one of the user's with the same name."""
    file = getattr(sys.modules[name], "__file__", None)
    return file is None or file.startswith(LIBRARY)  # without a file it is built in


def begin(search: SearchPath, target: Callable[..., None], *arguments: Any) -> None:
    """Where every child of a Supervisor begins: calls `target`. An interrupt or a wrong set-up makes no traceback."""
    search.apply()
    answer_breakpoints(_no_terminal)
    try:
        target(*arguments)
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)
    except SetupError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(SETUP)
