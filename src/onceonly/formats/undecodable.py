"""Data that cannot be decoded, stored or at a broker: what decoders raise, and a log of each thing, once in a process.

A dead letter that cannot be read is replaced by one that stands for it, so that it can be seen, exported and deleted.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from msgspec import MsgspecError, Struct

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import SchemaTooNew

UNDECODABLE = (MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""What decoding raises, whatever was stored."""
UNREADABLE = (SchemaTooNew, *UNDECODABLE)
"""What decoding records and dead letters raises, whatever was stored."""
REASON = "unreadable dead letter: "
MESSAGES_WAIT = "its messages wait"
"""What becomes of a record that cannot be read."""
MOST_STORED, MOST_AT_BROKER = 200, 120
"""Characters of each field that are logged."""

_log = EventLogger(logging.getLogger("onceonly"))
_logger = EventLogger(logging.getLogger("onceonly.transport"))
"""For what others have left at a broker."""
_Decoded = TypeVar("_Decoded")
_REPORTED, _REPORTED_LETTERS, _REPORTED_RECORDS, _REPORTED_AT_BROKER = LoggedKeys(), LoggedKeys(), LoggedKeys(), LoggedKeys()


_unreadable: ContextVar[set[str] | None] = ContextVar("unreadable", default=None)


@contextmanager
def noting_unreadable() -> Iterator[set[str]]:
    """Note the names of stored records that cannot be read, and whose messages wait, whether they are logged or not."""
    names: set[str] = set()
    token = _unreadable.set(names)
    try:
        yield names
    finally:
        _unreadable.reset(token)


def report_undecodable(what: str, key: object, error: Exception, outcome: str) -> None:
    """Log that something stored cannot be read, and what becomes of it."""
    key_shown = _in_ascii(key)
    if outcome == MESSAGES_WAIT:
        _note(key_shown)
    if _REPORTED.add(what, key_shown):
        fields = {"what": what, "key": key_shown, "reason": _reason(error), "outcome": outcome}
        _log.error("stored data unreadable", extra=fields)


def decode_or_report(decode: Callable[[], _Decoded], what: str, key: object, outcome: str) -> _Decoded | None:
    """Return what `decode` returns. None for what cannot be decoded, which is logged with what becomes of it."""
    try:
        return decode()
    except UNREADABLE as error:
        report_undecodable(what, key, error, outcome)
        return None


def report_record(source: object, id_: object, error: Exception) -> None:
    fields = {"source": _in_ascii(source), "id": _in_ascii(id_), "reason": _in_ascii(str(error))}
    _note(f"{fields['source']} {fields['id']}")
    if _REPORTED_RECORDS.add(fields["source"], fields["id"]):
        _log.error("record unreadable: its messages wait", extra=fields)


class StoredLetter(Struct, frozen=True):
    """Where a dead letter is stored, and its bytes there. `at` is in milliseconds since 1970, or 0."""

    key: str
    stored: bytes
    endpoint: str = ""
    at: int = 0


def readable_letter(row: StoredLetter, decode: Callable[[], DeadLetter]) -> DeadLetter:
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
    why = _reason(error)
    report_letter(row.key, why)
    return UnreadableLetter(
        endpoint=row.endpoint, reason=f"{REASON}{why}", headers=(), body=row.stored, at=row.at, stored_key=row.key
    )


def report_letter(key: object, why: str) -> None:
    fields = {"key": _in_ascii(key), "reason": why}
    if _REPORTED_LETTERS.add(fields["key"]):
        _log.error("dead letter unreadable", extra=fields)


def shown(text: str | bytes) -> str:
    r"""Return a text that others have left at a broker in ASCII, with escapes such as `\n`, and cut."""
    cut = text[: MOST_AT_BROKER + 1]
    letters = cut.decode("latin-1") if isinstance(cut, bytes) else cut
    escaped = letters.encode("unicode_escape").decode()
    return escaped if len(escaped) <= MOST_AT_BROKER else f"{escaped[:MOST_AT_BROKER]}..."


def report_unreadable(endpoint: str, what: str, found: str | bytes, reason: str) -> None:
    """Log that a thing at the broker cannot be read, and what becomes of it."""
    fields = {"endpoint": endpoint, "what": what, "found": shown(found), "reason": reason}
    if _REPORTED_AT_BROKER.add(endpoint, what, fields["found"]):
        _logger.warning("unreadable data at the broker", extra=fields)


def _note(name: str) -> None:
    if (names := _unreadable.get()) is not None:
        names.add(name)


def _in_ascii(value: object) -> str:
    return ascii(value)[:MOST_STORED]


def _reason(error: Exception) -> str:
    return ascii(str(error))[1:-1][:MOST_STORED]
