"""How long data is kept: deduplication data, by the settings that decide how late a copy may come, and the message journal."""

from collections.abc import Iterator
from datetime import timedelta

from msgspec import Struct

from onceonly.config.deduplication import ControlMessages, is_duration
from onceonly.model.errors import SetupError
from onceonly.model.retry import Retry
from onceonly.model.ring import TIME_BUCKETS
from onceonly.model.wording import in_words

LONGEST_INTERVAL = timedelta(minutes=1)
"""How long a janitor rests between two rounds unless something else is set: it looks at a few short tables."""


class RetentionPromise(Struct, frozen=True, kw_only=True):
    """What an endpoint lets come late: copies by its retries, letters that a person retries, and commits of transactions."""

    retry: Retry
    timeout: float
    manual_retry: timedelta
    max_commit: timedelta

    def problems(self, kept_by: str, retention: timedelta) -> Iterator[str]:
        """Return, with the arithmetic, why what `kept_by` keeps for `retention` would be forgotten too early."""
        span = self.retry_span()
        if retention.total_seconds() <= span:
            yield (
                f"{kept_by}: retention of {in_words(retention)} is not longer than the longest span of "
                f"retries, {self._arithmetic()} = {in_words(span)}. Make the retention longer, or reduce "
                "attempts, timeout, delays or manual_retry"
            )
        yield from self.commit_problems(kept_by, retention)

    def commit_problems(self, kept_by: str, retention: timedelta) -> Iterator[str]:
        """Return why the answer to a client's key would be forgotten while its transaction may still be committed."""
        if retention <= self.max_commit:
            yield (
                f"{kept_by}: retention of {in_words(retention)} is not longer than "
                f"max_commit={in_words(self.max_commit)}, the longest duration of a transaction. Make the "
                "retention longer, or max_commit shorter"
            )

    def sweep_problems(self, sweep_after: timedelta) -> Iterator[str]:
        """Return why a sweeper would end transactions that are still at work."""
        if sweep_after <= self.max_commit:
            yield (
                f"Tokens: sweep_after of {in_words(sweep_after)} is not longer than "
                f"max_commit={in_words(self.max_commit)}, the longest duration of a transaction: running "
                "transactions would be cancelled. Make sweep_after longer, or max_commit shorter"
            )

    def retry_span(self) -> float:
        """Return the seconds between the first attempt at a message and the end of the last one that is promised."""
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
    """Return, with the arithmetic, why a janitor that works so rarely would come too late for a slice of time."""
    width = retention / TIME_BUCKETS
    if interval <= width:
        return None
    return (
        f"janitor_interval of {in_words(interval)} is longer than one time bucket, retention / "
        f"{TIME_BUCKETS} = {in_words(retention)} / {TIME_BUCKETS} = {in_words(width)}: messages would "
        "wait for the janitor. Make the interval shorter, or the retention longer"
    )


def control_problem(max_commit: timedelta, control: ControlMessages) -> str | None:
    """Return, with the arithmetic, why control messages would give up a transaction that may still be committed."""
    if max_commit <= control.max_commit:
        return None
    return (
        f"max_commit of {in_words(max_commit)} is longer than "
        f"ControlMessages(max_commit={in_words(control.max_commit)}). Make it shorter, or make the "
        f"other one longer; its delays ({in_words(control.span)} in total) must be longer than it, "
        f"and its retention ({in_words(control.retention)}) at least delays + max_commit"
    )


SHORTEST_KEPT, LONGEST_KEPT = timedelta(minutes=1), timedelta(days=366)
FEWEST_ROWS, MOST_ROWS = 1000, 1_000_000_000


class Journal(Struct, frozen=True, kw_only=True):
    """The journal of messages, for the conversation page of the dashboard. Raises SetupError that lists all problems.

    Events are kept for `keep` at least, and for half as long again at most while a worker or `onceonly janitor` runs. They are
    in four tables, of which one is written at a time for half of `keep`. When it has about `rows` rows, no more events are
    written until the next table is due. It is off by default. It needs a SQL store. It contains no bodies, no header values and
    no texts of errors.

    What is handled and sent is recorded in the transaction that handles the message. Retries, duplicates, dead letters and what
    a relay sends are recorded about a second later, so a process that is killed may lose some of them.

    All endpoints of a database share the tables. If they differ, the longest `keep` holds for all. The others log a warning.
    """

    keep: timedelta = timedelta(days=1)
    rows: int = 1_000_000

    def __post_init__(self) -> None:
        if wrong := self.problems():
            raise SetupError("; ".join(wrong))

    def problems(self) -> tuple[str, ...]:
        """List the problems. Empty if there are none."""
        rules = (
            (
                is_duration(self.keep) and SHORTEST_KEPT <= self.keep <= LONGEST_KEPT,
                f"keep must be a timedelta from 1 minute to 366 days, not {self.keep!r}",
            ),
            (
                type(self.rows) is int and FEWEST_ROWS <= self.rows <= MOST_ROWS,
                f"rows must be a whole number from {FEWEST_ROWS:,} to {MOST_ROWS:,}, not {self.rows!r}",
            ),
        )
        return tuple(f"journal: {problem}" for holds, problem in rules if not holds)
