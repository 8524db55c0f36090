"""The numbers of one process, in a mapped file: rows by metric and attributes. A kill loses none of them.

The file begins with the number of bytes in use. Each row is its length in words, the length of its key in bytes, the key, and
its numbers. A row is written first and counted in afterwards, so a process that dies in between leaves the rows before it. One
process writes, others read: each number is one aligned word. The replacement of a killed process continues with the same file.
"""

import mmap
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import msgspec

from onceonly.runtime.metrics.catalog import BY_NAME, Metric, MetricKind

SIZE = 2 * 1024 * 1024
"""Bytes of a file. It is sparse: what is not used takes no space. Rows beyond it are not counted."""
WORD = 8
_USED = 0
_FIRST = 1
_HEAD = 2
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[str, tuple[str, ...]]).decode


class Numbers(NamedTuple):
    """The numbers of a row: one, or one for each bucket of a histogram. `total` is the sum of the histogram's values."""

    counts: tuple[int, ...]
    total: float = 0.0

    def plus(self, other: "Numbers") -> "Numbers":
        """Add the numbers of two rows of the same metric up."""
        return Numbers(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)), self.total + other.total)


Row = tuple[Metric, tuple[str, ...]]
"""A metric, and the values of its attributes in their order."""


class Instrument(Protocol):
    """What takes the values of one metric: `attributes` are in the order of the metric's."""

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        """Add to a counter, record a value of a histogram, or set a gauge."""


class Meter(Protocol):
    """What has an instrument for each metric."""

    def instrument(self, metric: Metric) -> Instrument:
        """Return the instrument of a metric."""


class SeriesFile:
    """The file of one process. See `SharedSeries` for the sum of several."""

    def __init__(self, path: Path) -> None:
        """Map the file; the one that writes calls `reset_gauges` first."""
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._whole = memoryview(self._map)
        self._numbers: Any = self._whole.cast("q")  # typing has no memory of numbers
        self._floats: Any = self._whole.cast("d")

    @classmethod
    def create(cls, path: Path, size: int = SIZE) -> Self:
        """Make an empty file in place of what was there."""
        with path.open("wb") as file:
            file.truncate(size)
        return cls(path)

    def instrument(self, metric: Metric) -> Instrument:
        """Return what writes the rows of a metric."""
        match metric.kind:
            case MetricKind.COUNTER:
                return CounterInstrument(self, metric)
            case MetricKind.HISTOGRAM:
                return HistogramInstrument(self, metric)
            case MetricKind.GAUGE:
                return GaugeInstrument(self, metric)

    def reset_gauges(self) -> None:
        """Set all gauges to 0: those of the process before are of no worth."""
        for metric, _, at in self._rows():
            if metric.kind is MetricKind.GAUGE:
                self._numbers[at] = 0

    def find(self, metric: Metric, attributes: tuple[str, ...]) -> int:
        """Return where the numbers of a row begin, 0 where it cannot be stored. Adds the row if it is new."""
        for found, values, at in self._rows():
            if found is metric and values == attributes:
                return at
        return self._new(metric, attributes)

    def read(self) -> Iterator[tuple[Row, Numbers]]:
        """Read all rows as they are now."""
        for metric, attributes, at in self._rows():
            if metric.kind is MetricKind.HISTOGRAM:
                width = len(metric.buckets) + 1
                total = float(self._floats[at + width])
                yield (metric, attributes), Numbers(tuple(self._numbers[at : at + width]), total)
            else:
                yield (metric, attributes), Numbers((int(self._numbers[at]),))

    def close(self) -> None:
        """Unmap the file; what was counted stays in it."""
        for view in (self._floats, self._numbers, self._whole):
            view.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def words(self) -> tuple[Any, Any]:
        """The numbers as integers, and as floating point numbers."""
        return self._numbers, self._floats

    def _rows(self) -> Iterator[tuple[Metric, tuple[str, ...], int]]:
        at, end = _FIRST, self._numbers[_USED] // WORD
        while at < end:
            length, key = self._numbers[at], self._numbers[at + 1]
            begin = (at + _HEAD) * WORD
            name, attributes = _decode(self._whole[begin : begin + key])
            metric = BY_NAME.get(name)
            if metric is not None and len(attributes) == len(metric.attributes):  # else of a program before a reload
                yield metric, attributes, at + _HEAD + _words(key)
            at += length

    def _new(self, metric: Metric, attributes: tuple[str, ...]) -> int:
        key = _encode((metric.name, attributes))
        at = max(_FIRST, self._numbers[_USED] // WORD)
        width = len(metric.buckets) + 2 if metric.kind is MetricKind.HISTOGRAM else 1
        length = _HEAD + _words(len(key)) + width
        end = at + length
        if end > len(self._numbers):
            return 0
        begin = (at + _HEAD) * WORD
        self._whole[at * WORD : end * WORD] = bytes(length * WORD)  # a process that was killed here may have left something
        self._numbers[at], self._numbers[at + 1] = length, len(key)
        self._whole[begin : begin + len(key)] = key
        # Crash here: 1 the row is written, 2 it is not counted in, 3 the next process writes another one over it.
        self._numbers[_USED] = end * WORD
        return int(end - width)


class CounterInstrument:
    """Adds to the rows of a counter."""

    def __init__(self, file: SeriesFile, metric: Metric) -> None:
        self._file, self._metric = file, metric
        self._numbers, _ = file.words
        self._at: dict[tuple[str, ...], int] = {}

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        """Add a whole number."""
        at = self._at.get(attributes)
        if at is None:
            at = self._at[attributes] = self._file.find(self._metric, attributes)
        if at:
            self._numbers[at] += int(value)


class GaugeInstrument(CounterInstrument):
    """Sets the rows of a gauge."""

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        """Set a whole number."""
        at = self._at.get(attributes)
        if at is None:
            at = self._at[attributes] = self._file.find(self._metric, attributes)
        if at:
            self._numbers[at] = int(value)


class HistogramInstrument:
    """Records values in the rows of a histogram."""

    def __init__(self, file: SeriesFile, metric: Metric) -> None:
        self._file, self._metric = file, metric
        self._numbers, self._floats = file.words
        self._bounds, self._width = metric.buckets, len(metric.buckets) + 1
        self._at: dict[tuple[str, ...], int] = {}

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        """Record one value. A bucket has the values up to its bound, and the last one those above all."""
        at = self._at.get(attributes)
        if at is None:
            at = self._at[attributes] = self._file.find(self._metric, attributes)
        if at:
            self._numbers[at + bisect_left(self._bounds, value)] += 1
            self._floats[at + self._width] += value


class SharedSeries:
    """The files of all processes of one command, and their sums."""

    def __init__(self, folder: Path, processes: int) -> None:
        """Make an empty file for each process in this folder."""
        self._files = [SeriesFile.create(series_path(folder, index)) for index in range(processes)]

    def sums(self) -> dict[Row, Numbers]:
        """Add the rows of all processes up."""
        found: dict[Row, Numbers] = {}
        for file in self._files:
            for row, numbers in file.read():
                before = found.get(row)
                found[row] = numbers if before is None else before.plus(numbers)
        return found

    def close(self) -> None:
        """Unmap the files."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def series_path(folder: Path, process: int) -> Path:
    """Name the file of a process."""
    return folder / f"metrics-{process}"


def _words(length: int) -> int:
    return -(-length // WORD)
