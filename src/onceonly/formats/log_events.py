"""Log events: a constant template and fields. The formatted text contains the fields, whatever formatter writes it."""

import logging
import sys
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from onceonly.model.errors import OnceOnlyError, error_text
from onceonly.model.escaping import escape, escape_json

if TYPE_CHECKING:
    import asyncio

_ExceptionInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

TRACEBACK = "traceback"
"""The field with a traceback as text. Formatters write it on lines of its own, as they write that of an exception."""


MOST_KEYS = 1000
"""Different keys of one `LoggedKeys`. More than these come from a program that makes new ones again and again."""


class LoggedKeys:
    """What a process has logged once and does not log again. Never larger than `MOST_KEYS`: after these, nothing is new."""

    def __init__(self) -> None:
        self._keys: set[Hashable] = set()

    def add(self, *key: Hashable) -> bool:
        """Store a key. Returns whether it is new, and its event has to be logged."""
        if key in self._keys or len(self._keys) >= MOST_KEYS:
            return False
        self._keys.add(key)
        return True

    def clear(self) -> None:
        """Begin as a process that has logged nothing."""
        self._keys.clear()


class FieldText:
    """Fields as text, `name=value` with spaces between. It is the one argument of a record's message."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join(f"{name}={plain(value)}" for name, value in self._fields.items())

    __repr__ = __str__


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Logs events of one logger: `log.warning("call failing", extra={"endpoint": "shop"})`.

    The record's `msg` is the same for each entry of one event: tools that group by it, such as Sentry, see one group. The
    fields are attributes of the record. One more attribute, `event`, is the template alone. Empty fields are left out.
    """

    def log(self, level: int, msg: object, *args: object, **options: object) -> None:
        """Log an event. `extra` has its fields. No other arguments than `extra` and `exc_info` are used."""
        if not self.logger.isEnabledFor(level):
            return
        event = str(msg) % args if args else str(msg)
        extra = options.get("extra")
        fields = {name: value for name, value in extra.items() if value != ""} if isinstance(extra, Mapping) else {}
        told = {name: value for name, value in fields.items() if name != TRACEBACK}
        file, line, function, _ = self.logger.findCaller(stacklevel=2)  # behind this method and LoggerAdapter's own
        record = self.logger.makeRecord(
            self.logger.name,
            level,
            file,
            line,
            f"{event.replace('%', '%%')} %s" if told else event,
            (FieldText(told),) if told else (),
            _exception(options.get("exc_info")),
            function,
            {"event": event} | fields,
        )
        if trace := fields.get(TRACEBACK):
            record.exc_text = escape(str(trace)).rstrip("\n")
        self.logger.handle(record)


class FailureLog:
    """Logs an error of what is repeated once, until it succeeds again. A bug is logged at ERROR with its traceback."""

    def __init__(self, log: EventLogger, event: str, *, endpoint: str, every_bug: bool = False) -> None:
        """Log `event`; with `every_bug`, a bug each time."""
        self._log, self._event, self._endpoint, self._every_bug = log, event, endpoint, every_bug
        self.is_failing = False

    def failed(self, error: Exception | None, *, level: int = logging.WARNING, reason: str = "") -> None:
        """Log an error, at `level` unless it is a bug. `reason` stands in for an error that is None."""
        is_bug = error is not None and not isinstance(error, OnceOnlyError)
        if self.is_failing and not (is_bug and self._every_bug):
            return
        self.is_failing = True
        self._log.log(
            logging.ERROR if is_bug else level,
            self._event,
            exc_info=error if is_bug else None,
            extra={"endpoint": self._endpoint, "reason": reason if error is None else error_text(error)},
        )

    def succeeded(self) -> bool:
        """Return whether it failed before."""
        has_failed, self.is_failing = self.is_failing, False
        return has_failed


def event_of(record: logging.LogRecord) -> str | None:
    """Return the template of an event, or None for an entry of another logger."""
    event = vars(record).get("event")
    text = record.getMessage()
    return event if isinstance(event, str) and (text == event or text.startswith(f"{event} ")) else None


def plain(value: object) -> str:
    """Return a value as it is written after `name=`: a word, or text in quotation marks with escapes."""
    text = str(value)
    if text and text.isprintable() and not any(c in text for c in ' "='):
        return text
    import json  # noqa: PLC0415 - rarely needed

    return escape_json(json.dumps(text, ensure_ascii=False))


def _exception(given: object) -> _ExceptionInfo | None:
    if isinstance(given, BaseException):
        return type(given), given, given.__traceback__
    return sys.exc_info() if given else None


def task_name(task: "asyncio.Task[Any]") -> str:
    """Return the name of a task and what it runs, such as `Task-7 (send_mail)`."""
    running: object = task.get_coro()
    return f"{task.get_name()} ({getattr(running, '__qualname__', type(running).__qualname__)})"
