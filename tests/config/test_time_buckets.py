"""One constant says into how many time buckets a retention is divided; settings, advice and claims agree on it."""

from datetime import timedelta

from onceonly.config.retention import default_interval, interval_problem
from onceonly.model.ring import BUCKETS, TIME_BUCKETS, bucketing_for

RETENTION = timedelta(hours=TIME_BUCKETS)


def test_a_bucket_is_its_share_of_the_retention_everywhere() -> None:
    """For the claims themselves, the longest interval of a janitor, and the interval by default."""
    hour = timedelta(hours=1)
    bucketing = bucketing_for(RETENTION // timedelta(milliseconds=1))
    assert (bucketing.width, bucketing.full, bucketing.buckets) == (3_600_000, TIME_BUCKETS, BUCKETS)
    assert interval_problem(hour, RETENTION) is None
    assert interval_problem(hour + timedelta(seconds=1), RETENTION) is not None
    assert default_interval(timedelta(seconds=TIME_BUCKETS)) == timedelta(milliseconds=500)


def test_four_more_buckets_than_the_retention_needs() -> None:
    """One under way, one for clocks that differ, two to spare. The number is stored as tables: never change it."""
    assert BUCKETS == TIME_BUCKETS + 4 == 16
