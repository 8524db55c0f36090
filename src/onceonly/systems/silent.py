"""Destinations that do not confirm what is sent to them. While one is silent, it does not delay messages to others.

A message without a confirmation is never counted as sent. The transport waits for a confirmation that is late, and trusts the
destination again when it comes.
"""

import logging
from collections.abc import Iterable

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.systems.foreign import shown

MOST_SILENT = 1000
"""Destinations that one connection remembers. Those beyond are waited for as if they had never been silent."""
SILENT_SECONDS = 1.0
"""Seconds to wait for silent destinations when a call sends to no others."""

_log = EventLogger(logging.getLogger("onceonly.transport"))
_LOGGED = LoggedKeys()


def report_unsent(endpoint: str, destination: str, error: Exception) -> None:
    """Log why messages to one destination are not sent while the others of their batch are. Each reason once in a process."""
    if _LOGGED.add(endpoint, destination, str(error)):
        extra = {"endpoint": endpoint, "destination": shown(destination), "reason": str(error)}
        _log.warning("destination cannot be served, other messages are sent", extra=extra)


class SilentDestinations:
    """The destinations behind one address that did not confirm the last message in time."""

    def __init__(self) -> None:
        """Begin with none."""
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
        """Trust a destination that has answered."""
        if name in self._names:
            self._names.remove(name)
            _log.info("destination confirms messages again", extra={"destination": shown(name)})
