"""Units with a savepoint for each handler, while failures are recent.

Without savepoints a handler that fails ends its unit, and all of it runs again. So the messages after a failure run with
savepoints from the start, and a handler that fails then is undone alone.

The number of these messages bounds the repetitions. A unit that fails repeats half a batch on average. It fails without
savepoints only if none of the `BATCHES` batches before it failed. So at most 1 / (2 * e * BATCHES) of the other messages, less
than 2 %, run twice, whatever share of the messages fails.
"""

from onceonly.algorithms.delivery import BatchReport

BATCHES = 10
"""Full batches after a failure whose messages run with savepoints."""


class RecentFailures:
    """Whether a handler of this worker failed within the last ten full batches."""

    def __init__(self, batch_size: int) -> None:
        self._span = BATCHES * batch_size
        self._left = 0

    def __bool__(self) -> bool:
        """Return whether the next unit is isolated."""
        return self._left > 0

    def after(self, report: BatchReport, taken: int) -> None:
        """Learn from how a batch of `taken` deliveries ended."""
        self._left = self._span if report.failed else max(0, self._left - taken)
