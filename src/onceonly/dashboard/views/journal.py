"""Events of the message journal as pages show them, with the reasons of the dead letters among them."""

from collections.abc import Iterable, Mapping
from typing import Any

from onceonly.assembly.operations import OpenedOperations
from onceonly.dashboard.redaction import Redact, redacted
from onceonly.model.conversation import EXACT, JournalEvent

MOST_LETTERS = 20
"""Dead letters that one endpoint reads for a page. Events of others have a link and no reason."""
LONGEST_REASON = 200


async def reasons_of(opened: OpenedOperations, events: Iterable[JournalEvent], redact: Redact | None) -> dict[str, str | None]:
    """Return the reasons of the latest dead letters among these events, by key, as they may be shown.

    The reason of a letter that is gone is None.
    """
    keys = list(dict.fromkeys(each.letter for each in events if each.letter))[-MOST_LETTERS:]
    reasons: dict[str, str | None] = {}
    for key in keys:
        found = await opened.letters.get(key)
        is_own = found is not None and found.endpoint == opened.endpoint
        reasons[key] = redacted(found, redact).reason[:LONGEST_REASON] if found is not None and is_own else None
    return reasons


def shown_event(event: JournalEvent, reasons: Mapping[str, str | None]) -> dict[str, Any]:
    """Return what a page has of an event. `duration` is in microseconds. `letter` is empty for one that is gone."""
    is_gone = event.letter in reasons and reasons[event.letter] is None
    return {
        "outcome": event.outcome,
        "exact": event.outcome in EXACT,
        "at": event.at,
        "endpoint": event.endpoint,
        "process": event.process,
        "attempt": event.attempt or None,
        "duration": event.duration,
        "error": event.error,
        "letter": "" if is_gone else event.letter,
        "letter_gone": is_gone,
        "reason": reasons.get(event.letter) or "",
    }
