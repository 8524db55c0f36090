"""Failures: what a handler's exception means, in words that every store can keep."""

import asyncio
import inspect
import math
import traceback
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

from onceonly.endpoint.signatures import CallStyle, Function
from onceonly.model.errors import HandlerFailed, InvalidEffect, Reject, RetryLater, leaves, text_of
from onceonly.model.message import Failure, FailureKind

CANCELLED = "the handler cancelled its own task, or awaited a cancelled task"
IN_THREAD = 'Set WorkerSettings(def_handlers="thread"), so that `def` handlers run in threads'
REASON_LIMIT = 2000
TRACEBACK_LIMIT = 8000
LONGEST_DELAY_SECONDS = timedelta(days=3650).total_seconds()


class _Meaning(NamedTuple):
    """What one exception means. `words` name its class as well, for a reason that has several."""

    kind: FailureKind
    reason: str
    words: str
    delay: float = 0
    is_traced: bool = True


def blame(function: Function, error: BaseException, reason: str = "") -> HandlerFailed:
    """Return what a handler's exception means; `reason` replaces its own words.

    A group means what its exceptions mean. It is rejected if all of them are, and retried later, after the longest delay, if
    all of them ask for that. Every other group is a failure that counts, with all reasons.
    """
    inside = leaves(error)
    if len(inside) == 1:
        (only,) = inside
        if isinstance(only, HandlerFailed) and only is not error:
            return HandlerFailed(only.failure, by_message=only.by_message)  # a task group of a provider's has enclosed it
        meaning = _meaning(only)
        if not reason and _needs_thread(function, only):
            reason = f"{meaning.reason} {IN_THREAD}"
        trace = _trace(function, only if only.__traceback__ else error) if meaning.is_traced else ""
        return failed(meaning.kind, reason or meaning.reason, trace, delay=meaning.delay)
    meanings = [_failed_before(each) if isinstance(each, HandlerFailed) else _meaning(each) for each in inside]
    delay = max(each.delay for each in meanings)
    for kind in (FailureKind.REJECTED, FailureKind.LATER):
        if all(each.kind is kind for each in meanings):
            return failed(kind, reason or _joined(each.reason for each in meanings), delay=delay)
    return failed(FailureKind.EXCEPTION, reason or _joined(each.words for each in meanings), _trace(function, error))


def _needs_thread(function: Function, error: BaseException) -> bool:
    """Return whether a `def` handler in the event loop used Django's ORM, which refuses that."""
    is_django = type(error).__name__ == "SynchronousOnlyOperation" and type(error).__module__.startswith("django.")
    return is_django and function.flavour is CallStyle.PLAIN


def _meaning(error: BaseException) -> _Meaning:
    words = _summary(error)
    match error:
        case RetryLater():
            if not math.isfinite(error.delay):
                reason = f"RetryLater needs a finite number of seconds, not {error.delay}"
                return _Meaning(FailureKind.EXCEPTION, reason, reason, is_traced=False)
            delay = min(max(error.delay, 0.0), LONGEST_DELAY_SECONDS)
            return _Meaning(FailureKind.LATER, text_of(error), words, delay, is_traced=False)
        case Reject():
            return _Meaning(FailureKind.REJECTED, text_of(error) or "rejected by its handler", words, is_traced=False)
        case InvalidEffect():
            return _Meaning(FailureKind.REJECTED, text_of(error), words)
        case asyncio.CancelledError():
            return _Meaning(FailureKind.EXCEPTION, CANCELLED, words)
        case _:
            return _Meaning(FailureKind.EXCEPTION, words, words)


def _failed_before(error: HandlerFailed) -> _Meaning:
    failure = error.failure
    return _Meaning(failure.kind, failure.reason, failure.reason, failure.delay)


def _summary(error: BaseException) -> str:
    """Name the class and the first line of the text. All of it is in the traceback."""
    first_line = (text_of(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first_line}".removesuffix(": ")


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))


def failed(kind: FailureKind, reason: str, trace: str = "", *, delay: float = 0) -> HandlerFailed:
    """Make a failure of these words, cut to what is kept of them."""
    return HandlerFailed(Failure(kind=kind, reason=storable(reason[:REASON_LIMIT]), traceback=storable(trace), delay=delay))


def _trace(function: Function, error: BaseException) -> str:
    """Return the traceback's end, beginning in the user's own function where it can be found."""
    code = getattr(inspect.unwrap(function.call), "__code__", None)
    start = error.__traceback__
    while start is not None and start.tb_frame.f_code is not code:
        start = start.tb_next
    try:
        lines = traceback.format_exception(type(error), error, start or error.__traceback__)
    except BaseException as broken:  # noqa: BLE001 - properties of users' exceptions are read, and may raise anything
        lines = [*traceback.format_tb(start or error.__traceback__), f"{_summary(error)}\n", _unreadable(broken)]
    return "".join(lines)[-TRACEBACK_LIMIT:]


def _unreadable(broken: BaseException) -> str:
    return f"(the rest of the traceback raised {type(broken).__name__})\n"


def storable(words: str) -> str:
    """Replace what no store takes: lone surrogates and NUL."""
    return words.replace("\0", "\\0").encode(errors="backslashreplace").decode()
