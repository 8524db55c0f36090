"""Which history of a database this process has seen: a fail-over to a replica that lagged, or a restore, goes back in it.

Commits that were answered may be gone then, and nothing in the database shows it. So what was seen last is in the memory of
the process, which survives the fail-over.
"""

import logging
from collections.abc import Mapping

from msgspec import Struct

from onceonly.formats.log_events import EventLogger

_log = EventLogger(logging.getLogger("onceonly.sql"))
_SEE = "docs/how-to/outages.md#a-fail-over-that-lost-commits"


class DatabaseHistory(Struct, frozen=True):
    """How far a database has come.

    `name` changes with each fail-over, such as a timeline or the number of a server. `positions` grow with each commit. There
    is one for each stream of commits, by its name. `shown` is the position for people. Those of another `system`, which was
    not copied from the first, say nothing about its commits.
    """

    name: str
    positions: Mapping[str, int]
    shown: str = ""
    system: str = ""

    def __str__(self) -> str:
        where = f"{self.name} of system {self.system}" if self.system else self.name
        return f"{where} at {self.shown}" if self.shown else where

    def lacks(self, before: "DatabaseHistory") -> bool:
        """Return whether commits of `before` are certainly not in this history."""
        pairs = ((self.positions.get(stream, 0), position) for stream, position in before.positions.items())
        return self.system == before.system and any(now < then for now, then in pairs)


class HistoryWatch:
    """Compares the history of one database with what it was before, and logs what has been lost."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._last: DatabaseHistory | None = None

    def seen(self, now: DatabaseHistory | None) -> None:
        """Compare with the history seen before, and remember this one. None: the database does not tell."""
        before, self._last = self._last, now or self._last
        if before is None or now is None:
            return
        fields = {"database": self._database, "before": str(before), "now": str(now), "see": _SEE}
        if now.lacks(before):
            _log.critical("ALARM: database went back in time, commits are lost", extra=fields)
        elif (now.name, now.system) != (before.name, before.system):
            _log.warning("database failed over, commits may be lost", extra=fields)
