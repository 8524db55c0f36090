"""The history of a process: what its worker has counted, by the minute."""

from msgspec.structs import replace

from onceonly.algorithms.settlement import BatchReport
from onceonly.model.minutes import MINUTE_MS, Span, WorkHistory
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Backlog


class WorkRecorder:
    """Adds what was counted since the last call to the minute of the call, so a count may be one report late."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted = BatchReport()
        self._asked = 0
        self._stored = WorkHistory()
        self.history = WorkHistory()

    @property
    def asks(self) -> bool:
        """Whether the broker was not asked in this minute."""
        return self._clock.now() // MINUTE_MS != self._asked

    def learn(self, backlog: Backlog | None) -> None:
        """Add what the broker counted. None if it does not know; it is asked again in the next minute."""
        now = self._clock.now()
        self._asked = now // MINUTE_MS
        if backlog is not None:
            self.history = self.history.with_span(Span(waiting=backlog.waiting, oldest=backlog.oldest), now)

    def count(self, report: BatchReport, runs: Span) -> None:
        """Add what the worker has counted in total by now, and the runs of handlers since the last call."""
        before, self._counted = self._counted, report
        span = replace(
            runs,
            handled=report.handled - before.handled,
            failed=report.retried + report.dead - before.retried - before.dead,
            duplicates=report.known - before.known,
        )
        self.history = self.history.with_span(span, self._clock.now())

    def stored(self, history: WorkHistory, *, is_new: bool) -> None:
        """Note that a history was stored. With `is_new` the row of the process was gone.

        Maintenance removes the row of a process that was silent for an hour, and adds its history to that of ended processes.
        So what was stored before is not reported again, or it would count twice.
        """
        if is_new:
            self.history = self.history.minus(self._stored)
        self._stored = history
