"""How long statements may take: reads that their caller gives up, and handlers where rows are locked for a long time.

A cancelled task ends its statement on most connections. It cannot on a MariaDB connection of an application's own engine, nor
behind a proxy that numbers connections differently, and a process that was killed cancels nothing. So a server ends such reads
as well, and they do not add up there.

After a lock time-out in a handler, the next units of messages do not wait for locks. Such a unit puts off each message that
does not get its lock, and handles the others. Where several processes change the same rows, it also puts off messages that
would have got their lock a moment later. So this state expires: only a lock time-out in a unit that waited prolongs it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum

_SECONDS: ContextVar[float | None] = ContextVar("onceonly_read_limit", default=None)


@contextmanager
def limited_reads(seconds: float) -> Iterator[None]:
    """Make servers end a SELECT of this task that takes longer, where a cancellation may not do it."""
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


def read_limit() -> float | None:
    return _SECONDS.get()


FIRST, MOST = 16, 64
"""Number of units that do not wait. Each further lock time-out in a row doubles it, up to the limit."""
CAREFUL_FOR = 200
"""Number of units after those that wait for `BATCH_LOCK_SECONDS` at most."""


class LockWait(Enum):
    """How long the handlers of a unit wait for a lock."""

    FULL = "until the timeout of the unit"
    BRIEF = "as long as for a unit with several messages"
    NONE = "the shortest time that the database supports"


class LongLocks:
    """Decides how long the units of messages of one engine wait."""

    def __init__(self) -> None:
        self._impatient = 0
        self._careful = 0
        self._next = FIRST
        self._repeats = 0

    def wait(self, *, isolated: bool) -> LockWait:
        """Return how long the next unit waits, and count it. An isolated unit that repeats another one is not counted."""
        if isolated and self._repeats:
            self._repeats -= 1
        elif self._impatient:
            self._impatient -= 1
        elif self._careful:
            self._careful -= 1
        if self._impatient:
            return LockWait.NONE
        if self._careful:
            return LockWait.BRIEF
        self._next = FIRST
        return LockWait.FULL

    def met(self, *, waited: bool = True, isolated: bool = False) -> None:
        """Note a lock time-out of a handler's statement, in a unit that waited or did not. An isolated unit is not repeated."""
        self._repeats += not isolated and self._repeats < MOST
        if waited and not self._impatient:  # else another unit met the same lock at the same time
            self._impatient, self._careful = self._next, CAREFUL_FOR
            self._next = min(2 * self._next, MOST)
