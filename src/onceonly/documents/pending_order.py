"""The order of pending documents as one text, for services that sort by one property: time first, then the name."""

from onceonly.ports.documents import PendingDocument

_DIGITS = 19


def order_of(since: int, name: str) -> str:
    """Return a text that sorts by the time, then by the name of the document."""
    return f"{since:0{_DIGITS}}/{name}"


def before_of(instant: int) -> str:
    """Return a text that sorts behind every entry earlier than this instant, and before all others."""
    return f"{instant:0{_DIGITS}}"


def entry_of(order: str, key: str) -> PendingDocument:
    """Read an entry back."""
    return PendingDocument(key, int(order[:_DIGITS]))
