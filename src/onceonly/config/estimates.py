"""What deduplication data takes: what was measured on a sample, and what follows for a rate. Arithmetic only."""

import math
from datetime import timedelta
from typing import NamedTuple

from msgspec import Struct

from onceonly.model.ring import TIME_BUCKETS
from onceonly.model.wording import FOREVER

A_YEAR = timedelta(days=365)


class TableSample(Struct, frozen=True, kw_only=True):
    """A sample in one table: the bytes that it took with its indexes, and the seconds to get rid of all of it."""

    bytes: int
    eviction: float


class Measurements(Struct, frozen=True, kw_only=True):
    """A sample of this many rows in each table."""

    rows: int
    bucket: TableSample
    arrivals: TableSample
    tokens: TableSample


class Estimate(Struct, frozen=True, kw_only=True):
    """What is kept of one kind at the most: rows, bytes, and how what is old goes.

    `evicted` describes how in words. It happens every `every` seconds and takes `seconds`, which is this `share` of the time of
    one connection.
    """

    kind: str
    rows: int
    row_bytes: float
    bytes: int
    evicted: str
    every: float
    seconds: float
    share: float


def estimate(found: Measurements, *, rate: float, retention: timedelta, in_flight: timedelta, whole: bool) -> list[Estimate]:
    """Compute size and cleanup cost for `rate` messages per second. A token lives as long as its message is `in_flight`.

    `whole` means that a bucket is emptied in a time that hardly depends on how much is in it. Claims that are kept forever are
    those of one year: each year adds as many.
    """
    grows = retention >= FOREVER
    kept = A_YEAR.total_seconds() if grows else retention.total_seconds()
    width = 0 if grows else kept / TIME_BUCKETS
    portion = min(1000.0, rate * 60)
    each_claim, each_token = found.arrivals.eviction / found.rows, found.tokens.eviction / found.rows
    a_slice = found.bucket.eviction * (1 if whole else rate * width / found.rows)
    never = Eviction("never: this many each year", 0, 0)
    kinds = (
        (
            "claims of messages from endpoints",
            found.bucket,
            kept + width,
            never if grows else Eviction("one bucket at a time", width, a_slice),
        ),
        (
            "claims of foreign messages",
            found.arrivals,
            kept,
            never if grows else Eviction("in small batches", portion / rate, each_claim * portion),
        ),
        ("tokens", found.tokens, in_flight.total_seconds(), Eviction("when its message is handled", 1 / rate, each_token)),
    )
    return [_estimate(kind, measured.bytes / found.rows, rate * lives, how) for kind, measured, lives, how in kinds]


class Eviction(NamedTuple):
    """How what is old goes: in words, every this many seconds (0 for never), and how many it takes then."""

    words: str
    every: float
    seconds: float


def _estimate(kind: str, row_bytes: float, rows: float, how: Eviction) -> Estimate:
    return Estimate(
        kind=kind,
        rows=math.ceil(rows),
        row_bytes=round(row_bytes, 1),
        bytes=math.ceil(rows * row_bytes),
        evicted=how.words,
        every=how.every,
        seconds=how.seconds,
        share=how.seconds / how.every if how.every else 0,
    )
