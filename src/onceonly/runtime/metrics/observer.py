"""The observer that counts port calls. It allocates little and waits for nothing: handlers' calls pass here one by one."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from types import TracebackType

from msgspec import Struct
from msgspec.structs import replace

from onceonly.algorithms.intake import OTHER_BODY
from onceonly.model.dead_letter import DeadLetter
from onceonly.model.errors import ConflictError, OutcomeUnknown, RetryableError
from onceonly.model.message import FailureKind, Message, Send
from onceonly.model.record import Answer
from onceonly.ports.environment import Clock
from onceonly.runtime.environment import LIVE
from onceonly.runtime.maintenance.tasks import ROTATION
from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.catalog import Source
from onceonly.runtime.metrics.series import Instrument, Meter
from onceonly.runtime.observe.health_state import PART_OF, is_trouble
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeKind, error_name

MOST_ERRORS = 50
"""Values of `error.type`. What comes beyond them is counted as `OTHER_ERROR`."""
MOST_DESTINATIONS = MOST_TYPES = 50
MOST_HANDLED = 200
"""Types of an endpoint's own handlers that have rows: the first ones by name. The others are counted as `OTHER`."""
OTHER_ERROR = "_OTHER"
OTHER = "other"
UNREADABLE, MISMATCH, INTERRUPTED = "unreadable", "mismatch", "interrupted"
"""Further kinds, in addition to those of failures."""
_KINDS = (
    *(FailureKind.EXCEPTION.value, FailureKind.TIMEOUT.value, FailureKind.COMMIT.value, FailureKind.KILLED.value),
    *(FailureKind.REFUSED.value, FailureKind.REJECTED.value),
)
KNOWN_VALUES = {
    catalog.DEAD_LETTERS_STORED: (*_KINDS, UNREADABLE, MISMATCH),
    catalog.RETRIES: (*_KINDS, FailureKind.LATER.value, INTERRUPTED),
    catalog.RELAYED: ("sent", "refused", "unknown"),
    catalog.CONFLICTS: ("lost_race", "deadlock", "unknown"),
    catalog.RECONNECTS: ("transport", "store"),
}
"""The values of the attribute other than the endpoint, of metrics that rarely change."""
_SENDING = frozenset({Point.DISPATCH, Point.RETRY_COPY})
_SETTLING = {Point.ACK: "ack", Point.RELEASE: "release", Point.EXTEND: "extend"}
_PHASES = {
    Point.BEGIN: "begin",
    Point.OPEN: "begin",
    Point.COMMIT: "commit",
    Point.DISPATCH: "dispatch",
    Point.FORGET: "forget",
}
_ANSWERS = {Answer.TAKEN: "", Answer.REFUSED: "refused", Answer.UNKNOWN: "unknown", Answer.AWAY: "away"}


class EndpointLabels(Struct, frozen=True, kw_only=True):
    """What metrics say about an endpoint.

    * `types`: those of its handlers; None for the first `MOST_TYPES` that come.
    * `store`: its URL without a password.
    * `has_buckets`: whether its claims are in time buckets.
    """

    name: str
    system: str = OTHER
    types: frozenset[str] | None = frozenset()
    store: str = ""
    has_buckets: bool = False


class CappedNames:
    """Names of which there may be too many. Those beyond `most` become `rest`."""

    def __init__(self, most: int, rest: str, known: Iterable[str] = ()) -> None:
        """Begin with the names that are in use already."""
        self._most, self._rest = most, rest
        self._known = {"", rest, *known}

    def __call__(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) - 2 >= self._most:
            return self._rest
        self._known.add(name)
        return name


def _bounded(labels: EndpointLabels) -> EndpointLabels:
    if labels.types is None or len(labels.types) <= MOST_HANDLED:
        return labels
    return replace(labels, types=frozenset(sorted(labels.types)[:MOST_HANDLED]))


class MetricsObserver:
    """Counts the calls of these endpoints' ports, and the outcomes of their messages, with the instruments of a meter."""

    def __init__(self, meter: Meter, endpoints: Iterable[EndpointLabels], *, clock: Clock = LIVE.clock) -> None:
        """Observe these endpoints; calls of others are not counted. `clock` determines the age of messages."""
        self._clock = clock
        self._labels = {labels.name: _bounded(labels) for labels in endpoints}
        self._error = CappedNames(MOST_ERRORS, OTHER_ERROR)
        self._type = CappedNames(MOST_TYPES, OTHER)
        self._destination = {name: CappedNames(MOST_DESTINATIONS, OTHER) for name in self._labels}
        self._failing: set[tuple[str, str]] = set()
        self._rotated_at: dict[str, int] = {}
        counted = [each for each in catalog.METRICS if each.source is Source.PROCESSES and not each.is_gauge]
        self._instruments: Mapping[str, Instrument] = {each.name: meter.instrument(each) for each in counted}
        self._process, self._operation = (
            self._instrument(catalog.PROCESS_DURATION),
            self._instrument(catalog.OPERATION_DURATION),
        )
        self._sent, self._phase = self._instrument(catalog.SENT), self._instrument(catalog.UNIT_DURATION)
        self._outcomes, self._age = self._instrument(catalog.MESSAGES), self._instrument(catalog.AGE)
        self._begin_at_zero()
        self._points: dict[Point, Callable[[PortCall, EndpointLabels, str, float], None]] = {
            Point.HANDLE: self._handled,
            Point.RECEIVE: self._received,
            Point.DEAD_LETTER: self._stored_letter,
            Point.JOURNAL: self._journal_read,
            Point.NOTE: self._journal_written,
            **dict.fromkeys(_SENDING, self._sends),
            **dict.fromkeys(_SETTLING, self._settles),
        }

    def _begin_at_zero(self) -> None:
        """Add the rows that alerts watch: Prometheus does not notice the first value of a row as an increase."""
        for labels in self._labels.values():
            for metric, values in KNOWN_VALUES.items():
                for value in values:
                    self._instrument(metric).add((labels.name, value), 0)
            if labels.has_buckets:
                self._instrument(catalog.BUCKETS_ROTATED).add((labels.store,), 0)
            for outcome in OutcomeKind:
                for type_ in labels.types or ():
                    self._outcomes.add((labels.name, type_, outcome.value), 0)

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        return _MeasuredCall(self, call)

    def ended(self, call: PortCall, error: BaseException | None, seconds: float) -> None:
        labels = self._labels.get(call.endpoint)
        if labels is None:
            return
        kind = "" if error is None else self._error(error_name(error))
        count = self._points.get(call.point)
        if count is not None:
            count(call, labels, kind, seconds)
        phase = _PHASES.get(call.point)
        if phase is not None:
            self._phase.add((labels.name, phase), seconds)
            if error is not None and call.point in (Point.BEGIN, Point.COMMIT):
                self._conflict(labels.name, error)
        if call.point is not Point.HANDLE:
            self._reconnect(call, error)

    def settled(self, outcome: MessageOutcome) -> None:
        """Count the outcome of a delivery. A message is as old as its sender says, and not younger than 0."""
        labels = self._labels.get(outcome.endpoint)
        if labels is None:
            return
        message = outcome.message
        kind = OTHER if message is None else self._type_of(labels, message.type)
        self._outcomes.add((labels.name, kind, outcome.outcome.value))
        if outcome.outcome is OutcomeKind.HANDLED and message is not None and (sent := sent_at(message)):
            self._age.add((labels.name, kind), max(0, self._clock.now() - sent) / 1000)

    def released(self, endpoint: str, message: Message) -> None:
        """Count nothing: the message comes again."""

    def _type_of(self, labels: EndpointLabels, type_: str) -> str:
        if labels.types is None:
            return self._type(type_)
        return type_ if type_ in labels.types else OTHER

    def _instrument(self, metric: catalog.Metric) -> Instrument:
        return self._instruments[metric.name]

    def _handled(self, _call: PortCall, labels: EndpointLabels, kind: str, seconds: float) -> None:
        self._process.add((labels.name, labels.system, "process", labels.name, kind), seconds)

    def _received(self, call: PortCall, labels: EndpointLabels, kind: str, seconds: float) -> None:
        """Count what came. A receive that only waited is not measured."""
        attributes = (labels.name, labels.system, "receive", labels.name, kind)
        number = call.count if not kind else 0
        if number:
            self._instrument(catalog.CONSUMED).add(attributes, number)
            self._instrument(catalog.BATCH_SIZE).add((labels.name,), number)
        if number or kind:
            self._operation.add(attributes, seconds)

    def _sends(self, call: PortCall, labels: EndpointLabels, kind: str, seconds: float) -> None:
        operation = "send" if call.point is Point.DISPATCH else "retry"
        destination = self._destination[labels.name]
        to = ""
        for number, send in enumerate(call.items):
            to = destination(send.to or send.message.type)
            answer = kind or _ANSWERS[call.result[number]]
            self._sent.add((labels.name, labels.system, operation, to, answer))
            if call.by_relay:
                self._instrument(catalog.RELAYED).add((labels.name, answer or "sent"))
            if call.point is Point.RETRY_COPY and not answer:
                self._instrument(catalog.RETRIES).add((labels.name, retry_kind(send)))
        if call.items:  # a batch for several destinations has none
            one = len({send.to or send.message.type for send in call.items}) == 1
            self._operation.add((labels.name, labels.system, operation, to if one else "", kind), seconds)

    def _settles(self, call: PortCall, labels: EndpointLabels, kind: str, seconds: float) -> None:
        self._operation.add((labels.name, labels.system, _SETTLING[call.point], labels.name, kind), seconds)

    def _stored_letter(self, call: PortCall, labels: EndpointLabels, kind: str, _seconds: float) -> None:
        if not kind:
            self._instrument(catalog.DEAD_LETTERS_STORED).add((labels.name, dead_letter_kind(call.items[0])))

    def _journal_read(self, call: PortCall, labels: EndpointLabels, kind: str, _seconds: float) -> None:
        run = call.result.tasks.get(ROTATION) if not kind and call.result is not None else None
        self._rotated_at[labels.name] = max(self._rotated_at.get(labels.name, 0), run.at if run is not None else 0)

    def _journal_written(self, call: PortCall, labels: EndpointLabels, kind: str, _seconds: float) -> None:
        run = call.items[0].tasks.get(ROTATION) if not kind else None
        if run is not None and run.at > self._rotated_at.get(labels.name, 0):
            self._rotated_at[labels.name] = run.at
            self._instrument(catalog.BUCKETS_ROTATED).add((labels.store,), run.count)

    def _conflict(self, endpoint: str, error: BaseException) -> None:
        if isinstance(error, OutcomeUnknown):
            kind = "unknown"
        elif isinstance(error, ConflictError):
            kind = "deadlock" if _is_deadlock(error) else "lost_race"
        else:
            return
        self._instrument(catalog.CONFLICTS).add((endpoint, kind))

    def _reconnect(self, call: PortCall, error: BaseException | None) -> None:
        if error is None and not self._failing:
            return  # the hot path
        part = PART_OF.get(call.point)
        if part is None:
            return
        key = (call.endpoint, part)
        if error is None and key in self._failing:
            self._failing.discard(key)
            self._instrument(catalog.RECONNECTS).add(key)
        elif isinstance(error, RetryableError) and is_trouble(error):
            self._failing.add(key)


class _MeasuredCall:
    __slots__ = ("_call", "_observer", "_started")

    def __init__(self, observer: MetricsObserver, call: PortCall) -> None:
        self._observer, self._call, self._started = observer, call, 0.0

    async def __aenter__(self) -> None:
        self._started = time.perf_counter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._observer.ended(self._call, error, time.perf_counter() - self._started)


def sent_at(message: Message) -> int:
    """Return when a message was sent or due, in milliseconds since 1970, 0 if it does not say."""
    if message.instant or not message.time:
        return message.instant
    try:
        return round(datetime.fromisoformat(message.time).timestamp() * 1000)
    except (ValueError, OverflowError):
        return 0


def retry_kind(send: Send) -> str:
    """Return why a retry copy was sent: a kind of failure, or `interrupted`."""
    if not send.due and (send.alone or send.held) and not (send.history and send.history[-1].kind is FailureKind.KILLED):
        return INTERRUPTED
    return send.history[-1].kind.value if send.history else FailureKind.LATER.value


def dead_letter_kind(letter: DeadLetter) -> str:
    """Return why a dead letter was stored: a kind of failure, `mismatch` or `unreadable`."""
    if letter.message is None:
        return UNREADABLE
    if letter.reason == OTHER_BODY:
        return MISMATCH
    if letter.finish_only:
        return FailureKind.REFUSED.value
    return letter.history[-1].kind.value if letter.history else FailureKind.REJECTED.value


def _is_deadlock(error: BaseException) -> bool:
    """Return whether a database reported a deadlock: the errors of all drivers contain the word."""
    cause: BaseException | None = error
    while cause is not None:
        if "deadlock" in str(cause).lower():
            return True
        cause = cause.__cause__
    return False
