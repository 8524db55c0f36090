"""the shared counters: counters in a mapped file. What a child counted is there for the parent even when the child was killed.

A child also marks here which message's handler is running. When it dies, its parent writes the mark into a list of deaths,
which later children read: so only the message whose handler was running is counted. All of it is memory: no system call.

A broker may deliver messages of a dead process again before the parent has seen its death. So each child locks a byte of a
second file. The system releases the lock together with the connections of the child. Who has a suspect looks there first.
"""

import mmap
import os
import struct
import time
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

WIDTH = 24  # numbers in a row: 192 bytes, three cache lines, so children do not slow one another down
DEATHS = 64  # deaths that are remembered; an older one is overwritten
FIELDS = 4  # numbers of a death: two of the key, the attempt count (negative for one that is not blamed), and when
REMEMBERED_MS = 600_000  # for which a death is evidence: its message comes again long before
SINCE = 2  # instants behind them: when the last death was seen that one handler explains at most, and the last of several
BYTES = 8  # of one number; every write is one aligned store


class Column(IntEnum):
    """What is counted. TICK changes while the child lives. HELD is the number of its deliveries that are not acknowledged.

    RUNNING is how many handlers are running. LOW and HIGH are the two halves of their messages' keys, by exclusive or, and
    COUNTED the sum of their attempt counts: with one handler running, they are its own. STUCK is 1 once a handler has not
    ended in time, and STUCK_LOW, STUCK_HIGH and STUCK_COUNTED name its message. ALONE is 1 while RUNNING counts a message that
    runs alone, which is marked for as long as its record may exist. ALIVE is 1 from the start of a child until its death is
    recorded.
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
    ALONE = 15
    ALIVE = 16


TICK, RECEIVED, KNOWN, HANDLED, HELD, DEAD, RETRIED, *_ = Column
_halves = struct.Struct("qq").unpack


class CounterRow:
    """The numbers of one child. One process writes, everyone reads."""

    def __init__(
        self, numbers: memoryview, start: int, deaths: int | None = None, *, locks: "ProcessLocks | None" = None
    ) -> None:
        """Stand at `start` in the shared counters's numbers; `deaths` is where the list of deaths begins, if there is one."""
        self._numbers = numbers
        self._start = start
        self._deaths = deaths
        self._locks = locks

    def get(self, column: Column) -> int:
        return int(self._numbers[self._start + column])

    def set(self, column: Column, number: int) -> None:
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

    def died(self, *, seen: bool, blames: bool = True) -> bool:
        """Clear the marks of a process that has ended. If `seen`, record its death first, as `record_death` does."""
        blamed = seen and self.record_death(blames=blames)
        self.clear_marks()
        return blamed

    def clear_marks(self) -> None:
        for column in range(Column.RUNNING, Column.ALIVE + 1):
            self._numbers[self._start + column] = 0

    def record_death(self, *, blames: bool = True) -> bool:
        """Record which handler is running in a process that has ended, or is about to be killed. Returns whether one is blamed.

        With several handlers running, none is recorded. Their messages run alone next, so the next death is unambiguous.

        Without `blames` the supervisor killed the process for a reason of its own. That explains the death, and no running
        handler is counted. What ran alone is recorded as killed, so that its record can be removed. A handler that did not end
        in time is blamed all the same.
        """
        running = self.get(Column.RUNNING)
        found: tuple[int, int, int] | None = None
        if self.get(Column.STUCK):
            found = self.get(Column.STUCK_LOW), self.get(Column.STUCK_HIGH), self.get(Column.STUCK_COUNTED)
        elif blames and running == 1:
            found = self.get(Column.LOW), self.get(Column.HIGH), self.get(Column.COUNTED)
        if self._deaths is None:
            return False
        is_explained = found is not None or not running or not blames
        self._numbers[self._deaths + DEATHS * FIELDS + (0 if is_explained else 1)] = _now()
        if found is not None:
            low, high, attempts = found
            self._add_death(low, high, attempts)
        elif not blames and running == 1 and self.get(Column.ALONE):
            self._add_death(self.get(Column.LOW), self.get(Column.HIGH), _killed(self.get(Column.COUNTED)))
        return found is not None

    def occupy(self) -> None:
        """Note that this process fills the row, until its end."""
        if self._locks is not None:
            self._locks.hold(self._start // WIDTH)
            self.set(Column.ALIVE, 1)

    def awaits_record(self) -> bool:
        """Return whether another process has ended whose death is not recorded yet. Costs a system call for each row."""
        if self._locks is None or self._deaths is None:
            return False
        others = (start for start in range(0, self._deaths, WIDTH) if start != self._start)
        return any(self._numbers[start + Column.ALIVE] and not self._locks.is_held(start // WIDTH) for start in others)

    def explains(self) -> bool:
        """Return whether recent deaths on this host were seen, each with one handler running at most."""
        if self._deaths is None:
            return False
        explained, unclear = self._numbers[self._deaths + DEATHS * FIELDS :][:SINCE]
        old = _now() - REMEMBERED_MS
        return explained > old >= unclear

    def death_of(self, key: bytes) -> int | None:
        """Return the attempt count with which the run of a message began that ended with its process."""
        return max((attempts for attempts in self._deaths_of(key) if attempts >= 0), default=None)

    def killed_run_of(self, key: bytes) -> int | None:
        """Return the attempt count of a message's run alone that ended because the supervisor killed the process."""
        return max((_killed(attempts) for attempts in self._deaths_of(key) if attempts < 0), default=None)

    def remove_deaths(self, key: bytes, attempts: int) -> None:
        """Remove the deaths of a message's runs that began with at most `attempts`."""
        self._remove(key, range(attempts + 1))

    def remove_killed_runs(self, key: bytes, attempts: int) -> None:
        """Remove the runs of a message that were killed, and began with at most `attempts`."""
        self._remove(key, range(_killed(attempts), 0))

    def _add_death(self, low: int, high: int, attempts: int) -> None:
        oldest = min(self._slots(), key=lambda slot: self._numbers[slot + 3])
        self._numbers[oldest], self._numbers[oldest + 1], self._numbers[oldest + 2] = low, high, attempts
        self._numbers[oldest + 3] = _now()

    def _deaths_of(self, key: bytes) -> list[int]:
        old = _now() - REMEMBERED_MS
        return [self._numbers[slot + 2] for slot in self._slots_of(key) if self._numbers[slot + 3] > old]

    def _remove(self, key: bytes, attempts: range) -> None:
        for slot in self._slots_of(key):
            if self._numbers[slot + 2] in attempts:
                self._numbers[slot + 3] = 0

    def _slots_of(self, key: bytes) -> list[int]:
        low, high = _halves(key)
        numbers = self._numbers
        return [slot for slot in self._slots() if numbers[slot] == low and numbers[slot + 1] == high and numbers[slot + 3]]

    def _slots(self) -> range:
        start = self._deaths
        return range(0) if start is None else range(start, start + DEATHS * FIELDS, FIELDS)


def _killed(attempts: int) -> int:
    """Return the attempt count that is stored for a run that is not blamed: a negative one. And the other way round."""
    return -1 - attempts


class ProcessLocks:
    """Which processes live: a file with one locked byte for each. The system ends a lock together with its process."""

    def __init__(self, path: Path) -> None:
        import fcntl  # noqa: PLC0415 - not on Windows, where an application may run a worker without a supervisor

        self._fcntl = fcntl
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def hold(self, index: int) -> None:
        """Lock a byte until this process ends. A process that it forks does not hold it."""
        self._fcntl.lockf(self._file, self._fcntl.LOCK_EX | self._fcntl.LOCK_NB, 1, index)

    def is_held(self, index: int) -> bool:
        """Return whether another process holds a byte. Not for a byte of this process: the answer would release it."""
        try:
            self._fcntl.lockf(self._file, self._fcntl.LOCK_SH | self._fcntl.LOCK_NB, 1, index)
        except OSError:
            return True
        self._fcntl.lockf(self._file, self._fcntl.LOCK_UN, 1, index)
        return False

    def close(self) -> None:
        """Close the file. That ends all locks of this process."""
        os.close(self._file)


def _now() -> int:
    return time.time_ns() // 1_000_000


class SharedCounters:
    """A file of 64-bit counters, mapped into every process that opens it; one row for each child."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("q")
        self._locks = ProcessLocks(path.with_name(f"{path.name}-locks"))

    @classmethod
    def create(cls, path: Path | str, rows: int) -> Self:
        Path(path).write_bytes(bytes((rows * WIDTH + DEATHS * FIELDS + SINCE) * BYTES))
        return cls(Path(path))

    @classmethod
    def open(cls, path: Path | str) -> Self:
        return cls(Path(path))

    @property
    def rows(self) -> int:
        return (len(self._numbers) - DEATHS * FIELDS - SINCE) // WIDTH

    def row(self, index: int) -> CounterRow:
        """Return one row. Raises IndexError when there is none."""
        if not 0 <= index < self.rows:
            raise IndexError(f"index {index} is out of range: the shared counters have {self.rows} rows")
        return CounterRow(self._numbers, index * WIDTH, self.rows * WIDTH, locks=self._locks)

    def total(self, column: Column) -> int:
        return sum(self.row(index).get(column) for index in range(self.rows))

    def close(self) -> None:
        """Unmap the file; what was counted stays in it."""
        self._numbers.release()
        self._map.close()
        self._locks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
