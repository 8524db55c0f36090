"""Histories of work: bounded in time, summed over processes, with durations by bucket."""

import pytest

from onceonly.model.minutes import (
    LAST_BUCKET,
    MINUTE_MS,
    MINUTES,
    NO_WORK,
    QUARTER_MS,
    QUARTERS,
    Span,
    WorkHistory,
    bucket_end,
    bucket_of,
    total,
)

NOW = 1_795_000_020_000


def test_what_is_counted_is_in_the_present_minute_and_quarter() -> None:
    """More of the same minute is added to it."""
    history = NO_WORK.with_span(Span(handled=3), NOW).with_span(Span(handled=2, failed=1), NOW + 10_000)
    assert history.minutes == {NOW // MINUTE_MS: Span(handled=5, failed=1)}
    assert history.quarters == {NOW // QUARTER_MS: Span(handled=5, failed=1)}


def test_a_history_is_bounded() -> None:
    """However long a process runs, it has an hour of minutes and a day of quarters, and the present one of each."""
    history = NO_WORK
    for minute in range(2 * QUARTERS * 15):
        history = history.with_span(Span(handled=1), NOW + minute * MINUTE_MS)
    assert len(history.minutes) == MINUTES + 1
    assert len(history.quarters) == QUARTERS + 1
    assert sum(span.handled for span in history.minutes.values()) == MINUTES + 1


def test_spans_of_a_clock_that_is_wrong_are_dropped() -> None:
    """A machine whose clock is a day ahead does not remove what others counted."""
    right, wrong = NO_WORK.with_span(Span(handled=1), NOW), NO_WORK.with_span(Span(handled=9), NOW + 86_400_000)
    assert (right + wrong).until(NOW) == right
    near = NO_WORK.with_span(Span(handled=2), NOW + MINUTE_MS)
    assert near.until(NOW) == near


def test_processes_are_summed_and_of_the_queue_the_highest_is_taken() -> None:
    """All of them ask the same broker."""
    one = WorkHistory(minutes={7: Span(handled=1, waiting=5, oldest=30, runs={2: 1}), 8: Span(handled=1)})
    other = WorkHistory(minutes={7: Span(handled=2, duplicates=4, waiting=9, runs={2: 3, 4: 1})})
    assert total([one, other, NO_WORK]) == one + other
    assert (one + other).minutes == {
        7: Span(handled=3, duplicates=4, waiting=9, oldest=30, runs={2: 4, 4: 1}),
        8: Span(handled=1),
    }


def test_what_was_counted_before_is_taken_off() -> None:
    """Spans without anything new are left out, and counts are never negative."""
    before = WorkHistory(minutes={7: Span(handled=3, runs={2: 2}), 8: Span(failed=1)}, quarters={1: Span(handled=3)})
    after = WorkHistory(minutes={8: Span(failed=1), 9: Span()}, quarters={1: Span(handled=5, runs={2: 1})})
    left = after.minus(before)
    assert left == WorkHistory(minutes={9: Span()}, quarters={1: Span(handled=2, runs={2: 1})})
    assert left + before == WorkHistory(minutes={**before.minutes, 9: Span()}, quarters={1: Span(handled=5, runs={2: 1})})


@pytest.mark.parametrize("milliseconds", [0.0, 0.4, 1.0, 1.2, 3.0, 100.0, 999.0, 60_000.0, 14_000_000.0])
def test_a_duration_is_in_a_bucket_that_ends_after_it(milliseconds: float) -> None:
    """The bucket before ends earlier, or there is none."""
    bucket = bucket_of(milliseconds)
    assert milliseconds <= bucket_end(bucket) * 1.000001
    assert bucket == 0 or milliseconds > bucket_end(bucket - 1) * 0.999999


def test_the_longest_durations_share_a_bucket() -> None:
    """So there are never more than 49."""
    assert bucket_of(10.0**12) == LAST_BUCKET


def test_a_percentile_is_near_the_true_one() -> None:
    """Of 1,000 runs that take 1 to 1,000 ms."""
    runs: dict[int, int] = {}
    for milliseconds in range(1, 1001):
        runs[bucket_of(milliseconds)] = runs.get(bucket_of(milliseconds), 0) + 1
    span = Span(runs=runs)
    assert 500 / 1.41 <= (span.duration(0.5) or 0) <= 500 * 1.41
    assert 990 / 1.41 <= (span.duration(0.99) or 0) <= 990 * 1.41
    assert Span().duration(0.5) is None
