"""How a loop reacts to its last batches: how much it takes next, how long it waits, and whether it uses savepoints."""

from onceonly.algorithms.settlement import BatchReport
from onceonly.ports.environment import RandomSource

CONFLICTED_FIRST_SECONDS, CONFLICTED_MOST_SECONDS = 0.005, 0.5
WAIT_SECONDS = 0.05
"""How long the handlers of a batch may wait for something else than the store, together: its rows are locked all the while."""
UNKNOWN_FIRST_SECONDS, UNKNOWN_MOST_SECONDS = 0.1, 2.0  # a server that is back is found within three seconds

BATCHES = 10
"""Full batches after a failure whose messages run in isolated units."""


class Backpressure:
    """Takes half after a lost race for rows, backs off in an outage, and comes back to full size when all is well.

    Waits are in seconds, double with every bad turn up to a cap, and are spread by chance between half and whole, so that
    workers that failed together do not meet again.
    """

    def __init__(self, batch_size: int, random: RandomSource, *, first: int | None = None) -> None:
        self._full = batch_size
        self._random = random
        self._conflicted = 0
        self._unknown = 0
        self.limit = first or batch_size

    def after(self, report: BatchReport, taken: int, waited: float = 0.0, asked: int | None = None) -> float:
        """Adapt to how a batch of `taken` deliveries ended. Returns the seconds to wait before the next.

        Its handlers `waited` this many seconds for something else than the store: batches of these stay small. At most `asked`
        deliveries were asked for; by default as many as the limit is. Of several batches that began with the same limit, only
        the first doubles it. Otherwise one moment without samples would make a full batch of twenty small ones.
        """
        if report.conflicted:
            self._conflicted += 1
            if report.conflicted > report.lost_race:
                self._halve(taken)
        elif report.postponed:  # slow handlers: what they cannot take now is better left to others
            self.limit = max(1, taken - report.postponed)
        elif not report.unknown:
            self._conflicted = 0
            few = max(1, int(taken * WAIT_SECONDS / waited)) if waited else self._full
            self.limit = min(self._full, max(self.limit, 2 * (asked or self.limit)), few)
        if report.unknown > report.needs_upgrade:  # perhaps one message ruins every unit it is in: soon it is alone
            self._halve(taken)
        if report.unknown:
            return self.after_outage()
        self._unknown = 0
        return self._wait(self._conflicted, CONFLICTED_FIRST_SECONDS, CONFLICTED_MOST_SECONDS) if report.conflicted else 0.0

    def after_outage(self) -> float:
        """Return how long to wait when the outcome is unknown or nothing could be taken."""
        self._unknown += 1
        return self._wait(self._unknown, UNKNOWN_FIRST_SECONDS, UNKNOWN_MOST_SECONDS)

    def after_fault(self, taken: int) -> float:
        """Return how long to wait after a bug. The one delivery that provokes it is soon alone."""
        self._halve(taken)
        return self.after_outage()

    def after_receiving(self) -> None:
        """Reset the wait after an outage that kept messages from being received."""
        self._unknown = 0

    def _halve(self, taken: int) -> None:
        self.limit = max(1, min(self.limit, taken) // 2)

    def _wait(self, times: int, first: float, most: float) -> float:
        grown = min(most, first * 2.0 ** min(times - 1, 30))
        return grown * (1 + self._random.fraction()) / 2


class RecentFailures:
    """Whether a handler failed within the last ten full batches. Then units are isolated: each handler is undone alone.

    Without that a handler that fails ends its unit, and all of it runs again. So the messages after a failure run in
    isolated units from the start.

    The number of these messages bounds the repetitions. A unit that fails repeats half a batch on average. It fails without
    isolation only if none of the `BATCHES` batches before it failed. So at most 1 / (2 * e * BATCHES) of the other messages,
    less than 2 %, run twice, whatever share of the messages fails.
    """

    def __init__(self, batch_size: int) -> None:
        self._span = BATCHES * batch_size
        self._left = 0

    def __bool__(self) -> bool:
        """Return whether the next unit is isolated."""
        return self._left > 0

    def after(self, report: BatchReport, taken: int, failed: int = 0) -> None:
        """Adapt to how a batch of `taken` deliveries ended, in which this number of runs of handlers `failed`.

        They may be more than the failed messages: a handler may have failed in a unit, and worked when that ran again.
        """
        self._left = self._span if report.failed or failed else max(0, self._left - taken)
