"""How long deduplication data must be kept: pure arithmetic over the settings that decide how late a copy may come."""

from collections.abc import Iterator
from datetime import timedelta

from msgspec import Struct

from onceonly.config.deduplication import ControlMessages
from onceonly.model.durations import in_words
from onceonly.model.retry import Retry
from onceonly.model.ring import TIME_BUCKETS

LONGEST_INTERVAL = timedelta(minutes=1)
"""How long a janitor rests between two rounds unless something else is set: it looks at a few short tables."""


class RetentionPromise(Struct, frozen=True, kw_only=True):
    """What an endpoint lets come late: copies by its retries, letters that a person retries, and commits of transactions."""

    retry: Retry
    timeout: float
    manual_retry: timedelta
    max_commit: timedelta

    def problems(self, kept_by: str, retention: timedelta) -> Iterator[str]:
        """Say, with the arithmetic, why what `kept_by` keeps for `retention` would be forgotten too early."""
        span = self.retry_span()
        if retention.total_seconds() <= span:
            yield (
                f"{kept_by}: retention of {in_words(retention)} is not longer than the longest span of "
                f"retries, {self._arithmetic()} = {in_words(span)}. Make the retention longer, or reduce "
                "attempts, timeout, delays or manual_retry"
            )
        yield from self.commit_problems(kept_by, retention)

    def commit_problems(self, kept_by: str, retention: timedelta) -> Iterator[str]:
        """Say why the answer to a client's key would be forgotten while its transaction may still be committed."""
        if retention <= self.max_commit:
            yield (
                f"{kept_by}: retention of {in_words(retention)} is not longer than "
                f"max_commit={in_words(self.max_commit)}, the longest duration of a transaction. Make the "
                "retention longer, or max_commit shorter"
            )

    def sweep_problems(self, sweep_after: timedelta) -> Iterator[str]:
        """Say why a sweeper would end transactions that are still at work."""
        if sweep_after <= self.max_commit:
            yield (
                f"Tokens: sweep_after of {in_words(sweep_after)} is not longer than "
                f"max_commit={in_words(self.max_commit)}, the longest duration of a transaction: running "
                "transactions would be cancelled. Make sweep_after longer, or max_commit shorter"
            )

    def retry_span(self) -> float:
        """Give the seconds between the first attempt at a message and the end of the last one that is promised."""
        attempts = 1 + self.retry.immediate + self.retry.delayed
        return attempts * self.timeout + self.retry.longest_delays() + self.manual_retry.total_seconds()

    def _arithmetic(self) -> str:
        at_once, delayed = 1 + self.retry.immediate, self.retry.delayed
        return (
            f"{at_once + delayed} attempts ({at_once} at once, {delayed} delayed) of {in_words(self.timeout)}"
            f" + delays of {in_words(self.retry.longest_delays())} + manual_retry of {in_words(self.manual_retry)}"
        )


def default_interval(retention: timedelta) -> timedelta:
    """Return the default pause of a janitor between two rounds: a minute, or less where slices are short."""
    return min(LONGEST_INTERVAL, retention / TIME_BUCKETS / 2)


def interval_problem(interval: timedelta, retention: timedelta) -> str | None:
    """Say, with the arithmetic, why a janitor that works so rarely would come too late for a slice of time."""
    width = retention / TIME_BUCKETS
    if interval <= width:
        return None
    return (
        f"janitor_interval of {in_words(interval)} is longer than one time bucket, retention / "
        f"{TIME_BUCKETS} = {in_words(retention)} / {TIME_BUCKETS} = {in_words(width)}: messages would "
        "wait for the janitor. Make the interval shorter, or the retention longer"
    )


def control_problem(max_commit: timedelta, control: ControlMessages) -> str | None:
    """Say, with the arithmetic, why control messages would give up a transaction that may still be committed."""
    if max_commit <= control.max_commit:
        return None
    return (
        f"max_commit of {in_words(max_commit)} is longer than "
        f"ControlMessages(max_commit={in_words(control.max_commit)}). Make it shorter, or make the "
        f"other one longer; its delays ({in_words(control.span)} in total) must be longer than it, "
        f"and its retention ({in_words(control.retention)}) at least delays + max_commit"
    )
