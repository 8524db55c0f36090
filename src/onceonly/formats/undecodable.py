"""Stored data that cannot be decoded: what decoders raise, and a log of each, once in a process."""

import logging

from msgspec import MsgspecError

from onceonly.formats.log_events import EventLogger

UNDECODABLE = (MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What decoding raises, whatever was stored."""
MOST_REPORTED, SHOWN = 1000, 200
"""How many of them a process logs, and the characters of each field."""
_log = EventLogger(logging.getLogger("onceonly"))
_REPORTED: set[tuple[str, str]] = set()


def report_undecodable(what: str, key: object, error: Exception, outcome: str) -> None:
    """Log that something stored cannot be read, and what becomes of it. Each thing once in a process."""
    found = (what, ascii(key)[:SHOWN])
    if found in _REPORTED or len(_REPORTED) >= MOST_REPORTED:
        return
    _REPORTED.add(found)
    reason = ascii(str(error))[1:-1][:SHOWN]
    _log.error("stored data unreadable", extra={"what": what, "key": found[1], "reason": reason, "outcome": outcome})
