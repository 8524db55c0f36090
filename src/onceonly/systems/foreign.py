"""What others have left at a broker and nothing can read: it costs itself, and is logged once."""

import logging

from onceonly.formats.log_events import EventLogger, LoggedKeys

MOST_SHOWN = 120
"""Characters of such a text that are shown."""

_log = EventLogger(logging.getLogger("onceonly.transport"))
_LOGGED = LoggedKeys()


def shown(text: str | bytes) -> str:
    r"""Return a text in ASCII, with escapes such as `\n`, and cut."""
    cut = text[: MOST_SHOWN + 1]
    letters = cut.decode("latin-1") if isinstance(cut, bytes) else cut
    escaped = letters.encode("unicode_escape").decode()
    return escaped if len(escaped) <= MOST_SHOWN else f"{escaped[:MOST_SHOWN]}..."


def report_unreadable(endpoint: str, what: str, found: str | bytes, reason: str) -> None:
    """Log that a thing at the broker cannot be read, and what becomes of it. Each thing once in a process."""
    text = shown(found)
    if _LOGGED.add(endpoint, what, text):
        _log.warning(
            "unreadable data at the broker", extra={"endpoint": endpoint, "what": what, "found": text, "reason": reason}
        )
