"""Stored data that cannot be decoded: what decoders raise, and a log of each, once in a process."""

import logging

from msgspec import MsgspecError

from onceonly.formats.log_events import EventLogger, LoggedKeys

UNDECODABLE = (MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What decoding raises, whatever was stored."""
SHOWN = 200
"""Characters of each field of it that are logged."""
_log = EventLogger(logging.getLogger("onceonly"))
_REPORTED = LoggedKeys()


def report_undecodable(what: str, key: object, error: Exception, outcome: str) -> None:
    """Log that something stored cannot be read, and what becomes of it. Each thing once in a process."""
    shown, reason = ascii(key)[:SHOWN], ascii(str(error))[1:-1][:SHOWN]
    if _REPORTED.add(what, shown):
        _log.error("stored data unreadable", extra={"what": what, "key": shown, "reason": reason, "outcome": outcome})
