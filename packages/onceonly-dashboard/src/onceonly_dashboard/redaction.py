"""What `redact=` hides: bodies, headers and names of messages, and the texts of exceptions, which may repeat them."""

import logging
import re
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from onceonly.algorithms.intake import OTHER_BODY
from onceonly.formats.cloudevents import attribute_of
from onceonly.formats.log_events import EventLogger
from onceonly.model.dead_letter import DeadLetter, UnreadableLetter
from onceonly.model.errors import SetupError
from onceonly.model.failure_group import FailureGroup, failure_group
from onceonly.model.message import FailureKind, Headers, Message
from onceonly.model.ring import Undecidable
from onceonly.operations.previews import HIDDEN

HIDDEN_TEXT = "hidden by redact="

Redact = Callable[[Message], Message]
"""Returns the message that may be shown."""

_CONSTANT_REASONS = frozenset({FailureKind.TIMEOUT, FailureKind.KILLED})
"""Kinds of failures whose reasons are constant texts."""
_ATTRIBUTES = ("id", "source", "type", "subject", "datacontenttype", "time")
_RAISED = re.compile(r"[^\W\d][\w.]*(?=: |$)")
_BEGIN = re.compile(r"(?:  \+ Exception Group )?Traceback \(most recent call last\):")
_FRAME = re.compile(r'(?:  \| )?  File ".*", line \d+, in .*')
_SOURCE = re.compile(r"(?:  \| )?    .*|(?:  \| )?  \[Previous line repeated \d+ more times?\]")
_CLASS = re.compile(r"(?:  \| )?[^\W\d][\w.<>]*(?=:|$)")

_log = EventLogger(logging.getLogger("onceonly.dashboard"))


def check_redact(redact: Any) -> Redact | None:
    """Check `redact=`. Raises SetupError."""
    if redact is not None and not callable(redact):
        raise SetupError(f"redact must be a function that returns the message to show, not {type(redact).__name__}")
    checked: Redact | None = redact
    return checked


def redacted(letter: DeadLetter, redact: Redact | None) -> DeadLetter:
    """Return the letter as it may be shown. Its key is another one, so take that from the letter itself.

    The hook gets a message without source and id where the letter has none. If it changes the message, reasons keep the class
    of their exception, and tracebacks the frames of their first exception. If it fails, everything is hidden,
    and so are the bytes of an unreadable letter.
    """
    if redact is None:
        return letter
    if isinstance(letter, UnreadableLetter):  # the hook could not know what to hide in its bytes
        return replace(letter, body=b"")
    message = letter.message or Message(id="", source="", type="", body=letter.body, headers=letter.headers)
    shown = _call_hook(message, redact)
    if shown == message:
        return letter
    if shown is None:
        shown = Message(id=HIDDEN_TEXT, source=HIDDEN_TEXT, type=HIDDEN_TEXT, body=b"")
        headers = tuple((name, HIDDEN) for name, _ in letter.headers)
    else:
        headers = _headers(letter, message, shown)
    return replace(
        _without_texts(letter, tracebacks=True), body=shown.body, headers=headers, message=shown if letter.message else None
    )


def _headers(letter: DeadLetter, message: Message, shown: Message) -> Headers:
    """Return the headers of a letter without what the hook removed or changed in its message: they repeat it."""
    kept = {name.lower(): value for name, value in shown.headers}
    before = {name.lower() for name, _ in message.headers}
    attributes = {name for name in _ATTRIBUTES if getattr(message, name) != getattr(shown, name)}
    attributes |= {name for name, _ in set(message.extensions) - set(shown.extensions)}
    return tuple(
        (
            name,
            HIDDEN if attribute_of(name) in attributes else kept.get(name.lower(), HIDDEN) if name.lower() in before else value,
        )
        for name, value in letter.headers
    )


def redacted_group(letter: DeadLetter, redact: Redact | None) -> FailureGroup:
    """Return the group of a letter as it may be shown: a place in the code stays, a text of an exception does not."""
    view = redacted(letter, redact)
    return failure_group(letter if view is letter else replace(_without_texts(letter, tracebacks=False), message=view.message))


def _call_hook(message: Message, redact: Redact) -> Message | None:
    """Return what the hook returns, or None if it fails."""
    try:
        shown = redact(message)
    except Exception as error:  # noqa: BLE001 - a hook of the application. Its text may contain what it should hide
        _log.warning("redact failed, the message is hidden", extra={"error": type(error).__name__})
        return None
    if not isinstance(shown, Message):
        raise SetupError(f"redact returned {type(shown).__name__}; return a Message")
    return shown


def _without_texts(letter: DeadLetter, *, tracebacks: bool) -> DeadLetter:
    """Hide the texts of exceptions in the reasons, and in the tracebacks as well if `tracebacks`."""
    last = letter.history[-1].kind if letter.history else None
    history = tuple(
        replace(
            each,
            reason=_without_text(each.reason, each.kind),
            traceback=without_texts(each.traceback) if tracebacks else each.traceback,
        )
        for each in letter.history
    )
    return replace(letter, reason=_without_text(letter.reason, last), history=history)


def _without_text(reason: str, kind: FailureKind | None) -> str:
    """Return a reason without what an exception says. Texts of this library that name nothing of a message stay."""
    if kind in _CONSTANT_REASONS or reason == OTHER_BODY or any(reason == each.value for each in Undecidable):
        return reason
    raised = _RAISED.match(reason) if kind is FailureKind.EXCEPTION else None
    return f"{raised[0]}: {HIDDEN_TEXT}" if raised else HIDDEN_TEXT


def without_texts(traceback: str) -> str:
    """Return the frames of the first exception in a traceback, and its class.

    What follows is hidden, also further exceptions: a text of several lines can look like a traceback. So is all of a traceback
    whose beginning was cut off.
    """
    lines = traceback.split("\n")
    if not _BEGIN.fullmatch(lines[0]):
        return HIDDEN_TEXT if traceback else ""
    for number, line in enumerate(lines[1:], 1):
        if not (_FRAME.fullmatch(line) or _SOURCE.fullmatch(line)):
            name = _CLASS.match(line)
            return "\n".join([*lines[:number], f"{name[0]}: {HIDDEN_TEXT}" if name else HIDDEN_TEXT])
    return traceback
