"""Noticing that no process maintains an endpoint, in a process that does not do it itself."""

import asyncio
import logging

from onceonly.formats.log_events import EventLogger
from onceonly.model.maintenance_journal import MaintenanceJournal, unmaintained_reason
from onceonly.model.ring import TIME_BUCKETS
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Journals
from onceonly.ports.ring import Ring
from onceonly.runtime.maintenance.tasks import late_buckets

LONGEST_PAUSE_MS = 60_000
"""Milliseconds between two looks, at most. It is less where time buckets are shorter."""
ANSWER_SECONDS = 2.0
"""Seconds that a look may take."""
_log = EventLogger(logging.getLogger("onceonly.janitor"))


async def read_unmaintained(journals: Journals | None, ring: Ring | None, now: int) -> str:
    """Return why an endpoint counts as not maintained, "" if it is. Raises CommitFailed, OutcomeUnknown, SetupError."""
    journal = await journals.read() if journals is not None else None
    late = await late_buckets(ring) if ring is not None else ()
    return unmaintained_reason(journal, late, now)


class MaintenanceWatch:
    """Logs once that no process maintains an endpoint, and once that one does again."""

    def __init__(self, endpoint: str, *, retention: int, clock: Clock) -> None:
        """Watch an endpoint that keeps claims for `retention` milliseconds, 0 if it keeps none."""
        self._endpoint = endpoint
        self._clock = clock
        self._pause = min(LONGEST_PAUSE_MS, retention // TIME_BUCKETS // 2) if retention else LONGEST_PAUSE_MS
        self._looked_at: int | None = None
        self.reason = ""
        """Why the endpoint counts as not maintained, as of the last look. Empty if it does not."""

    async def look(self, journals: Journals | None, ring: Ring | None) -> None:
        """Look, if the last look is long ago. Never raises for a store that does not answer: the next look is soon."""
        now = self._clock.now()
        if self._looked_at is not None and 0 <= now - self._looked_at < self._pause:
            return
        self._looked_at = now
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reason = await read_unmaintained(journals, ring, now)
        except Exception:  # noqa: BLE001 - whatever a driver raises: what the process is there for reports it
            return
        self._note(reason)

    def note(self, journal: MaintenanceJournal | None) -> None:
        """Take in a journal that was read anyway."""
        self._note(unmaintained_reason(journal, journal.late if journal is not None else (), self._clock.now()))

    def _note(self, reason: str) -> None:
        if reason and not self.reason:
            _log.warning("endpoint is not maintained", extra={"endpoint": self._endpoint, "reason": reason})
        elif not reason and self.reason:
            _log.info("endpoint is maintained again", extra={"endpoint": self._endpoint})
        self.reason = reason
