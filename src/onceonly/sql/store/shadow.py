"""Shadow mode: claims that decide nothing, and what they would have decided.

Every message is new. A unit claims those that are not claimed, and keeps records for these. For a message that is claimed
already it keeps no record: the record of the first run is still there, or was dispatched. So the tables are those of `History`
at any time, and can be used by it from one moment to the next.
"""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from sqlalchemy import Connection

from onceonly.formats.log_events import EventLogger
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import BeginResult
from onceonly.sql.store.claims import claim
from onceonly.sql.store.statements import StoreScope

NAMED = 3
"""Messages of a unit that are logged one by one. More have one line together."""
_log = EventLogger(logging.getLogger("onceonly.shadow"))


class ShadowOutcome(StrEnum):
    """What `History` would have done with a message that was handled."""

    KNOWN = "known"
    """It would have been skipped: it was handled before."""
    MISMATCHED = "mismatched"
    """It would have been a dead letter: its id was handled with another body."""
    UNDECIDABLE = "undecidable"
    """It would have been a dead letter: it is older than the retention, or from the future."""


Outcomes: TypeAlias = Mapping[Identity, ShadowOutcome]


class ShadowReport:
    """Counts the messages of one endpoint that were handled in shadow mode, by outcome, and logs them."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.counts: Counter[str] = Counter()

    def add(self, outcomes: Outcomes, messages: Sequence[Message], records: Sequence[Record]) -> None:
        """Add the messages of a unit that was committed, as far as they were handled."""
        handled = {record.identity for record in records}
        found = [message for message in messages if message.identity in outcomes and message.identity in handled]
        for outcome in ShadowOutcome:
            of_outcome = [message for message in found if outcomes[message.identity] is outcome]
            self.counts[outcome.value] += len(of_outcome)
            if len(of_outcome) > NAMED:
                self._log_together(outcome, len(of_outcome))
            else:
                for message in of_outcome:
                    self._log(outcome, message)
        self.counts += Counter()  # without zeros

    def take(self) -> Counter[str]:
        """Return what was counted since the last call."""
        taken, self.counts = self.counts, Counter()
        return taken

    def put_back(self, counts: Counter[str]) -> None:
        self.counts += counts

    def _log(self, outcome: ShadowOutcome, message: Message) -> None:
        where = {"endpoint": self._endpoint, "type": message.type, "source": message.source, "message_id": message.id}
        if outcome is ShadowOutcome.MISMATCHED:
            _log.warning("shadow: message id reused with another body, handled", extra={**where, "outcome": outcome.value})
        else:
            _log.info("shadow: message handled that would not have been", extra={**where, "outcome": outcome.value})

    def _log_together(self, outcome: ShadowOutcome, count: int) -> None:
        fields = {"endpoint": self._endpoint, "count": count, "outcome": outcome.value}
        _log.info("shadow: messages handled that would not have been", extra=fields)


def claim_all(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> tuple[BeginResult, Outcomes]:
    """Claim messages as `claim` does. All of them are new, and those that were claimed before have an outcome.

    Raises OtherSlice, ConflictError.
    """
    found = claim(connection, scope, messages)
    known = [*(record.identity for record in found.pending), *(message.identity for message in found.done)]
    outcomes = dict.fromkeys(known, ShadowOutcome.KNOWN)
    outcomes |= dict.fromkeys((message.identity for message in found.mismatched), ShadowOutcome.MISMATCHED)
    return BeginResult(new=tuple(messages)), outcomes


def count_name(endpoint: str) -> str:
    """Return the name under which an endpoint's counts are stored, next to those of events. No endpoint has such a name."""
    return f"shadow:{endpoint}"
