"""The notifier between commits and the relay of this process: whoever commits rings, in any thread, and goes on at once."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from onceonly.model.identity import Identity
from onceonly.model.record import Record

CommittedRecord: TypeAlias = Identity | Record
"""A record that is committed for sure, or the identity of one that may be."""

NotifierListener = Callable[[Sequence[CommittedRecord]], None]


MOST_EARLY = 1000
"""Notifications that are kept for a listener that is expected."""


class _ListenerEntry(NamedTuple):
    loop: asyncio.AbstractEventLoop
    hear: NotifierListener
    is_threadsafe: bool


class Notifier:
    """One endpoint's. Losing a ring costs time only: what was committed is found by the next look into the store.

    While a listener is expected, notifications are kept for it.
    """

    def __init__(self) -> None:
        self._early: deque[Sequence[CommittedRecord]] = deque(maxlen=MOST_EARLY)
        self._listening: list[_ListenerEntry] = []
        self._expected = 0

    @property
    def is_heard(self) -> bool:
        """Whether there is a listener in a loop that is not closed."""
        return any(not each.loop.is_closed() for each in self._listening)

    @property
    def is_expected(self) -> bool:
        """Whether a listener will come once the servers are back that it waits for."""
        return self._expected > 0

    @contextmanager
    def expected(self) -> Iterator[None]:
        """Enclose opening what will listen, such as waiting for servers that are away."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    @contextmanager
    def listen(self, hear: NotifierListener, *, is_threadsafe: bool = False) -> Iterator[None]:
        """Call `hear` with each notification: in this event loop, or in the thread that commits if it `is_threadsafe`.

        To wake an event loop of another thread for each commit costs both threads more than the rest of a notification.
        """
        entry = _ListenerEntry(asyncio.get_running_loop(), hear, is_threadsafe)
        self._listening.append(entry)
        while self._early:
            hear(self._early.popleft())
        try:
            yield
        finally:
            self._listening.remove(entry)

    def notify(self, told: Sequence[CommittedRecord]) -> None:
        """Call the last listener that was added, if there is one. Never raises or waits."""
        here = _running_loop()
        for loop, hear, is_threadsafe in reversed(tuple(self._listening)):
            if is_threadsafe and not loop.is_closed():
                hear(told)
                return
            try:
                (loop.call_soon if loop is here else loop.call_soon_threadsafe)(hear, told)
            except RuntimeError:  # that loop is closed
                continue
            return
        if self._expected:
            self._early.append(told)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a thread without an event loop
        return None
