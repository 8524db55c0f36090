"""the shared counters: counters in a mapped file. What a child counted is there for the parent even when the child was killed.

A child also marks here which message's handler is running. When it dies, its parent writes the mark into a list of deaths,
which later children read: so only the message whose handler was running is counted. All of it is memory: no system call.
"""

import mmap
import struct
import time
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

WIDTH = 16  # numbers in a row: 128 bytes, two cache lines, so children do not slow one another down
DEATHS = 64  # deaths that are remembered; an older one is overwritten
FIELDS = 4  # numbers of a death: two of the key, the attempt count, and when
REMEMBERED_MS = 600_000  # for which a death is evidence: its message comes again long before
SINCE = 2  # instants behind them: when the last death was seen that one handler explains at most, and the last of several
BYTES = 8  # of one number; every write is one aligned store


class Column(IntEnum):
    """What is counted. TICK changes while the child lives. HELD is the number of its deliveries that are not acknowledged.

    RUNNING is how many handlers are running. LOW and HIGH are the two halves of their messages' keys, by exclusive or, and
    COUNTED the sum of their attempt counts: with one handler running, they are its own. STUCK is 1 once a handler has not
    ended in time, and STUCK_LOW, STUCK_HIGH and STUCK_COUNTED name its message.
    """

    TICK = 0
    RECEIVED = 1
    KNOWN = 2
    HANDLED = 3
    HELD = 4
    DEAD = 5
    RETRIED = 6
    RUNNING = 7
    LOW = 8
    HIGH = 9
    COUNTED = 10
    STUCK = 11
    STUCK_LOW = 12
    STUCK_HIGH = 13
    STUCK_COUNTED = 14


TICK, RECEIVED, KNOWN, HANDLED, HELD, DEAD, RETRIED, *_ = Column
_halves = struct.Struct("qq").unpack


class CounterRow:
    """The numbers of one child. One process writes, everyone reads."""

    def __init__(self, numbers: memoryview, start: int, deaths: int | None = None) -> None:
        """Stand at `start` in the shared counters's numbers; `deaths` is where the list of deaths begins, if there is one."""
        self._numbers = numbers
        self._start = start
        self._deaths = deaths

    def get(self, column: Column) -> int:
        """Read one number."""
        return int(self._numbers[self._start + column])

    def set(self, column: Column, number: int) -> None:
        """Write one number."""
        self._numbers[self._start + column] = number

    def add(self, column: Column, number: int = 1) -> None:
        """Add to one number; not atomic between processes, so each row has one writer."""
        self._numbers[self._start + column] += number

    def enter(self, key: bytes, attempts: int) -> None:
        """Mark that the handler of a message begins; `key` has 16 bytes."""
        numbers, start = self._numbers, self._start
        low, high = _halves(key)
        numbers[start + 8] ^= low
        numbers[start + 9] ^= high
        numbers[start + 10] += attempts
        numbers[start + 7] += 1

    def leave(self, key: bytes, attempts: int) -> None:
        """Mark that it has ended."""
        numbers, start = self._numbers, self._start
        low, high = _halves(key)
        numbers[start + 7] -= 1
        numbers[start + 8] ^= low
        numbers[start + 9] ^= high
        numbers[start + 10] -= attempts

    def is_stuck(self, key: bytes, attempts: int) -> None:
        """Mark that a handler does not end, so that this process has to."""
        low, high = _halves(key)
        self.set(Column.STUCK_LOW, low)
        self.set(Column.STUCK_HIGH, high)
        self.set(Column.STUCK_COUNTED, attempts)
        self.set(Column.STUCK, 1)

    def died(self, *, seen: bool) -> bool:
        """Clear the marks of a process that has ended. If `seen`, record which handler was running; returns whether one was.

        With several handlers running, none is recorded. Their messages run alone next, so the next death is unambiguous.
        """
        found, running = None, self.get(Column.RUNNING)
        if self.get(Column.STUCK):
            found = [self.get(Column(column)) for column in (Column.STUCK_LOW, Column.STUCK_HIGH, Column.STUCK_COUNTED)]
        elif running == 1:
            found = [self.get(Column(column)) for column in (Column.LOW, Column.HIGH, Column.COUNTED)]
        for column in range(Column.RUNNING, Column.STUCK_COUNTED + 1):
            self._numbers[self._start + column] = 0
        if not seen or self._deaths is None:
            return False
        self._numbers[self._deaths + DEATHS * FIELDS + (0 if found or not running else 1)] = _now()
        if found is None:
            return False
        slots = range(self._deaths, self._deaths + DEATHS * FIELDS, FIELDS)
        oldest = min(slots, key=lambda slot: self._numbers[slot + 3])
        self._numbers[oldest], self._numbers[oldest + 1], self._numbers[oldest + 2] = found
        self._numbers[oldest + 3] = _now()
        return True

    def explains(self) -> bool:
        """Return whether recent deaths on this host were seen, each with one handler running at most."""
        if self._deaths is None:
            return False
        explained, unclear = self._numbers[self._deaths + DEATHS * FIELDS :][:SINCE]
        old = _now() - REMEMBERED_MS
        return explained > old >= unclear

    def take_death(self, key: bytes) -> int | None:
        """Return the attempt count with which the run of a message began that ended with its process, and forget it."""
        if self._deaths is None:
            return None
        (low, high), old, found = _halves(key), _now() - REMEMBERED_MS, None
        for slot in range(self._deaths, self._deaths + DEATHS * FIELDS, FIELDS):
            if self._numbers[slot] == low and self._numbers[slot + 1] == high and self._numbers[slot + 3]:
                if self._numbers[slot + 3] > old:
                    found = max(self._numbers[slot + 2], found or 0)
                self._numbers[slot + 3] = 0
        return found


def _now() -> int:
    return time.time_ns() // 1_000_000


class SharedCounters:
    """A file of 64-bit counters, mapped into every process that opens it; one row for each child."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path | str, rows: int) -> Self:
        """Make a board of zeros, in place of what was there."""
        Path(path).write_bytes(bytes((rows * WIDTH + DEATHS * FIELDS + SINCE) * BYTES))
        return cls(Path(path))

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a board that exists."""
        return cls(Path(path))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return (len(self._numbers) - DEATHS * FIELDS - SINCE) // WIDTH

    def row(self, index: int) -> CounterRow:
        """Give one row. Raises IndexError when there is none."""
        if not 0 <= index < self.rows:
            raise IndexError(f"index {index} is out of range: the shared counters have {self.rows} rows")
        return CounterRow(self._numbers, index * WIDTH, self.rows * WIDTH)

    def total(self, column: Column) -> int:
        """Add one column up over all rows."""
        return sum(self.row(index).get(column) for index in range(self.rows))

    def close(self) -> None:
        """Unmap the file; what was counted stays in it."""
        self._numbers.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
