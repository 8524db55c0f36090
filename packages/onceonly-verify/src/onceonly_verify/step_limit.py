"""A limit of processor time for one step of a program: from one port call to the next. A loop without a call ends there.

A real step takes milliseconds. The limit counts the processor time of this process, so a busy machine changes nothing.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SECONDS = 3
"""Whole seconds of processor time that one step may take."""


class EndlessStep(BaseException):
    """A program made no port call for too long."""


class StepLimit:
    """Encloses each step, and interrupts one that takes too long, while `watching` is entered."""

    def __init__(self) -> None:
        self._number = 0
        self._seen = 0
        self._seconds = 0
        self._is_running = False
        self._is_exceeded = False

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Interrupt steps from now on. Does nothing on Windows, in a thread, and where steps are watched already."""
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.signal(signal.SIGVTALRM, self._tick)
        if before == self._tick:
            yield
            return
        signal.setitimer(signal.ITIMER_VIRTUAL, 1.0, 1.0)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)

    def __enter__(self) -> None:
        self._number += 1
        self._is_exceeded = False
        self._is_running = True

    def __exit__(self, *_: object) -> None:
        """End it. Raises EndlessStep also when the program swallowed the interruption and went on."""
        self._is_running = False
        if self._is_exceeded:
            raise _endless()

    def _tick(self, _number: int, _frame: Any) -> None:
        if not self._is_running:
            return
        self._seconds = self._seconds + 1 if self._seen == self._number else 0
        self._seen = self._number
        if self._seconds >= SECONDS:
            self._is_exceeded = True
            raise _endless()


STEP_LIMIT = StepLimit()
"""The limit of this process."""


def _endless() -> EndlessStep:
    return EndlessStep(f"a program made no port call for {SECONDS} seconds of processor time")
