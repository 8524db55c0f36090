"""The maintenance journal: what was done last for an endpoint, what fails, and what is late. Pure: instants are arguments."""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from onceonly.model.health import Trouble
from onceonly.model.limits import StoredInt
from onceonly.model.ring import TIME_BUCKETS
from onceonly.model.wording import counted, in_words

OVERDUE_MS = 300_000
"""Milliseconds that a janitor may be overdue before that is reported, at least. Less where time buckets are shorter."""
RETRY_SECONDS = 60.0
"""Seconds after which a task that failed is done again, at the latest."""


class TaskRun(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one task went last: when it ended, how many milliseconds it took, and how much it did.

    `failing_since` is 0 unless it failed; `reason` says why. Instants are milliseconds since 1970.
    """

    at: StoredInt
    took: StoredInt = 0
    count: StoredInt = 0
    failing_since: StoredInt = 0
    reason: str = ""


class LateBucket(Struct, frozen=True, kw_only=True):
    """A bucket of claims that could have been rotated for this many milliseconds, and was not.

    It `stops` its messages when they come by now.
    """

    number: StoredInt
    late: StoredInt
    reason: str
    stops: bool = False


class MaintenanceJournal(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all janitors of an endpoint know: the tasks as they went last, by name; written by whoever leads.

    `interval` is how many milliseconds lie between two rounds, `retention` for how many the endpoint keeps what copies are
    known by, `by` names the process. `since` is when a janitor took over a journal that had not been maintained for long.
    """

    at: StoredInt
    interval: StoredInt
    retention: StoredInt = 0
    by: str = ""
    tasks: dict[str, TaskRun] = {}
    late: tuple[LateBucket, ...] = ()
    since: StoredInt = 0

    def is_due(self, task: str, every: float, now: int) -> bool:
        """Return whether a task is to be done again, `every` this many seconds, and sooner if it failed.

        It is as well when the clock that wrote it was ahead.
        """
        done = self.tasks.get(task)
        return done is None or not 0 <= now - done.at < (min(every, RETRY_SECONDS) if done.failing_since else every) * 1000

    def is_failing(self) -> bool:
        """Return whether some task failed when it was done last."""
        return any(done.failing_since for done in self.tasks.values())

    def overdue(self, now: int, *, since: int = 0) -> int:
        """Return how many milliseconds it is overdue, 0 if it is on time.

        Before `since`, and before a janitor took over, nothing was due: nothing was running.
        """
        rested = now - max(self.at, self.since, since)
        width = self.retention // TIME_BUCKETS or OVERDUE_MS  # the next buckets are ready for longer than that
        return rested if rested > max(3 * self.interval, min(OVERDUE_MS, width)) else 0

    def troubles(self, now: int, *, since: int = 0) -> Iterator[Trouble]:
        """Return what is wrong. Only a bucket that messages are waiting for stops anything. `since` is as in `overdue`."""
        for name, done in sorted(self.tasks.items()):
            if done.failing_since:
                yield Trouble(part="janitor", reason=f"{name}: {done.reason}", since=done.failing_since, stops=False)
        if overdue := self.overdue(now, since=since):
            words = f"no process ran the janitor, which is due every {in_words(self.interval / 1000)}"
            yield Trouble(part="janitor", reason=words, since=now - overdue, stops=False)
        for bucket in self.late:
            words = f"bucket {bucket.number} is not rotated: {bucket.reason}"
            yield Trouble(part="late bucket", reason=words, since=self.at - bucket.late, stops=bucket.stops)


class MaintenanceReport(Struct, frozen=True, kw_only=True):
    """What `Endpoint.maintain` did.

    * `tasks`: how many rows or records each task that was due has removed or sent, by its name in the log.
    * `troubles`: what failed, what is late, and why the rest was not done. Empty if all is well.
    """

    tasks: Mapping[str, int] = {}
    troubles: tuple[str, ...] = ()


def unmaintained_reason(journal: MaintenanceJournal | None, late: Sequence[LateBucket], now: int) -> str:
    """Return why an endpoint counts as not maintained by any process, "" if it is maintained.

    Without a journal it is new, until a time bucket is late. `late` buckets do not count while a janitor comes in time: it has
    its own reasons for them.
    """
    if journal is not None and not (overdue := journal.overdue(now)):
        return ""
    if journal is None and not late:
        return ""
    rested = (
        "no process has run its janitor"
        if journal is None
        else f"no process has run its janitor for {in_words(overdue / 1000)}"
    )
    if late:
        waits = "messages wait" if any(bucket.stops for bucket in late) else "messages will wait"
        comes = f"{waits} for {counted(len(late), 'time bucket')} that must be rotated"
    else:
        comes = "its expired claims and keys are not deleted"
    return f"{rested}, so {comes}. Run a worker or `onceonly janitor` for this endpoint"
