"""How long handlers ran, and how long their messages had waited, until the process reports it."""

from collections.abc import Sequence
from math import inf

from onceonly.model.message import Message
from onceonly.model.minutes import Span, bucket_of
from onceonly.ports.environment import Clock

LOOK_SECONDS = 0.1
"""Seconds between two looks at how long a message has waited. Those of the same time have waited about equally long."""


class RunTimes:
    """Counts the runs of the handlers of one endpoint in this process. This is on the hot path."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._runs: dict[int, int] = {}
        self._oldest: int | None = None
        self._looks_at = -inf

    def started(self, messages: Sequence[Message], seconds: float) -> None:
        """Note that a handler starts, at this time of a timer."""
        if seconds < self._looks_at:
            return
        self._looks_at = seconds + LOOK_SECONDS
        now = self._clock.now()
        for each in messages:
            if each.instant and (self._oldest is None or now - each.instant > self._oldest):
                self._oldest = max(0, now - each.instant)

    def ended(self, count: int, seconds: float) -> None:
        """Count the run of a handler of this many messages. A run that raised an error counts as well."""
        bucket = bucket_of(seconds * 1000)
        self._runs[bucket] = self._runs.get(bucket, 0) + count

    def take(self) -> Span:
        """Return what was counted since the last call."""
        span = Span(runs=self._runs, oldest=self._oldest)
        self._runs, self._oldest = {}, None
        return span
