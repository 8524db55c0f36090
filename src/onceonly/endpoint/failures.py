"""Failures: what a handler's exception means, in words that every store can keep."""

import inspect
import math
import traceback
from datetime import timedelta

from onceonly.endpoint.signatures import Function
from onceonly.model.errors import HandlerFailed, InvalidEffect, Reject, RetryLater
from onceonly.model.message import Failure, FailureKind

REASON_LIMIT = 2000
TRACEBACK_LIMIT = 8000
LONGEST_DELAY_SECONDS = timedelta(days=3650).total_seconds()


def blame(function: Function, error: BaseException, reason: str = "") -> HandlerFailed:
    """Return what a handler's exception means."""
    match error:
        case RetryLater():
            if not math.isfinite(error.delay):
                return failed(FailureKind.EXCEPTION, f"RetryLater needs a finite number of seconds, not {error.delay}")
            return failed(FailureKind.LATER, text(error), delay=min(max(error.delay, 0.0), LONGEST_DELAY_SECONDS))
        case Reject():
            return failed(FailureKind.REJECTED, text(error) or "rejected by its handler")
        case InvalidEffect():
            return failed(FailureKind.REJECTED, text(error), _trace(function, error))
        case _:
            first_line = (text(error).strip().splitlines() or [""])[0]  # all of it is in the traceback
            words = reason or f"{type(error).__name__}: {first_line}".removesuffix(": ")
            return failed(FailureKind.EXCEPTION, words, _trace(function, error))


def failed(kind: FailureKind, reason: str, trace: str = "", *, delay: float = 0) -> HandlerFailed:
    """Make a failure of these words, cut to what is kept of them."""
    return HandlerFailed(Failure(kind=kind, reason=storable(reason[:REASON_LIMIT]), traceback=storable(trace), delay=delay))


def _trace(function: Function, error: BaseException) -> str:
    """Give the traceback's end, beginning in the user's own function where it can be found."""
    code = getattr(inspect.unwrap(function.call), "__code__", None)
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code is not code:
        start = start.tb_next
    lines = traceback.format_exception(type(error), error, start or error.__traceback__)
    return "".join(lines)[-TRACEBACK_LIMIT:]


def text(error: BaseException) -> str:
    """Give an exception's text; an exception that has none must not end the worker."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - a user's own `__str__`
        return f"(its text raised {type(broken).__name__})"


def storable(words: str) -> str:
    """Replace what no store takes: lone surrogates and NUL."""
    return words.replace("\0", "\\0").encode(errors="backslashreplace").decode()
