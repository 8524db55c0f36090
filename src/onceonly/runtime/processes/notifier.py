"""The notifier between commits and the relay of this process: whoever commits rings, in any thread, and goes on at once."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from onceonly.model.identity import Identity
from onceonly.model.record import Record

CommittedRecord: TypeAlias = Identity | Record
"""A record that is committed for sure, or the identity of one that may be."""

NotifierListener = Callable[[Sequence[CommittedRecord]], None]


class Notifier:
    """One endpoint's. Losing a ring costs time only: what was committed is found by the next look into the store."""

    def __init__(self) -> None:
        self._listening: list[tuple[asyncio.AbstractEventLoop, NotifierListener]] = []
        self._expected = 0

    @property
    def is_heard(self) -> bool:
        """Whether there is a listener in a loop that is not closed."""
        return any(not loop.is_closed() for loop, _ in self._listening)

    @property
    def is_expected(self) -> bool:
        """Whether a listener will come once the servers are back that it waits for."""
        return self._expected > 0

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Enclose waiting for servers that are away."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    @contextmanager
    def listen(self, hear: NotifierListener) -> Iterator[None]:
        """Call `hear` in this event loop with each notification."""
        entry = (asyncio.get_running_loop(), hear)
        self._listening.append(entry)
        try:
            yield
        finally:
            self._listening.remove(entry)

    def notify(self, told: Sequence[CommittedRecord]) -> None:
        """Call the last listener that was added, if there is one. Never raises or waits."""
        here = _running_loop()
        for loop, hear in reversed(tuple(self._listening)):
            try:
                (loop.call_soon if loop is here else loop.call_soon_threadsafe)(hear, told)
            except RuntimeError:  # that loop is closed
                continue
            return


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a thread without an event loop
        return None
