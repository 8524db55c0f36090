"""Finding what blocks the event loop: a thread checks whether the loop runs, and where in the code it is if it does not."""

import asyncio
import logging
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple
from weakref import WeakKeyDictionary

from onceonly.formats.log_events import EventLogger

STACK_LIMIT = 8000
"""Characters of a stack that are logged: its end."""

LIMIT_SECONDS = 1.0
"""A block of the event loop that lasts longer than about this is logged."""
BEAT_SECONDS = 0.25
LOOK_SECONDS = 0.2
LATE_SECONDS = 0.5
"""By how much the thread may be late itself. If it is later, the whole process did not run, and nothing is known."""
_log = EventLogger(logging.getLogger("onceonly"))


class Place(NamedTuple):
    """A place in the code, such as `shop.py:12 in place_order`, and the stack, innermost frame last."""

    text: str
    stack: str


def place_of(thread: int) -> Place:
    """Find where a thread is now, by its identifier: in the innermost frame that is neither Python's nor a library's.

    The innermost frame of all if no frame is in the program. Empty for a thread that has ended.
    """
    frame = sys._current_frames().get(thread)  # noqa: SLF001 - documented by Python under this name
    if frame is None:
        return Place("", "")
    stack = "".join(traceback.format_stack(frame))[-STACK_LIMIT:]
    found = _of_user(frame) or frame
    code = found.f_code
    return Place(f"{code.co_filename}:{found.f_lineno} in {code.co_qualname}", stack)


def _of_user(frame: FrameType | None) -> FrameType | None:
    while frame is not None:
        if not frame.f_code.co_filename.startswith(("<", *_libraries())):
            return frame
        frame = frame.f_back
    return None


@cache
def _libraries() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    own = Path(__file__).parents[2]
    return tuple({f"{folder}/" for folder in (*(sysconfig.get_path(name) for name in names), str(own))})


class LoopMonitor:
    """Logs each block of one event loop once, while it lasts, and its end. The place is where the loop's thread is then.

    Code in C that keeps Python's global lock stops this thread as well, and is not found.
    """

    def __init__(self, limit: float) -> None:
        self.users = 0
        self._limit = limit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._beaten = 0.0
        self._ident = 0
        self._stopped = threading.Event()

    def start(self) -> None:
        self._loop, self._ident = asyncio.get_running_loop(), threading.get_ident()
        self._stopped = stopped = threading.Event()
        self._beat()
        threading.Thread(target=self._watch, args=(stopped,), name="onceonly loop monitor", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._beaten = time.monotonic()
        if self._loop is not None:
            self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _loop_runs(self) -> bool:
        """Return whether the loop is running. Between two `run_until_complete` nothing is blocked."""
        return self._loop is not None and self._loop.is_running()

    def _watch(self, stopped: threading.Event) -> None:
        looked = start = time.monotonic()
        blocked: float | None = None
        """The last beat before the block that was logged."""
        while not stopped.wait(LOOK_SECONDS):
            now, beaten = time.monotonic(), self._beaten
            if now - looked > LOOK_SECONDS + LATE_SECONDS or not self._loop_runs():
                start = now
            looked = now
            if blocked is not None and beaten > blocked:
                _log.info("event loop no longer blocked", extra={"seconds": round(beaten - blocked, 1)})
                blocked = None
            elif blocked is None and now - max(beaten, start) > self._limit:
                place = place_of(self._ident)
                if self._beaten != beaten:  # it has just ended, and the place is another one
                    continue
                blocked = beaten
                fields = {"seconds": round(now - beaten, 1), "place": place.text, "traceback": place.stack}
                _log.warning("event loop blocked", extra=fields)


_MONITORS: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopMonitor] = WeakKeyDictionary()


@contextmanager
def monitored_loop() -> Iterator[None]:
    """Log blocks of the running event loop. One monitor serves everything that runs in the loop."""
    loop = asyncio.get_running_loop()
    monitor = _MONITORS.setdefault(loop, LoopMonitor(LIMIT_SECONDS))
    if not monitor.users:
        monitor.start()
    monitor.users += 1
    try:
        yield
    finally:
        monitor.users -= 1
        if not monitor.users:
            monitor.stop()
