"""Messages of Azure queues: a text of at most 64 KiB. Azure has no headers, so a message is a structured CloudEvent.

What was released has a mark before its text.
"""

import re

from onceonly.model.message import Headers
from onceonly.queues.messages import StructuredMessage, read_structured, write_structured

MESSAGE_ID = "azure-message-id"
"""The header of a foreign message without attributes that has the id that the service gave it."""
LONGEST_TEXT = 64 * 1024
MARK_BYTES = 64
"""The part of a text that is left for the mark of a release."""
_MARK = "onceonly-released:"
_refused = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search
"""Finds what XML does not have, or would change: a carriage return is read as a line feed."""
_mark = re.compile(rf"{_MARK}(\d{{1,9}})\n").match


def write(headers: Headers, body: bytes, *, due: int = 0) -> str | None:
    """Return the text for headers and a body as `encode` returns them. None if it is too long, or has a lone surrogate."""
    return write_structured(headers, body, fits=lambda text: size_of(text) <= LONGEST_TEXT - MARK_BYTES, due=due)


def write_plain(headers: Headers, body: bytes) -> str | None:
    """Return the text for a body of another format than CloudEvents. None if it is not text, is too long, or has headers.

    The content type has no place.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    is_plain = all(name == "content-type" for name, _ in headers) and not _refused(text)
    return text if is_plain and size_of(text) <= LONGEST_TEXT - MARK_BYTES else None


def read(text: str, message_id: str) -> StructuredMessage:
    """Return what is in a text without its mark. Never raises."""
    return read_structured(text, (MESSAGE_ID, message_id))


def marked(text: str, count: int) -> str | None:
    """Put a mark before a text: it was released when it had been delivered `count` times. None if it is too long then."""
    text = f"{_MARK}{count}\n{text}"
    return text if size_of(text) <= LONGEST_TEXT else None


def unmarked(text: str) -> tuple[str, int]:
    """Return a text without its mark, and after how many deliveries it was released; 0 if never."""
    found = _mark(text)
    return (text[found.end() :], int(found[1])) if found else (text, 0)


def size_of(text: str) -> int:
    """Return how many bytes a text has in XML, which is what the service gets."""
    return len(text.encode()) + 4 * text.count("&") + 3 * (text.count("<") + text.count(">"))
