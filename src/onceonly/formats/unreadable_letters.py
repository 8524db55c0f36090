"""Dead letters that cannot be read: each stands for itself, and is logged once in a process."""

import logging
from collections.abc import Callable

from msgspec import Struct

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import SchemaTooNew

UNREADABLE = (SchemaTooNew, *UNDECODABLE)
"""What decoding raises, whatever was stored."""
REASON = "unreadable dead letter: "
SHOWN = 200
"""Characters of each field of an unreadable dead letter that are logged."""
_log = EventLogger(logging.getLogger("onceonly"))
_REPORTED = LoggedKeys()


class StoredLetter(Struct, frozen=True):
    """Where a dead letter is stored, and its bytes there. `at` is in milliseconds since 1970, or 0."""

    key: str
    stored: bytes
    endpoint: str = ""
    at: int = 0


def readable(row: StoredLetter, decode: Callable[[], DeadLetter]) -> DeadLetter:
    """Return the letter, or what stands for one that cannot be read, or whose key is not that of its row."""
    try:
        letter = decode()
        if letter.key == row.key:
            return letter
        raise ValueError("its contents have another key")
    except UNREADABLE as error:
        return stand_in(row, error)


def stand_in(row: StoredLetter, error: Exception) -> UnreadableLetter:
    """Return what stands for a dead letter that cannot be read, and log it."""
    why = ascii(str(error))[1:-1][:SHOWN]
    report(row.key, why)
    return UnreadableLetter(
        endpoint=row.endpoint, reason=f"{REASON}{why}", headers=(), body=row.stored, at=row.at, stored_key=row.key
    )


def report(key: object, why: str) -> None:
    """Log it, once in a process."""
    shown = ascii(key)[:SHOWN]
    if _REPORTED.add(shown):
        _log.error("dead letter unreadable", extra={"key": shown, "reason": why})
