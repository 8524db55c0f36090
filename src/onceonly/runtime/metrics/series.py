"""The numbers of one process, in a mapped file: rows by metric and attributes. A kill loses none of them.

The file begins with the number of bytes in use. Each row is its length in words, the length of its key in bytes, the key, and
its numbers. A row is written first and counted in afterwards, so a process that dies in between leaves the rows before it. One
process writes, others read: each number is one aligned word. The replacement of a killed process continues with the same file.
"""

import asyncio
import mmap
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
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

Row = tuple[Metric, tuple[str, ...]]
"""A metric, and the values of its attributes in their order."""
LAG_SECONDS = 0.25
"""Seconds between two measurements of the lag of the event loop."""


class Numbers(NamedTuple):
    """The numbers of a row: one, or one for each bucket of a histogram. `total` is the sum of the histogram's values."""

    counts: tuple[int, ...]
    total: float = 0.0

    def plus(self, other: "Numbers") -> "Numbers":
        return Numbers(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)), self.total + other.total)


class Instrument(Protocol):
    """What takes the values of one metric: `attributes` are in the order of the metric's."""

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        """Add to a counter, record a value of a histogram, or set a gauge."""


class Meter(Protocol):
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
        with path.open("wb") as file:
            file.truncate(size)
        return cls(path)

    def instrument(self, metric: Metric) -> Instrument:
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
        return self._numbers, self._floats

    def _rows(self) -> Iterator[tuple[Metric, tuple[str, ...], int]]:
        at, end = _FIRST, self._numbers[_USED] // WORD
        while at < end:
            length, key = self._numbers[at], self._numbers[at + 1]
            begin = (at + _HEAD) * WORD
            name, attributes = _decode(self._whole[begin : begin + key])
            metric = BY_NAME.get(name)
            if metric is not None and len(attributes) == len(metric.attributes):  # else of a program before a reload
                yield metric, attributes, at + _HEAD + _word_count(key)
            at += length

    def _new(self, metric: Metric, attributes: tuple[str, ...]) -> int:
        key = _encode((metric.name, attributes))
        at = max(_FIRST, self._numbers[_USED] // WORD)
        width = len(metric.buckets) + 2 if metric.kind is MetricKind.HISTOGRAM else 1
        length = _HEAD + _word_count(len(key)) + width
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
    def __init__(self, file: SeriesFile, metric: Metric) -> None:
        self._file, self._metric = file, metric
        self._numbers, _ = file.words
        self._at: dict[tuple[str, ...], int] = {}

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        at = self._at.get(attributes)
        if at is None:
            at = self._at[attributes] = self._file.find(self._metric, attributes)
        if at:
            self._numbers[at] += int(value)


class GaugeInstrument(CounterInstrument):
    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        at = self._at.get(attributes)
        if at is None:
            at = self._at[attributes] = self._file.find(self._metric, attributes)
        if at:
            self._numbers[at] = int(value)


class HistogramInstrument:
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
        found: dict[Row, Numbers] = {}
        for file in self._files:
            for row, numbers in file.read():
                before = found.get(row)
                found[row] = numbers if before is None else before.plus(numbers)
        return found

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def series_path(folder: Path, process: int) -> Path:
    return folder / f"metrics-{process}"


def _word_count(length: int) -> int:
    return -(-length // WORD)


async def record_lag(instrument: Instrument, process: int, look: Callable[[], None], *, every: float = LAG_SECONDS) -> None:
    """Record by how much a timer is late, several times a second, until cancelled; then call `look`, which must not raise."""
    loop, attributes = asyncio.get_running_loop(), (str(process),)
    while True:
        due = loop.time() + every
        await asyncio.sleep(every)
        instrument.add(attributes, max(0.0, loop.time() - due))
        look()


class PoolConnections(NamedTuple):
    """The connections of the pools of one system, such as "postgresql": `state` is "used" or "idle"."""

    system: str
    state: str
    number: int


def pool_connections() -> list[PoolConnections]:
    """Count the connections of all pools. Imports nothing: a process without a SQL database has none."""
    opened = sys.modules.get("onceonly.sql.database")
    pools = {} if opened is None else opened.pool_use()
    return [
        PoolConnections(system, state, number)
        for system, use in pools.items()
        for state, number in (("used", use.used), ("idle", use.idle))
    ]
