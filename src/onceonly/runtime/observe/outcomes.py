"""What became of each delivered message, derived from the port calls about it. For traces and metrics.

A message may be in several units before it is settled: its first unit fails and runs again, is split, or ends in a lost race.
So every call only adds to what is known, and the outcome is decided when the delivery is acked or released.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from enum import StrEnum
from itertools import count
from types import TracebackType
from typing import Protocol

from msgspec import Struct

from onceonly.model.errors import HandlerFailed, leaves
from onceonly.model.identity import Identity
from onceonly.model.message import Delivery, Message, Send, Unreadable
from onceonly.model.record import Answer
from onceonly.model.ring import Undecidable
from onceonly.ports.store import BeginResult
from onceonly.runtime.observe.observer import Point, PortCall


class OutcomeKind(StrEnum):
    HANDLED = "handled"
    """Its handler ran and was committed. What the broker does with the messages it sent changes nothing."""
    DUPLICATE = "duplicate"
    """It was handled before, and nothing was left to do. So is each further copy of a message in one batch."""
    REDISPATCHED = "redispatched"
    """It was handled before, and the messages of its pending record were sent."""
    RETRIED = "retried"
    """A copy of it was sent to its own endpoint: it failed, was postponed, or was interrupted."""
    DEAD_LETTER = "dead_letter"
    """It was given up, and is stored as a dead letter."""
    REFUSED_OLD = "refused_old"
    """A dead letter, too: it is older than the retention, so it may have been handled already."""


class MessageOutcome(Struct, frozen=True, kw_only=True):
    """What became of one delivery.

    * `message`: None if the delivery could not be read, and has no identity.
    * `attempt`: 1 for the first, or 1 more than how often the message failed before.
    * `error`: the class of the error that failed it, with its module, or a word for another reason. Empty without a failure.
    * `started_at`, `ended_at`: the last run of its handler, in nanoseconds since 1970. 0 if no handler ran.
    * `batch`, `unit`: numbers in this process. The unit is the last one that it was in; 0 for none.
    * `is_copy`: whether another delivery in the same batch brought the same message, and has its outcome.
    """

    endpoint: str
    outcome: OutcomeKind
    delivery: Delivery
    message: Message | None
    attempt: int
    error: str = ""
    started_at: int = 0
    ended_at: int = 0
    batch: int = 0
    unit: int = 0
    is_copy: bool = False


class OutcomeListener(Protocol):
    """What is called when deliveries are settled. It must not raise."""

    def settled(self, outcome: MessageOutcome) -> None:
        """Receive the outcome of a delivery, once."""

    def released(self, endpoint: str, message: Message) -> None:
        """Receive a message that goes back to its queue without an outcome: nothing of it was committed here."""


class RunListener(Protocol):
    """What is called around each run of a handler, in the task that runs it. It must not raise."""

    def started(self, message: Message) -> None:
        """The handler begins."""

    def ended(self, message: Message, error: BaseException | None) -> None:
        """The handler has ended. Nothing is committed yet."""


class MessageProgress:
    """What is known of one message of a batch. Several deliveries may have brought it.

    There is one for each message, so what most of them never change is set here, for all of them.
    """

    attempt = 1
    unit: object = None
    unit_number = 0
    started_at = ended_at = 0
    error = ""
    refusal = ""
    """Why the store did not let it be handled."""
    is_pending = is_handled = is_retried = is_dead = is_reported = False
    is_admitted = True

    def __init__(self, message: Message | None, batch: int) -> None:
        self.message = message
        self.batch = batch

    def outcome(self, *, is_acked: bool) -> OutcomeKind | None:
        """Return the outcome. None for a message that is released, and comes again as if nothing had happened."""
        if self.is_handled:
            return OutcomeKind.HANDLED
        if self.is_dead:
            return OutcomeKind.REFUSED_OLD if self.refusal == Undecidable.TOO_OLD.name.lower() else OutcomeKind.DEAD_LETTER
        if self.is_retried:
            return OutcomeKind.RETRIED
        if not is_acked:
            return None
        return OutcomeKind.REDISPATCHED if self.is_pending and self.is_admitted else OutcomeKind.DUPLICATE


class OutcomeObserver:
    """An observer that tells its listeners what became of each delivered message.

    It observes the ports of any number of endpoints. Control messages have no outcome. After a crash of the process, what was
    in progress has none.
    """

    def __init__(
        self,
        *listeners: OutcomeListener,
        runs: RunListener | None = None,
        wanted: Callable[[Message], bool] | None = None,
        now: Callable[[], int] = time.time_ns,
        elapsed: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        """Report to these listeners, in order. Messages that are not `wanted` have neither runs nor an outcome.

        `now` and `elapsed` are in nanoseconds: since 1970, and since any instant.
        """
        self._listeners = listeners
        self._runs, self._wanted = runs, wanted
        self._now, self._elapsed = now, elapsed
        self._batches, self._unit_numbers = count(1), count(1)
        self._deliveries: dict[int, tuple[Delivery, int, MessageProgress | None]] = {}
        """By `id()`, with the number of the batch. The object is stored too, so that its `id()` stays its own."""
        self._messages: dict[int, MessageProgress] = {}
        self._by_identity: dict[tuple[int, Identity], MessageProgress] = {}
        self._units: dict[int, dict[Identity, MessageProgress]] = {}

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        if call.point is Point.HANDLE:
            if len(call.items) == 1:
                return self._run_of(call.items[0])
            runs = [run for each in call.items if isinstance(run := self._run_of(each), _HandlerCall)]
            return _BatchHandlerCall(runs) if runs else _NOTHING
        end = _ENDS.get(call.point)
        return _NOTHING if end is None else _OutcomeCall(self, call, end)

    def _run_of(self, message: Message) -> AbstractAsyncContextManager[object]:
        progress = self._messages.get(id(message))
        if progress is None:
            if self._runs is None or self._wanted is not None:
                return _NOTHING
            progress = MessageProgress(message, 0)  # it has not come from an observed transport
        return _HandlerCall(progress, self._runs, self._now, self._elapsed)

    def read(self, endpoint: str, delivery: Delivery, message: Message | Unreadable) -> None:
        if (known := self._deliveries.get(id(delivery))) is None:
            return  # its transport is not observed
        if self._wanted is not None and isinstance(message, Message) and not self._wanted(message):
            return
        batch = known[1]
        if isinstance(message, Unreadable):
            progress = MessageProgress(message.message, batch)
            progress.is_dead, progress.error = True, "unreadable"
        else:
            progress = self._progress_of(message, batch)
        if delivery.attempts >= progress.attempt:
            progress.attempt = delivery.attempts + 1
        self._deliveries[id(delivery)] = delivery, batch, progress

    def progress_of(self, message: Message) -> MessageProgress | None:
        """Return what is known of a message that is not settled yet. It is found by the object, not by its identity."""
        return self._messages.get(id(message))

    def _progress_of(self, message: Message, batch: int) -> MessageProgress:
        """Return the progress of the batch's message with this identity; another body is released, and has its own."""
        key = batch, message.identity
        first = self._by_identity.get(key)
        if first is not None and first.message is not None:
            is_same = first.message.fingerprint == message.fingerprint
            return first if is_same else MessageProgress(message, batch)
        progress = self._by_identity[key] = self._messages[id(message)] = MessageProgress(message, batch)
        return progress

    def _received(self, call: PortCall, error: BaseException | None) -> None:
        if error is None and call.result:
            batch = next(self._batches)
            self._deliveries.update((id(each), (each, batch, None)) for each in call.result)

    def _begun(self, call: PortCall, error: BaseException | None) -> None:
        members = {m.identity: p for m in call.items if (p := self._messages.get(id(m))) is not None}
        number = next(self._unit_numbers)
        unit = call.result if error is None else None
        for progress in members.values():
            self._units.pop(id(progress.unit), None)
            if progress.unit_number:
                progress.is_pending, progress.is_admitted, progress.refusal = False, True, ""
            progress.unit, progress.unit_number = unit, number
        if unit is None or not members:
            return
        self._units[id(unit)] = members
        found: BeginResult = unit.found
        for record in found.pending:
            if record.identity in members:
                members[record.identity].is_pending = record.is_pending or bool(record.issued)
        self._refuse(found.mismatched, "payload_mismatch")
        for undecidable in found.undecidable:
            self._refuse((undecidable.message,), undecidable.reason.name.lower())

    def _refuse(self, messages: Iterable[Message], reason: str) -> None:
        for message in messages:
            if (progress := self._messages.get(id(message))) is not None:
                progress.refusal = reason

    def _admitted(self, call: PortCall, error: BaseException | None) -> None:
        if error is not None:
            return
        for message in call.items:
            if (progress := self._messages.get(id(message))) is None:
                continue
            is_mismatched = message.identity in call.result.mismatched
            progress.is_admitted = is_mismatched or message.identity in call.result.messages
            if is_mismatched and not progress.is_pending:
                progress.refusal = "payload_mismatch"

    def _committed(self, call: PortCall, error: BaseException | None) -> None:
        members = self._units.pop(id(call.port), {})
        for record in call.items:
            if (progress := members.get(record.identity)) is None:
                continue
            if error is None:
                progress.is_handled, progress.error = True, ""
            else:
                progress.error = error_name(error)

    def _copied(self, call: PortCall, error: BaseException | None) -> None:
        sends: Iterable[Send] = call.items
        for send, answer in zip(sends, call.result or (), strict=False) if error is None else ():
            progress = self._messages.get(id(send.message))
            if progress is not None and answer is Answer.TAKEN:
                progress.is_retried = True
                if not progress.error and send.history and send.attempts >= progress.attempt:
                    progress.error = send.history[-1].kind.value

    def _given_up(self, call: PortCall, error: BaseException | None) -> None:
        letter = call.items[0]
        progress = self._messages.get(id(letter.message))
        if error is not None or progress is None:
            return
        progress.is_dead = True
        if letter.finish_only:
            progress.error = "refused"
        elif progress.refusal:
            progress.error = progress.refusal
        elif not progress.error:
            progress.error = letter.history[-1].kind.value if letter.history else "rejected"

    def _acked(self, call: PortCall, error: BaseException | None) -> None:
        if error is None:  # otherwise they are released later
            for delivery in call.items:
                self._settle(call.endpoint, delivery, is_acked=True)

    def _released(self, call: PortCall, error: BaseException | None) -> None:
        if error is None or isinstance(error, Exception):
            for delivery in call.items:
                self._settle(call.endpoint, delivery, is_acked=False)

    def _settle(self, endpoint: str, delivery: Delivery, *, is_acked: bool) -> None:
        _, batch, progress = self._deliveries.pop(id(delivery), (delivery, 0, None))
        if progress is None:
            return
        if not progress.is_reported:
            self._forget(progress)
        outcome = progress.outcome(is_acked=is_acked)
        is_copy, progress.is_reported = progress.is_reported, True
        if outcome is None:
            if progress.message is not None and not is_copy:
                for listener in self._listeners:
                    listener.released(endpoint, progress.message)
            return
        settled = MessageOutcome(
            endpoint=endpoint,
            outcome=OutcomeKind.DUPLICATE if is_copy else outcome,
            delivery=delivery,
            message=progress.message,
            attempt=progress.attempt,
            error="" if is_copy else progress.error,
            started_at=0 if is_copy else progress.started_at,
            ended_at=0 if is_copy else progress.ended_at,
            batch=batch,
            unit=progress.unit_number,
            is_copy=is_copy,
        )
        for listener in self._listeners:
            listener.settled(settled)

    def _forget(self, progress: MessageProgress) -> None:
        if progress.message is None or self._messages.get(id(progress.message)) is not progress:
            return
        self._messages.pop(id(progress.message), None)
        self._by_identity.pop((progress.batch, progress.message.identity), None)
        self._units.pop(id(progress.unit), None)
        progress.unit = None


_End = Callable[[OutcomeObserver, PortCall, BaseException | None], None]
_ENDS: dict[Point, _End] = {
    Point.RECEIVE: OutcomeObserver._received,  # noqa: SLF001 - a table of this module
    Point.BEGIN: OutcomeObserver._begun,  # noqa: SLF001 - the same
    Point.ADMITS: OutcomeObserver._admitted,  # noqa: SLF001 - the same
    Point.COMMIT: OutcomeObserver._committed,  # noqa: SLF001 - the same
    Point.RETRY_COPY: OutcomeObserver._copied,  # noqa: SLF001 - the same
    Point.DEAD_LETTER: OutcomeObserver._given_up,  # noqa: SLF001 - the same
    Point.ACK: OutcomeObserver._acked,  # noqa: SLF001 - the same
    Point.RELEASE: OutcomeObserver._released,  # noqa: SLF001 - the same
}
_NOTHING = nullcontext()


class _OutcomeCall:
    """Encloses one call, with as little work as can be: this is the hot path."""

    __slots__ = ("_call", "_end", "_observer")

    def __init__(self, observer: OutcomeObserver, call: PortCall, end: _End) -> None:
        self._observer, self._call, self._end = observer, call, end

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(self._observer, self._call, error)


class _HandlerCall:
    __slots__ = ("_began", "_elapsed", "_now", "_progress", "_runs")

    def __init__(
        self, progress: MessageProgress, runs: RunListener | None, now: Callable[[], int], elapsed: Callable[[], int]
    ) -> None:
        self._progress, self._runs, self._now, self._elapsed, self._began = progress, runs, now, elapsed, 0

    async def __aenter__(self) -> None:
        self.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end(error)

    def begin(self) -> None:
        progress = self._progress
        self._began = self._elapsed()
        progress.started_at = self._now()
        if progress.error:
            progress.error = ""
        if self._runs is not None and progress.message is not None:
            self._runs.started(progress.message)

    def error_of(self, error: BaseException | None) -> BaseException | None:
        """Return what the error of a batch is to this message: nothing, if it is known that others failed."""
        if not isinstance(error, HandlerFailed) or not error.by_message or self._progress.message is None:
            return error
        failure = error.by_message.get(self._progress.message.identity)
        return None if failure is None else HandlerFailed(failure)

    def end(self, error: BaseException | None) -> None:
        progress = self._progress
        progress.ended_at = progress.started_at + self._elapsed() - self._began
        if error is not None:
            progress.error = error_name(error)
        if self._runs is not None and progress.message is not None:
            self._runs.ended(progress.message, error)


class _BatchHandlerCall:
    """Encloses one run of a batch handler: a run of each of its messages. The first message's is the innermost."""

    __slots__ = ("_runs",)

    def __init__(self, runs: Sequence[_HandlerCall]) -> None:
        self._runs = runs

    async def __aenter__(self) -> None:
        for run in reversed(self._runs):
            run.begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for run in self._runs:
            run.end(run.error_of(error))


def error_name(error: BaseException) -> str:
    """Return the class of an error, with its module unless it is a built-in. For a failed handler: that of its exception.

    A group of one exception counts as that.
    """
    if isinstance(error, HandlerFailed):
        if error.__cause__ is None:
            return error.failure.kind.value
        return error_name(error.__cause__)
    inside = leaves(error)
    if len(inside) == 1 and inside[0] is not error:
        return error_name(inside[0])
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
