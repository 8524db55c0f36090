"""What others have left at a broker and nothing can read: it costs itself, and is logged once."""

import logging

from onceonly.formats.log_events import EventLogger

MOST_SHOWN = 120
"""Characters of such a text that are shown."""
MOST_LOGGED = 1000
"""Different things that a process logs. More than these come from a program that goes on writing them."""

_log = EventLogger(logging.getLogger("onceonly.transport"))
_LOGGED: set[tuple[str, str, str]] = set()


def shown(text: str | bytes) -> str:
    r"""Return a text in ASCII, with escapes such as `\n`, and cut."""
    cut = text[: MOST_SHOWN + 1]
    letters = cut.decode("latin-1") if isinstance(cut, bytes) else cut
    escaped = letters.encode("unicode_escape").decode()
    return escaped if len(escaped) <= MOST_SHOWN else f"{escaped[:MOST_SHOWN]}..."


def report_unreadable(endpoint: str, what: str, found: str | bytes, reason: str) -> None:
    """Log that a thing at the broker cannot be read, and what becomes of it. Each thing once in a process."""
    key = (endpoint, what, shown(found))
    if key in _LOGGED or len(_LOGGED) >= MOST_LOGGED:
        return
    _LOGGED.add(key)
    _log.warning("unreadable data at the broker", extra={"endpoint": endpoint, "what": what, "found": key[2], "reason": reason})
