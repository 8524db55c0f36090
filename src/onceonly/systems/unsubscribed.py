"""Events that no queue had subscribed to, so that the broker dropped them."""

import logging
from collections import Counter

from onceonly.formats.log_events import EventLogger, LoggedKeys

_log = EventLogger(logging.getLogger("onceonly.events"))
_LOGGED = LoggedKeys()
"""Endpoints and types of this process that were logged."""


class UnsubscribedEvents:
    """Counts what one transport sent, by type. `counts` has what was not taken yet."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, number: int = 1) -> None:
        """Count events of this type. Log the first of each type in this process."""
        self.counts[kind] += number
        if _LOGGED.add(self._endpoint, kind):
            _log.warning("event dropped: no subscriber", extra={"endpoint": self._endpoint, "type": kind})

    def take(self) -> Counter[str]:
        """Return what was counted since the last call."""
        taken, self.counts = self.counts, Counter()
        return taken

    def put_back(self, counts: Counter[str]) -> None:
        """Count again what could not be stored."""
        self.counts += counts
