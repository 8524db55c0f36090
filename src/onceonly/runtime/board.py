"""The board: counters in a mapped file. What a child counted is there for the parent even when the child was killed."""

import mmap
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

WIDTH = 8  # numbers in a row: 64 bytes, one cache line, so children do not slow one another down
BYTES = 8  # of one number; every write is one aligned store


class Column(IntEnum):
    """What is counted. TICK says that the child lives, HELD how many deliveries it holds unacknowledged just now."""

    TICK = 0
    RECEIVED = 1
    KNOWN = 2
    HANDLED = 3
    HELD = 4
    DEAD = 5
    RETRIED = 6


TICK, RECEIVED, KNOWN, HANDLED, HELD, DEAD, RETRIED = Column


class Row:
    """The numbers of one child. One process writes, everyone reads."""

    def __init__(self, numbers: memoryview, start: int) -> None:
        """Stand at `start` in the board's numbers."""
        self._numbers = numbers
        self._start = start

    def get(self, column: Column) -> int:
        """Read one number."""
        return int(self._numbers[self._start + column])

    def set(self, column: Column, number: int) -> None:
        """Write one number."""
        self._numbers[self._start + column] = number

    def add(self, column: Column, number: int = 1) -> None:
        """Add to one number; not atomic between processes, so each row has one writer."""
        self._numbers[self._start + column] += number


class Board:
    """A file of 64-bit counters, mapped into every process that opens it; one row for each child."""

    def __init__(self, path: Path) -> None:
        """Map the file."""
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._numbers = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path | str, rows: int) -> Self:
        """Make a board of zeros, in place of what was there."""
        Path(path).write_bytes(bytes(rows * WIDTH * BYTES))
        return cls(Path(path))

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a board that exists."""
        return cls(Path(path))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._numbers) // WIDTH

    def row(self, index: int) -> Row:
        """Give one row. Raises IndexError when there is none."""
        if not 0 <= index < self.rows:
            raise IndexError(f"the board has {self.rows} rows, and none with index {index}")
        return Row(self._numbers, index * WIDTH)

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
