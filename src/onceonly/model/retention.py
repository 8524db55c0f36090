"""How long one endpoint's records and marks are kept in documents, what that was before, and what can be known for sure.

A change takes effect while processes are at work. Some of them read the new value up to `GRACE_MS` later, by clocks that
differ. So a change is an *era* of its own, and what was made in an era is kept for as long as that era says. Arithmetic only.
"""

from datetime import timedelta

from msgspec import Struct

from onceonly.model.limits import StoredInt
from onceonly.model.ring import Undecidable
from onceonly.model.wording import FOREVER, FOREVER_MS

__all__ = ["FOREVER", "FOREVER_MS", "Era", "Retention", "always", "expiry", "in_milliseconds"]

MILLISECOND = timedelta(milliseconds=1)
CLOCK_MARGIN_MS = 3_600_000
"""Milliseconds for which things are kept beyond their time in documents: what clocks may differ by."""
GRACE_MS = CLOCK_MARGIN_MS
"""Milliseconds after a change for which a process may still act by the retention before it."""
AHEAD_PART = 6
"""Which part of the retention a message may be ahead of the clock, as in the time buckets of a SQL database."""
LAST_INSTANT = 1 << 61
"""An instant that no clock shows: what is kept until then is kept forever."""
MOST_ERAS = 100


class Era(Struct, frozen=True):
    """A time in which one retention held: from `since` on, in milliseconds since 1970, for `kept` milliseconds."""

    since: StoredInt
    kept: StoredInt


class Retention(Struct, frozen=True):
    """The eras of one endpoint, the latest one last. There is at least one."""

    eras: tuple[Era, ...]

    @property
    def latest(self) -> int:
        """How many milliseconds the latest change asks for."""
        return self.eras[-1].kept

    def kept(self, now: int) -> int:
        """Return for how many milliseconds a record or a mark is kept that is made, or looked at, now.

        A process that has not read a shorter retention yet handles copies that are older than that. So the longer one holds
        for a while.
        """
        return max([self.latest, *(before.kept for before, after in self._changes() if now < after.since + GRACE_MS)])

    def horizon(self, now: int) -> int:
        """Return the instant from which on all is known: a message that was sent before may have been forgotten.

        What was made in an era may be gone after the time of that era, also when a later one is longer. And in an era all may
        be deleted that is older then.
        """
        ends = [after.since + GRACE_MS for _, after in self._changes()]
        return max(_horizon(era, end, now) for era, end in zip(self.eras, [*ends, now], strict=True))

    def undecidable_reason(self, instant: int, now: int) -> Undecidable | None:
        """Return why it cannot be decided whether an unknown message of this instant was handled. An instant of 0 is none."""
        if not instant:
            return None
        if instant < self.horizon(now):
            return Undecidable.TOO_OLD
        ahead = max(self.latest // AHEAD_PART, CLOCK_MARGIN_MS)
        return Undecidable.TOO_NEW if instant > now + ahead else None

    def changed(self, kept: int, now: int) -> "Retention":
        """Return it with another retention from now on. Eras that make no difference any more are left out."""
        if kept == self.latest:
            return self
        since = max(now, self.eras[-1].since + 1)
        eras = (*self.eras, Era(since, kept))
        longest = max(era.kept for era in eras)
        first = 0
        while first < len(eras) - 1 and (eras[first + 1].since + GRACE_MS + longest < now or len(eras) - first > MOST_ERAS):
            first += 1
        return Retention(eras[first:])

    def _changes(self) -> list[tuple[Era, Era]]:
        return list(zip(self.eras, self.eras[1:], strict=False))


def always(kept: int) -> Retention:
    """Return a retention that was never changed."""
    return Retention((Era(0, kept),))


def in_milliseconds(duration: timedelta) -> int:
    return duration // MILLISECOND


def expiry(now: int, kept: int) -> int:
    """Return until when something is kept that is made now, with the margin; 0 forever."""
    return 0 if kept >= FOREVER_MS else now + kept + CLOCK_MARGIN_MS


def _horizon(era: Era, end: int, now: int) -> int:
    """Return the instant before which something may be gone because of one era."""
    deleted = min(now, end) - era.kept
    return deleted if era.since + era.kept >= now else max(deleted, min(now - era.kept, end))
