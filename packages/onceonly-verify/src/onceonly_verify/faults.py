"""What one port call can come to: applied, or failed in every form of the protocols' section 9.

A form is a label, the part of the world afterwards, what is still under way, and the outcome that the worker sees.
"""

from asyncio import CancelledError
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, combinations
from typing import Any, NamedTuple, cast

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Raises
from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown
from onceonly.model.record import Answer

APPLIED = "applied"
ANSWER_LOST = "answer lost"  # of a receive: the deliveries are held, and no worker knows
LATE_IGNORED, LATE_ACCEPTED = "late, ignored", "late, accepted"
DUPLICATED, LANDS_LATER = "duplicated by the network", "OutcomeUnknown, lands later"
CONFLICT, FAILED = "ConflictError", "CommitFailed"
UNKNOWN_APPLIED, UNKNOWN_NOT, UNKNOWN_PART = (
    "OutcomeUnknown, applied",
    "OutcomeUnknown, not applied",
    "OutcomeUnknown, partly applied",
)
CUT_OFF = "the store goes away"
NOT_ANSWERED = "the other service is away"
TIMED_OUT = "times out"
UNIT_OVER = "OutcomeUnknown, its unit is over"
TIME_OVER_NOT, TIME_OVER_APPLIED, TIME_OVER_LATER = (
    "time over, not applied",
    "time over, applied",
    "time over, lands later",
)
ONE_REFUSED = "one refused"
ONE_APPLIED, ONE_NOT, ONE_LATER = "one unknown, applied", "one unknown, not applied", "one unknown, lands later"

_UNKNOWN = (UNKNOWN_APPLIED, UNKNOWN_NOT, LANDS_LATER)
MARKED = frozenset({"start-begin", "start-ended", "start-forget"})
"""The calls around which a run is marked in the shared counters."""
FORMS: dict[str, tuple[str, ...]] = {
    "begin": (CONFLICT, FAILED, UNKNOWN_NOT),
    "open": (CONFLICT, FAILED, UNKNOWN_NOT),
    "start-begin": (CONFLICT, FAILED, UNKNOWN_APPLIED, UNKNOWN_NOT),
    "start-died": (FAILED,),
    "entry": (FAILED,),
    "rotate": (FAILED, UNKNOWN_APPLIED, UNKNOWN_NOT),  # what lands later, another janitor does
    "load": (FAILED,),
    "save": (FAILED, *_UNKNOWN),  # a repeated one finds another version, for ever
    "keys": (FAILED,),
    "read": (FAILED,),
    "save_together": (FAILED, *_UNKNOWN),
    "row-open": (FAILED, *_UNKNOWN),
    "row-cancel": (FAILED, *_UNKNOWN, DUPLICATED),
    "row-remove": (FAILED, *_UNKNOWN, DUPLICATED),
    "row-rows": (FAILED,),
    "row-old": (FAILED,),
    "dedup-contains": (FAILED,),
    "dedup-add": (FAILED, *_UNKNOWN, DUPLICATED),
    "token-live": (FAILED,),
    "token-prepare": (CONFLICT, FAILED, *_UNKNOWN),
    "token-activate": (FAILED, *_UNKNOWN, DUPLICATED),
    "token-remove": (FAILED, *_UNKNOWN, DUPLICATED),
    "token-discard": (FAILED, *_UNKNOWN, DUPLICATED),
    "artifact-create": (FAILED, *_UNKNOWN, DUPLICATED),
    "artifact-delete": (FAILED, *_UNKNOWN, DUPLICATED),
    "artifact-names": (FAILED,),
    "remote-put": (FAILED, *_UNKNOWN, DUPLICATED),
    "remote-call": (FAILED, *_UNKNOWN, DUPLICATED),
    "remote-get": (FAILED,),
    "remote-delete": (FAILED, *_UNKNOWN, DUPLICATED),
    "third-party-call": (FAILED, *_UNKNOWN, DUPLICATED),
    "third-party-find": (FAILED,),
    "call-put": (FAILED, *_UNKNOWN, DUPLICATED),
    "call-request": (FAILED,),
    "call-bury": (FAILED, *_UNKNOWN, DUPLICATED),
    "call-remove": (FAILED, *_UNKNOWN, DUPLICATED),
    "commit": (CONFLICT, FAILED, *_UNKNOWN),
    "forget": (CONFLICT, FAILED, *_UNKNOWN, DUPLICATED),
    "dead-letter": (CONFLICT, FAILED, *_UNKNOWN, DUPLICATED),
    "send": (FAILED, *_UNKNOWN, DUPLICATED, ONE_REFUSED, ONE_APPLIED, ONE_NOT, ONE_LATER),
    "ack": (FAILED, *_UNKNOWN, DUPLICATED),
    "release": (FAILED, *_UNKNOWN, DUPLICATED),
}
"""Which forms each call can fail in. A call that is not here cannot fail; a crash can interrupt every one.

Of a call over many items any part may happen as well; of one that only reads, every failure is the same.
"""
LATE = frozenset(
    {
        "commit",
        "send",
        "save",
        "save_together",
        "token-prepare",
        "artifact-create",
        "remote-put",
        "remote-call",
        "third-party-call",
        "call-put",
        "row-open",
    }
)
"""What may still be under way when its process dies. What else may be is as if it had happened, or had not: it adds nothing."""


TO_PEERS = frozenset({"remote-put", "remote-call", "remote-get", "remote-delete", "third-party-call", "third-party-find"})
"""The calls of another service."""


class CallOutcome(NamedTuple):
    """One thing that a call can come to."""

    form: str
    part: Any
    outcome: Any
    pending: tuple[PortOperation, ...] = ()


def raises(kind: type[Exception]) -> Raises:
    """Return the outcome of a call that failed."""
    return Raises(kind, "by a fault")


def silent_answers(call: Hashable) -> tuple[Raises | None, ...]:
    """List all that a call can be answered which answers nothing when it is applied; empty for every other call."""
    return _SILENT.get(call.point, ()) if isinstance(call, PortOperation) else ()


def subsets(operation: PortOperation) -> list[tuple[Any, ...]]:
    """List the subsets of a many-item call's items, but none and all."""
    if not operation.many:
        return []
    items = operation.arguments[0]
    return list(chain.from_iterable(combinations(items, size) for size in range(1, len(items))))


_SILENT: dict[str, tuple[Raises | None, ...]] = {
    "forget": (None, raises(ConflictError), raises(CommitFailed), raises(OutcomeUnknown)),
    "dead-letter": (None, raises(ConflictError), raises(CommitFailed), raises(OutcomeUnknown)),
    **{
        point: (None, raises(CommitFailed), raises(OutcomeUnknown))
        for point in ("ack", "release", "dedup-add", "token-activate", "token-remove", "token-discard", "artifact-delete")
    },
}


def only(operation: PortOperation, items: Sequence[Any]) -> PortOperation:
    """Return the same call over some of its items."""
    return operation._replace(arguments=(tuple(items), *operation.arguments[1:]))


def do(operation: PortOperation, part: Any) -> tuple[Any, Any]:
    """Apply a call that does not have to wait."""
    step = operation.function(part, *operation.arguments)
    if step is None:
        raise RuntimeError(f"{operation.point} has to wait")
    return step


def successes(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    """Apply a call; nothing when it has to wait. A late settlement is ignored or accepted, as brokers differ."""
    step = operation.function(part, *operation.arguments)
    if step is None:
        return
    if operation.point in {"ack", "release"}:
        accepting = operation._replace(
            arguments=(*operation.arguments[:-1], replace(operation.arguments[-1], accepts_late=True))
        )
        accepted, outcome = do(accepting, part)
        if accepted != step[0]:
            yield CallOutcome(LATE_IGNORED, *step)
            yield CallOutcome(LATE_ACCEPTED, accepted, outcome)
            return
    yield CallOutcome(APPLIED, *step)


def failures(operation: PortOperation, part: Any, *, blocking: bool) -> Iterator[CallOutcome]:
    """Fail a call in every form it can fail in."""
    if operation.point not in FORMS:
        return
    if operation.function(part, *operation.arguments) is None:
        if operation.point == "start-begin":  # another run of the message may be in progress
            yield CallOutcome(TIMED_OUT, part, raises(TimeoutError))
        return
    if operation.point in {"begin", "open"}:
        yield from (
            CallOutcome(form, part, raises(kind))
            for form, kind in zip(FORMS["begin"], (ConflictError, CommitFailed, OutcomeUnknown), strict=True)
        )
    elif operation.point == "commit":
        yield from _commit_failures(operation, part, blocking=blocking)
    else:
        yield from _write_failures(operation, part)
        if operation.point == "send":
            yield from _answer_failures(operation, part)
        if operation.point == "remote-call" and len(operation.arguments[0]) > 1:
            yield from (form for form in _answer_failures(operation, part) if form.form != ONE_REFUSED)


def outage(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    """Let the store go away before it gets a COMMIT; every other unit fares alike until one is committed."""
    if operation.point == "commit":
        token = operation.arguments[0]
        gone = replace(part, open=tuple(unit for unit in part.open if unit.token != token))
        yield CallOutcome(CUT_OFF, gone, raises(OutcomeUnknown))


def disconnected(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    """Lose the answer to a COMMIT whose unit the database has ended: its connection turns out to be closed."""
    if operation.point == "commit" and not any(unit.token == operation.arguments[0] for unit in getattr(part, "open", ())):
        yield CallOutcome(UNIT_OVER, part, raises(OutcomeUnknown))


def silence(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    """Let another service be away when it is called: nothing arrives, and nothing is answered."""
    if operation.point in TO_PEERS:
        yield CallOutcome(NOT_ANSWERED, part, raises(OutcomeUnknown))


def cut(operation: PortOperation, part: Any, *, blocking: bool) -> Iterator[CallOutcome]:
    """Interrupt a call by the end of the host's time: it was applied, was not, or is still under way. Its process lives."""
    if operation.point in {"ack", "release"}:  # the host's own
        return
    over = Raises(cast("Any", CancelledError), "the time of the host is over")
    step = operation.function(part, *operation.arguments)
    if step is None or operation.point not in FORMS:
        yield CallOutcome(TIME_OVER_NOT, part, over)
        if step is not None and step[0] != part:
            yield CallOutcome(TIME_OVER_APPLIED, step[0], over)
        return
    seen = []
    for form in failures(operation, part, blocking=blocking):
        if isinstance(form.outcome, Raises) and (form.part, form.pending) not in seen:
            seen.append((form.part, form.pending))
            changed = TIME_OVER_APPLIED if form.part == step[0] else TIME_OVER_NOT
            name = TIME_OVER_LATER if form.pending else TIME_OVER_NOT if form.part == part else changed
            yield form._replace(form=name, outcome=over)


def interrupted(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    """Interrupt a call by the death of its process: not yet made, partly applied, or still under way.

    After most calls a death is one before the next call. What is marked with the answer of the calls in `MARKED` makes the
    difference: there the process may also die before the answer.
    """
    yield CallOutcome("crash before", part, None)
    if operation.point in MARKED and (step := operation.function(part, *operation.arguments)) is not None:
        yield CallOutcome("crash, applied", step[0], None)
    for items in subsets(operation):
        yield CallOutcome("crash, partly applied", do(only(operation, items), part)[0], None)
    if operation.point == "commit":
        part, operation = adrift(operation, part)
    if operation.point in LATE:
        yield CallOutcome("crash, lands later", part, None, (operation,))


def adrift(operation: PortOperation, store: Any) -> tuple[Any, PortOperation]:
    """Cut a commit loose from its worker: the unit lives on, under another name, until the commit lands."""
    token, *rest = operation.arguments
    name = ("adrift", token)
    units = tuple(replace(unit, token=name) if unit.token == token else unit for unit in store.open)
    return replace(store, open=units), operation._replace(arguments=(name, *rest))


def _commit_failures(operation: PortOperation, part: Any, *, blocking: bool) -> Iterator[CallOutcome]:
    token = operation.arguments[0]
    gone = replace(part, open=tuple(unit for unit in part.open if unit.token != token))
    applied, outcome = do(operation, part)
    yield CallOutcome(CONFLICT, gone, raises(ConflictError))
    yield CallOutcome(FAILED, gone, raises(CommitFailed))
    yield CallOutcome(UNKNOWN_APPLIED, applied, raises(OutcomeUnknown))
    yield CallOutcome(UNKNOWN_NOT, gone, raises(OutcomeUnknown))
    drifting, late = adrift(operation, part)
    yield CallOutcome(LANDS_LATER, drifting, raises(OutcomeUnknown), (late,))
    if not blocking:  # where units block, a second COMMIT finds its unit over
        twin = tuple(unit for unit in drifting.open if unit not in part.open)
        yield CallOutcome(DUPLICATED, replace(applied, open=(*applied.open, *twin)), outcome, (late,))


def _write_failures(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    forms = FORMS[operation.point]
    applied, outcome = do(operation, part)
    if CONFLICT in forms:
        yield CallOutcome(CONFLICT, part, raises(ConflictError))
    yield CallOutcome(FAILED, part, raises(CommitFailed))
    if UNKNOWN_APPLIED not in forms:
        return
    yield CallOutcome(UNKNOWN_APPLIED, applied, raises(OutcomeUnknown))
    yield CallOutcome(UNKNOWN_NOT, part, raises(OutcomeUnknown))
    for items in subsets(operation):
        yield CallOutcome(UNKNOWN_PART, do(only(operation, items), part)[0], raises(OutcomeUnknown))
    if LANDS_LATER in forms:
        yield CallOutcome(LANDS_LATER, part, raises(OutcomeUnknown), (operation,))
    if DUPLICATED in forms:
        yield CallOutcome(DUPLICATED, applied, outcome, (operation,))


def _answer_failures(operation: PortOperation, part: Any) -> Iterator[CallOutcome]:
    """Answer badly for one of the messages sent, or of the requests made, well for the others."""
    applied, answers = do(operation, part)
    for index, item in enumerate(operation.arguments[0]):
        others = only(operation, [*operation.arguments[0][:index], *operation.arguments[0][index + 1 :]])
        without, _ = do(others, part)
        refused = (*answers[:index], Answer.REFUSED, *answers[index + 1 :])
        unknown = (*answers[:index], Answer.UNKNOWN, *answers[index + 1 :])
        yield CallOutcome(ONE_REFUSED, without, refused)
        yield CallOutcome(ONE_APPLIED, applied, unknown)
        yield CallOutcome(ONE_NOT, without, unknown)
        yield CallOutcome(ONE_LATER, without, unknown, (only(operation, [item]),))
