"""What processes of an endpoint did in each minute of the last hour, and in each quarter of an hour of the last day.

Both levels are bounded, so a process stores at most 156 spans. Spans of several processes are summed when they are read.
"""

from collections.abc import Iterable, Mapping
from math import ceil, log2

from msgspec import Struct
from msgspec.structs import replace

MINUTE_MS = 60_000
QUARTER_MS = 15 * MINUTE_MS
MINUTES = 60
"""Minutes that are stored: the last hour."""
QUARTERS = 96
"""Quarters of an hour that are stored: the last day."""
AHEAD = 1
"""Spans after the present one that are stored: the clocks of two machines differ."""
LAST_BUCKET = 48
"""The bucket of the longest durations: 4 hours and more."""

DAY_MS = QUARTERS * QUARTER_MS


def bucket_of(milliseconds: float) -> int:
    """Return the bucket of a duration. Bucket 0 ends at 1 ms, and each further one ends at 1.41 times the one before."""
    return 0 if milliseconds <= 1 else min(LAST_BUCKET, ceil(2 * log2(milliseconds)))


def bucket_end(bucket: int) -> float:
    """Return the longest duration of a bucket, in milliseconds."""
    return float(2 ** (bucket / 2))


class Span(Struct, frozen=True, kw_only=True):
    """What was counted in one minute or quarter of an hour.

    * `failed`: messages that were retried or became dead letters.
    * `waiting`: the most messages that the broker counted in the queue; None if it was not asked.
    * `oldest`: the longest time from the sending of a message to the start of its handler, in milliseconds. A message that is
      delayed counts from the time for which it was sent. None if no handler started.
    * `runs`: how many runs of handlers took how long, by `bucket_of` their milliseconds.
    """

    handled: int = 0
    failed: int = 0
    duplicates: int = 0
    waiting: int | None = None
    oldest: int | None = None
    runs: Mapping[int, int] = {}

    def __add__(self, other: "Span") -> "Span":
        """Add what another process counted in the same time. Of `waiting` and `oldest` the highest is returned."""
        return Span(
            handled=self.handled + other.handled,
            failed=self.failed + other.failed,
            duplicates=self.duplicates + other.duplicates,
            waiting=_highest(self.waiting, other.waiting),
            oldest=_highest(self.oldest, other.oldest),
            runs={key: self.runs.get(key, 0) + other.runs.get(key, 0) for key in sorted({*self.runs, *other.runs})},
        )

    def minus(self, other: "Span") -> "Span":
        """Return what was counted here beyond the counts of an earlier state of this span."""
        runs = {key: left for key, count in self.runs.items() if (left := count - other.runs.get(key, 0)) > 0}
        return replace(
            self,
            handled=max(0, self.handled - other.handled),
            failed=max(0, self.failed - other.failed),
            duplicates=max(0, self.duplicates - other.duplicates),
            runs=runs,
        )

    def duration(self, part: float) -> float | None:
        """Return the milliseconds within which this part of all runs ended, such as 0.99, or None without runs.

        It is estimated from the buckets: at most 1.41 times too long or too short.
        """
        wanted, seen = part * sum(self.runs.values()), 0.0
        for bucket, count in sorted(self.runs.items()):
            if count and seen + count >= wanted:
                start = bucket_end(bucket - 1) if bucket else 0.0
                return start + (bucket_end(bucket) - start) * (wanted - seen) / count
            seen += count
        return None


class WorkHistory(Struct, frozen=True, kw_only=True):
    """Spans by number: that of a minute is its start in minutes since 1970, that of a quarter its start in quarters.

    A span that is not there was not observed: no process reported.
    """

    minutes: Mapping[int, Span] = {}
    quarters: Mapping[int, Span] = {}

    def __add__(self, other: "WorkHistory") -> "WorkHistory":
        return total((self, other))

    def with_span(self, span: Span, now: int) -> "WorkHistory":
        """Add to the present minute and quarter, and drop expired spans. `now` is in milliseconds since 1970."""
        more = WorkHistory(minutes={now // MINUTE_MS: span}, quarters={now // QUARTER_MS: span})
        return (self + more).until(now)

    def until(self, now: int) -> "WorkHistory":
        """Drop what is older than an hour or a day, and what is later than a clock can be ahead."""
        return WorkHistory(
            minutes=_recent(self.minutes, now // MINUTE_MS, MINUTES),
            quarters=_recent(self.quarters, now // QUARTER_MS, QUARTERS),
        )

    def minus(self, other: "WorkHistory") -> "WorkHistory":
        """Return what was counted here after an earlier state of it."""
        return WorkHistory(
            minutes=_difference(self.minutes, other.minutes), quarters=_difference(self.quarters, other.quarters)
        )


NO_WORK = WorkHistory()


def total(histories: Iterable[WorkHistory]) -> WorkHistory:
    """Add the histories of several processes."""
    some = list(histories)
    return WorkHistory(minutes=_summed([each.minutes for each in some]), quarters=_summed([each.quarters for each in some]))


def _highest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _summed(parts: Iterable[Mapping[int, Span]]) -> Mapping[int, Span]:
    found: dict[int, Span] = {}
    for part in parts:
        for number, span in part.items():
            before = found.get(number)
            found[number] = span if before is None else before + span
    return found


def _recent(spans: Mapping[int, Span], present: int, count: int) -> Mapping[int, Span]:
    return {number: span for number, span in spans.items() if present - count <= number <= present + AHEAD}


def _difference(spans: Mapping[int, Span], before: Mapping[int, Span]) -> Mapping[int, Span]:
    found = {number: span.minus(before[number]) if number in before else span for number, span in spans.items()}
    return {number: span for number, span in found.items() if number not in before or span.handled or _counts(span)}


def _counts(span: Span) -> bool:
    return bool(span.failed or span.duplicates or span.runs)
