"""Structured logs on standard error: as JSON lines, or as words and key=value pairs for people."""

import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import UTC, datetime
from types import TracebackType

from onceonly.algorithms.intake import OTHER_BODY
from onceonly.formats.log_events import TRACEBACK, EventLogger, event_of, plain
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import (
    CommitRefused,
    ConflictError,
    HandlerFailed,
    OnceOnlyError,
    PeerAway,
    RetryableError,
    UnsafeSettings,
    UpgradeRequired,
    error_text,
)
from onceonly.model.escaping import escape, escape_json
from onceonly.model.identity import Identity
from onceonly.model.message import FailureKind, Message, Send
from onceonly.model.record import Answer
from onceonly.model.retry import is_away, is_unhandled
from onceonly.model.ring import Undecidable
from onceonly.runtime.observe.observer import Point, PortCall

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", TRACEBACK}
_NOTHING = nullcontext()
_LOG_REQUESTS_AT_INFO = ("azure", "aiobotocore", "botocore", "httpx")
_LOG_STATEMENTS_AT_DEBUG = ("aiormq", "aiosqlite", "asyncio", "asyncmy", "pamqp", "psycopg", "pymongo")
NAMED = 3
"""Messages of a batch, up to which each has a line of its own: those that a process left when it died, or without a bucket."""


class Instant(int):
    """Milliseconds since 1970 as a field: a number in JSON lines, a date and time for people. 0 is now."""

    __slots__ = ()

    def __str__(self) -> str:
        return _iso(self / 1000) if self else "now"


class JsonLines(logging.Formatter):
    """One JSON object for each entry: time, level, logger, message, the entry's own fields, and the ids of the active span."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        event = event_of(record)
        entry |= {"message": record.getMessage() if event is None else event} | _fields(record, event) | _span_ids()
        if trace := _trace(self, record):
            entry[TRACEBACK] = trace
        return escape_json(json.dumps(entry, default=str))


class KeyValues(logging.Formatter):
    """Time, level and message, then the entry's own fields and the ids of the active span as key=value.

    A traceback follows on lines of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        event = event_of(record)
        pairs = [f"{key}={plain(value)}" for key, value in (_fields(record, event) | _span_ids()).items()]
        message = record.getMessage() if event is None else event
        line = " ".join([_time(record), record.levelname.lower(), message, *pairs])
        trace = _trace(self, record)
        return escape(f"{line}\n{trace}" if trace else line)


def log_to_stderr(*, json_lines: bool = False, level: str = "INFO") -> None:
    """Send the log entries of this process to standard error. Replaces the configuration of the root logger.

    Drivers that log each request at INFO are limited to warnings, unless the level is DEBUG. Drivers that log each statement
    at DEBUG are limited to INFO.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else KeyValues())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    is_debug = logging.getLogger().level <= logging.DEBUG
    for name in _LOG_REQUESTS_AT_INFO:
        logging.getLogger(name).setLevel(logging.NOTSET if is_debug else logging.WARNING)
    for name in _LOG_STATEMENTS_AT_DEBUG:
        logging.getLogger(name).setLevel(logging.INFO if is_debug else logging.NOTSET)


class Logs:
    """An observer that logs what a person should know: retries, dead letters, outages.

    A message that succeeds is logged at DEBUG, with its handler's duration. The first failure of a message is logged with its
    traceback, and so is a later one with another reason. The others have theirs in the dead letter.

    An outage is said once when a call begins to fail, and once when it works again. That something is left to processes of a
    newer version is said once for each endpoint: for this process that does not change.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = EventLogger(logger or logging.getLogger("onceonly"))
        self._failing: set[tuple[str, Point]] = set()
        self._unsafe: set[tuple[str, Point]] = set()
        self._outdated: set[str] = set()
        self._undecidable: set[tuple[str, Identity]] = set()

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        """Watch this call; handlers' failures show as retries and dead letters."""
        if call.point is not Point.HANDLE:
            return _LoggedCall(self, call)
        return _LoggedHandler(self._logger, call) if self._logger.isEnabledFor(logging.DEBUG) else _NOTHING

    def ended(self, call: PortCall, error: BaseException | None) -> None:
        key = (call.endpoint, call.point)
        if error is not None:
            self._log_failed(key, error)
            return
        if key in self._failing:
            self._failing.discard(key)
            self._unsafe.discard(key)
            self._logger.info("call recovered", extra={"endpoint": call.endpoint, "call": call.point.value})
        if call.point is Point.BEGIN:
            self._log_begun(call)
        elif call.point is Point.DEAD_LETTER:
            self._log_dead_letter(call.items[0])
        elif call.point is Point.RETRY_COPY:
            taken = [send for send, answer in zip(call.items, call.result, strict=True) if answer is Answer.TAKEN]
            self._log_all_retried(call.endpoint, taken)

    def _log_failed(self, key: tuple[str, Point], error: BaseException) -> None:
        if not isinstance(error, Exception) or isinstance(error, ConflictError | CommitRefused):
            return  # a crash, a lost race, a message's own failure: said elsewhere, or nothing to say
        if isinstance(error, OnceOnlyError) and not isinstance(error, RetryableError):
            return
        if isinstance(error, PeerAway):
            return  # said once for each peer: `peer failing`
        endpoint, point = key
        extra = {"endpoint": endpoint, "call": point.value, "reason": error_text(error)}
        if isinstance(error, UpgradeRequired):
            if endpoint not in self._outdated:
                self._outdated.add(endpoint)
                self._logger.warning("data of a newer version skipped: upgrade this process", extra=extra)
        elif isinstance(error, UnsafeSettings):
            self._failing.add(key)
            if key not in self._unsafe:  # also after another failure, such as a restart of the server
                self._unsafe.add(key)
                self._logger.error("ALARM: server settings unsafe, message handling suspended", extra=extra)
        elif key not in self._failing:
            self._failing.add(key)
            self._logger.warning("call failing", extra=extra)

    def _log_begun(self, call: PortCall) -> None:
        """Store which messages wait for their bucket, until their outcome is known."""
        undecidable = call.result.found.undecidable if call.result is not None else ()
        if self._undecidable:
            self._undecidable.difference_update((call.endpoint, message.identity) for message in call.items)
        self._undecidable.update(
            (call.endpoint, each.message.identity) for each in undecidable if each.reason is Undecidable.SLOT_NOT_READY
        )

    def _log_all_retried(self, endpoint: str, taken: Sequence[Send]) -> None:
        undecidable = {identity for name, identity in self._undecidable if name == endpoint}
        self._undecidable -= {(endpoint, identity) for identity in undecidable & {send.message.identity for send in taken}}
        self._log_delayed(endpoint, [each for each in taken if each.message.identity in undecidable], "time bucket not rotated")
        taken = [send for send in taken if send.message.identity not in undecidable]
        self._log_delayed(endpoint, [send for send in taken if _waits_for_handler(send)], "no handler here takes its type")
        taken = [send for send in taken if not (_waits_for_handler(send) or is_away(send.history))]
        left_behind = sum(map(_process_died, taken))
        if left_behind > NAMED:
            extra = {"endpoint": endpoint, "count": left_behind, "alone": any(send.alone for send in taken)}
            self._logger.warning("messages interrupted, will be retried", extra=extra)
        for send in taken:
            if left_behind <= NAMED or not _process_died(send):
                self._log_retried(endpoint, send)

    def _log_delayed(self, endpoint: str, waiting: Sequence[Send], reason: str) -> None:
        """Log messages that were put off, by no failure and by no handler."""
        if len(waiting) > NAMED:
            counted = {"endpoint": endpoint, "count": len(waiting), "reason": reason}
            self._logger.info("messages delayed", extra=counted)
            return
        for send in waiting:
            extra = _message_fields(endpoint, send.message) | {"due": Instant(send.due), "reason": reason}
            self._logger.info("message delayed", extra=extra)

    def _log_retried(self, endpoint: str, send: Send) -> None:
        extra = _message_fields(endpoint, send.message) | {"due": Instant(send.due)}
        if _process_died(send):
            self._logger.warning(
                "message interrupted, will be retried", extra=extra | _last_failure(send) | {"alone": send.alone}
            )
        elif not send.history:
            self._logger.info("message postponed, not counted as a failure", extra=extra)  # by its handler, or by another run
        else:
            failure = _last_failure(send) | {"traceback": _new_traceback(send)}
            self._logger.warning("message failed, will be retried", extra=extra | failure)

    def _log_dead_letter(self, letter: DeadLetter) -> None:
        extra = _message_fields(letter.endpoint, letter.message) | {
            "dead_letter": letter.key,
            "handler": letter.history[-1].handler if letter.history else "",
            "attempt": letter.attempts,
            "reason": letter.reason,
            "finish_only": letter.finish_only,
            "traceback": letter.history[-1].traceback if letter.history else "",
        }
        if letter.reason == OTHER_BODY:
            self._logger.critical("ALARM: message id reused with another body, stored as a dead letter", extra=extra)
        else:
            self._logger.error("message given up, stored as a dead letter", extra=extra)


class _LoggedCall:
    """Encloses one call, with as little work as can be: this is the hot path."""

    __slots__ = ("_call", "_logs")

    def __init__(self, logs: Logs, call: PortCall) -> None:
        self._logs, self._call = logs, call

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._logs.ended(self._call, error)


class _LoggedHandler:
    __slots__ = ("_call", "_logger", "_started")

    def __init__(self, logger: EventLogger, call: PortCall) -> None:
        self._logger, self._call, self._started = logger, call, 0.0

    async def __aenter__(self) -> None:
        self._started = time.perf_counter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        milliseconds = round((time.perf_counter() - self._started) * 1000, 3)
        for message in self._call.items:
            extra = _message_fields(self._call.endpoint, message) | {
                "handler": _handler_name(self._call.port, message),
                "milliseconds": milliseconds,
            }
            if len(self._call.items) > 1:
                extra["count"] = len(self._call.items)
            if kind is None:
                self._logger.debug("handler succeeded", extra=extra)
            else:
                self._logger.debug("handler failed", extra=extra | {"reason": _reason(kind, error)})


def _handler_name(handlers: object, message: Message) -> str:
    """Return the name of the handler of this message, where the handlers are those of an endpoint."""
    path_of = getattr(handlers, "path_of", None)
    return "" if path_of is None else str(path_of(message))


def _reason(kind: type[BaseException], error: BaseException | None) -> str:
    return error.failure.reason if isinstance(error, HandlerFailed) else kind.__name__


def _process_died(send: Send) -> bool:
    """Return whether a process died while it held this one: its start is counted, or it had company and starts at once."""
    if send.history:
        return send.history[-1].kind is FailureKind.KILLED
    return bool(send.alone or send.held) and not send.due


def _message_fields(endpoint: str, message: Message | None) -> dict[str, object]:
    kind, source, id_ = (message.type, message.source, message.id) if message else ("", "", "")
    return {"endpoint": endpoint, "type": kind, "source": source, "message_id": id_}


def _waits_for_handler(send: Send) -> bool:
    return bool(send.due) and not _process_died(send) and is_unhandled(send.history)


def _last_failure(send: Send) -> dict[str, object]:
    if not send.history:
        return {}
    last = send.history[-1]
    return {"handler": last.handler, "attempt": send.attempts, "reason": last.reason, "kind": last.kind.value}


def _new_traceback(send: Send) -> str:
    """Return the traceback of the last failure, or nothing when the failure before had the same reason."""
    *earlier, last = send.history
    return "" if earlier and earlier[-1].reason == last.reason else last.traceback


def _fields(record: logging.LogRecord, event: str | None) -> dict[str, object]:
    fields = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    if event is not None:
        del fields["event"]
    return fields


def _span_ids() -> dict[str, object]:
    """Return the ids of the active OpenTelemetry span. Nothing without one, and where the package is not imported."""
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is None:
        return {}
    context = tracing.get_current_span().get_span_context()
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if context.is_valid else {}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    given = getattr(record, TRACEBACK, "")
    return str(given) or (formatter.formatException(record.exc_info) if record.exc_info else "")


def _time(record: logging.LogRecord) -> str:
    return _iso(record.created)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
