"""What becomes of messages that their destinations do not take, or that have none.

While a destination does not confirm what is sent to it, it does not delay messages to others. A message without a confirmation
is never counted as sent. The transport waits for a confirmation that is late, and trusts the destination again when it comes.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.formats.undecodable import shown
from onceonly.model.errors import OnceOnlyError
from onceonly.model.message import Send
from onceonly.model.record import Answer

MOST_SILENT = 1000
"""Destinations that one connection remembers. Those beyond are waited for as if they had never been silent."""
SILENT_SECONDS = 1.0
"""Seconds to wait for silent destinations when a call sends to no others."""

_log = EventLogger(logging.getLogger("onceonly.transport"))
_LOGGED = LoggedKeys()
_events_log = EventLogger(logging.getLogger("onceonly.events"))
_LOGGED_EVENTS = LoggedKeys()
"""Endpoints and types of this process that were logged."""


class CopyOutcome(Enum):
    """What became of a copy of a message at one destination. `MISSING`: the destination does not exist."""

    TAKEN = "taken"
    REFUSED = "refused"
    MISSING = "missing"
    UNKNOWN = "unknown"


def combined_answer(send: Send, outcomes: Sequence[CopyOutcome | OnceOnlyError]) -> Answer:
    """Combine what became of the copies of one message. An event that has no destination is taken."""
    if CopyOutcome.REFUSED in outcomes:
        return Answer.REFUSED
    if any(each not in {CopyOutcome.TAKEN, CopyOutcome.MISSING} for each in outcomes):
        return Answer.UNKNOWN
    return Answer.REFUSED if send.to and CopyOutcome.TAKEN not in outcomes else Answer.TAKEN


def report_unsent(endpoint: str, destination: str, error: Exception) -> None:
    """Log why messages to one destination are not sent while the others of their batch are. Each reason once in a process."""
    if _LOGGED.add(endpoint, destination, str(error)):
        extra = {"endpoint": endpoint, "destination": shown(destination), "reason": str(error)}
        _log.warning("destination cannot be served, other messages are sent", extra=extra)


class SilentDestinations:
    """The destinations behind one address that did not confirm the last message in time."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Remember destinations that have not confirmed in time, and log those that are new."""
        for name in names:
            if name not in self._names and len(self._names) < MOST_SILENT:
                self._names.add(name)
                _log.warning("destination does not confirm messages", extra={"destination": shown(name)})

    def discard(self, name: str) -> None:
        if name in self._names:
            self._names.remove(name)
            _log.info("destination confirms messages again", extra={"destination": shown(name)})


class UnsubscribedEvents:
    """Counts the events of one transport that no queue had subscribed to, by type. `counts` has what was not taken yet."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, number: int = 1) -> None:
        """Count events of this type. Log the first of each type in this process."""
        self.counts[kind] += number
        if _LOGGED_EVENTS.add(self._endpoint, kind):
            _events_log.warning("event dropped: no subscriber", extra={"endpoint": self._endpoint, "type": kind})

    def take(self) -> Counter[str]:
        taken, self.counts = self.counts, Counter()
        return taken

    def put_back(self, counts: Counter[str]) -> None:
        self.counts += counts
