"""Spans of one endpoint, made from its port calls and from the outcomes of its messages.

    create    when a handler or a transaction sends: its context travels in the message, and is stored in the record
    receive   a batch that is not empty
    process   one run of a handler; ended when the message is settled, with the time at which the handler ended
    unit      from `begin` to the end of the commit; it and its process spans link to each other
    send, ack, release, retry, dead_letter: one call of a transport or of the dead letters

A message that is created in a span that is not sampled has no span of its own, nor has the run of its handler: the decision
was made, and travels on. Only with `parent="links"`, where the run begins a trace, the sampler is asked again.
A span that is not recorded costs its start and no more: attributes and links of batches are made for recorded ones only.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import Token
from types import TracebackType
from typing import Any

from opentelemetry import context as current
from opentelemetry._logs import Logger, LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import (
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from onceonly.model.errors import BudgetExceeded, ConflictError, HandlerFailed
from onceonly.model.message import Delivery, FailureKind, Headers, Message, Send
from onceonly.runtime.observe.observer import Observer, Point, PortCall
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeKind, error_name
from onceonly.runtime.observe.telemetry import GaugeSink, NewMessage
from onceonly.telemetry import conventions as names
from onceonly.telemetry.contexts import UnsampledSpan, creation_in, creation_of, link_to, unsampled, written

EXCEPTION_EVENT = "messaging.process.exception"
_NOTHING = nullcontext()
_ROOT = Context()
_SETTLES = {Point.ACK: "ack", Point.RELEASE: "release", Point.RETRY_COPY: "retry", Point.DEAD_LETTER: "dead_letter"}
_DECISIONS = frozenset({FailureKind.LATER, FailureKind.REJECTED})


class UnitSpan:
    """The span of one unit of work, until its commit has ended or its messages go elsewhere."""

    __slots__ = ("active_at", "context", "is_over", "key", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.context = set_span_in_context(span, _ROOT)
        self.active_at = time.time_ns()
        self.key = 0
        self.is_over = False


class ProcessSpan:
    """The span of one run of a handler, until it is known what became of the message."""

    __slots__ = ("ended_at", "message", "span", "token")

    def __init__(self, span: Span, message: Message, token: Token[Context]) -> None:
        self.span, self.message, self.ended_at = span, message, 0
        self.token: Token[Context] | None = token
        """Of the context before, while the handler runs."""


class EndpointTracing:
    """Makes the spans of one endpoint.

    It is an observer of port calls, a listener of runs and of outcomes, and a hook for new messages.
    """

    def __init__(
        self, tracer: Tracer, logger: Logger, about: names.EndpointNames, *, continues: bool = True, body_size: bool = False
    ) -> None:
        """Use this tracer. With `continues`, the creation context is the parent of a process span, else it is linked."""
        self.observer: Observer = self
        self.gauges: GaugeSink | None = None
        self._tracer, self._logger = tracer, logger
        self._about = about
        self._continues, self._body_size = continues, body_size
        self._units: dict[int, UnitSpan] = {}
        """By `id()` of the unit. Those that were abandoned go when their messages do."""
        self._unit_of: dict[int, UnitSpan] = {}
        """By `id()` of a message of it."""
        self._runs: dict[int, ProcessSpan] = {}
        """The last run of a message's handler, by `id()` of the message."""
        self._errors: set[str] = set()
        self._process_name = f"process {about.queue}"
        self._process = about.operation("process", "process", about.queue) | {names.DEDUPLICATION: about.deduplication}
        self._created = about.operation("create", "create") | {names.ENDPOINT: about.endpoint}
        self._settle = {point: about.operation(name, "settle", about.queue) for point, name in _SETTLES.items()}

    # New messages and tasks

    def created(self, message: NewMessage) -> Headers:
        """Make the span of a new message, and return its context. In a span that is not sampled, return that one's."""
        current_span = self._span_of(message.in_batch)
        if current_span.__class__ is UnsampledSpan:
            return current_span.headers
        parent = current_span.get_span_context()
        if parent.is_valid and not parent.trace_flags.sampled:
            return written(parent)
        destination = self._about.destination(message.type, message.to)
        context = None if message.in_batch is None else set_span_in_context(current_span, _ROOT)
        span = self._tracer.start_span(f"create {destination}", context, kind=SpanKind.PRODUCER, attributes=self._created)
        if span.is_recording():
            span.set_attribute(names.DESTINATION, destination)
            span.set_attribute(names.MESSAGE_ID, message.id)
            span.set_attribute(names.EVENT_SOURCE, self._about.endpoint)
            span.set_attribute(names.EVENT_TYPE, message.type)
            for name, value in message.cause:
                if name == "conversationid":
                    span.set_attribute(names.CONVERSATION, value)
            if self._body_size:
                span.set_attribute(names.BODY_SIZE, message.body_bytes)
            span.end()
        return written(span.get_span_context())

    def _span_of(self, message: Message | None) -> Span:
        """Return the span in which a new message is made: the current one, or that of a message of the handled batch."""
        if message is None:
            return get_current_span()
        if self._continues and (headers := unsampled(message)):
            return UnsampledSpan(headers)
        run = self._runs.get(id(message))
        return get_current_span() if run is None else run.span

    @contextmanager
    def task(self, name: str, *, count: int = 0) -> Iterator[None]:
        is_relay = name == "relay"
        attributes: names.Attributes = {names.ENDPOINT: self._about.endpoint}
        attributes |= {names.COUNT: count} if is_relay else {names.TASK: name}
        span = self._tracer.start_span(
            "onceonly.relay" if is_relay else "onceonly.maintenance", context=_ROOT, attributes=attributes
        )
        token = current.attach(set_span_in_context(span, _ROOT))
        try:
            yield
        except Exception as error:
            self._fail(span, error_name(error))
            raise
        finally:
            current.detach(token)
            span.end()

    # Port calls

    def around(self, call: PortCall) -> AbstractAsyncContextManager[object]:
        """Return the span of this call, if it has one. A run that is not sampled has the context of its trace."""
        if call.point is Point.HANDLE:
            traces = [unsampled(message) for message in call.items] if self._continues else ()
            return _UnsampledRun(self, traces[0]) if traces and all(traces) else _NOTHING
        enclosing = _ENCLOSING.get(call.point)
        return _NOTHING if enclosing is None else enclosing(self, call)

    # Runs of handlers

    def samples(self, message: Message) -> bool:
        """Return whether a message may have spans here: not if it was created in a trace that is not sampled."""
        return not (self._continues and unsampled(message))

    def started(self, message: Message) -> None:
        """Start the span of a run of a message's handler. An earlier run of it was rolled back, and ends."""
        if not self.samples(message):
            return
        key = id(message)
        if key in self._runs:
            self._end_run(message)
        created = creation_of(message)
        span = self._tracer.start_span(
            self._process_name,
            context=created if self._continues else _ROOT,
            kind=SpanKind.CONSUMER,
            attributes=self._process,
        )
        token = current.attach(set_span_in_context(span, _ROOT))  # the handler's own spans are its children
        self._runs[key] = ProcessSpan(span, message, token)
        if span.is_recording():
            span.set_attributes(self._of(message))
            if not self._continues:
                _link(span, link_to(created))
            if (unit := self._unit_of.get(key)) is not None:
                _link(span, unit.span.get_span_context())
                _link(unit.span, span.get_span_context())

    def ended(self, message: Message, error: BaseException | None) -> None:
        """Note that the handler has ended. The span ends when the message is settled, with this time."""
        run = self._runs.get(id(message))
        if run is None:
            return
        if run.span.is_recording():
            run.ended_at = now = time.time_ns()
            if (unit := self._unit_of.get(id(message))) is not None:
                unit.active_at = now
        self.failed(error)
        if run.token is not None:
            current.detach(run.token)
            run.token = None

    def failed(self, error: BaseException | None) -> None:
        """Record what a run of a handler raised, if it is an error of its own."""
        if isinstance(error, Exception) and not isinstance(error, BudgetExceeded | ConflictError):
            self._record_exception(error)

    # Units, and calls about batches

    def begin_unit(self, messages: Sequence[Message]) -> tuple[UnitSpan, Span]:
        """Start the spans of a unit and of its `begin`. Units that these messages were in before are over."""
        if self._unit_of:
            for message in messages:
                self._end_unit_of(message)
        span = self._tracer.start_span("onceonly.unit", context=_ROOT)
        if span.is_recording():
            span.set_attributes({names.ENDPOINT: self._about.endpoint, names.COUNT: len(messages)})
        unit = UnitSpan(span)
        return unit, self._tracer.start_span("begin", context=unit.context)

    def has_begun(self, unit: UnitSpan, begin: Span, call: PortCall, error: BaseException | None) -> None:
        if error is not None:
            self._fail(begin, error_name(error))
        begin.end()
        if error is not None or call.result is None:
            self._fail(unit.span, "" if error is None else error_name(error))
            self._end_unit(unit)
            return
        unit.key, unit.active_at = id(call.result), time.time_ns()
        self._units[unit.key] = unit
        if unit.span.is_recording():
            for message in call.items:
                self._unit_of[id(message)] = unit

    def begin_commit(self, call: PortCall) -> tuple[UnitSpan, Span] | None:
        unit = self._units.get(id(call.port))
        return None if unit is None else (unit, self._tracer.start_span("commit", context=unit.context))

    def has_committed(self, unit: UnitSpan, commit: Span, error: BaseException | None) -> None:
        if error is not None:
            self._fail(commit, error_name(error))
            self._fail(unit.span, error_name(error))
        commit.end()
        unit.active_at = time.time_ns()
        self._end_unit(unit)

    def start_call(self, call: PortCall, started_at: int | None = None) -> Span:
        """Start the span of a call about a batch, with links to where its messages were created."""
        context: Context | None = _ROOT
        if call.point is Point.RECEIVE:
            name, attributes = f"receive {self._about.queue}", self._about.operation("receive", "receive", self._about.queue)
        elif call.point is Point.DISPATCH:
            destination = self._common_destination(call.items)
            name, context = f"send {destination}".rstrip(), None
            attributes = self._about.operation("send", "send", destination)
        else:
            name, attributes = f"{_SETTLES[call.point]} {self._about.queue}", self._settle[call.point]
        span = self._tracer.start_span(
            name, context=context, kind=SpanKind.CLIENT, attributes=attributes, start_time=started_at
        )
        if span.is_recording():
            span.set_attribute(names.COUNT, call.count)
            for item in (call.result or ()) if call.point is Point.RECEIVE else call.items:
                self._link_item(span, item)
        return span

    def end_call(self, span: Span, error: BaseException | None) -> None:
        if error is not None:
            self._fail(span, error_name(error))
        span.end()

    # Outcomes

    def settled(self, outcome: MessageOutcome) -> None:
        """End the span of a message, with its outcome. Without a run of its handler it has one all the same."""
        message = outcome.message
        run = None if message is None or outcome.is_copy else self._runs.pop(id(message), None)
        if message is not None and not outcome.is_copy:
            self._end_unit_of(message)
        if run is None and message is not None and not self.samples(message):
            return
        span, ended_at = (self._without_run(outcome), None) if run is None else (run.span, run.ended_at or None)
        if span.is_recording():
            span.set_attribute(names.OUTCOME, outcome.outcome.value)
            span.set_attribute(names.ATTEMPT, outcome.attempt)
            if outcome.error and outcome.outcome is not OutcomeKind.HANDLED:
                self._fail(span, outcome.error)
        span.end(end_time=ended_at)

    def released(self, endpoint: str, message: Message) -> None:
        """End the span of a message without an outcome: nothing of the run was committed."""
        self._end_run(message)
        self._end_unit_of(message)

    def _without_run(self, outcome: MessageOutcome) -> Span:
        created = creation_in(outcome.delivery) if outcome.message is None else creation_of(outcome.message)
        span = self._tracer.start_span(
            self._process_name,
            context=created if self._continues else _ROOT,
            kind=SpanKind.CONSUMER,
            attributes=self._process,
        )
        if span.is_recording():
            if outcome.message is not None:
                span.set_attributes(self._of(outcome.message))
            if not self._continues:
                _link(span, link_to(created))
        return span

    def _end_run(self, message: Message) -> None:
        if (run := self._runs.pop(id(message), None)) is not None:
            run.span.end(end_time=run.ended_at or None)

    def _end_unit_of(self, message: Message) -> None:
        if (unit := self._unit_of.pop(id(message), None)) is not None:
            self._end_unit(unit)

    def _end_unit(self, unit: UnitSpan) -> None:
        self._units.pop(unit.key, None)
        if not unit.is_over:
            unit.is_over = True
            unit.span.end(end_time=unit.active_at)

    # Attributes, links and errors

    def _of(self, message: Message) -> names.Attributes:
        attributes = names.about(message)
        return attributes | {names.BODY_SIZE: len(message.body)} if self._body_size else attributes

    def _common_destination(self, sends: Sequence[Send]) -> str:
        """Return the destination of all of these. Empty if they differ: it is on the links then."""
        found = {self._about.destination(type_, to) for type_, to in {(send.message.type, send.to) for send in sends}}
        return found.pop() if len(found) == 1 else ""

    def _link_item(self, span: Span, item: Any) -> None:
        attributes: names.Attributes = {}
        if isinstance(item, Delivery):
            created = creation_in(item)
        else:
            message = getattr(item, "message", None)
            if message is None:
                return
            created, attributes = creation_of(message), self._of(message)
            if isinstance(item, Send):
                attributes[names.DESTINATION] = self._about.destination(message.type, item.to)
        _link(span, link_to(created), attributes)

    def _fail(self, span: Span, error: str) -> None:
        if span.is_recording() and error:
            span.set_attribute(names.ERROR, self._bounded(error))
            span.set_status(Status(StatusCode.ERROR))

    def _bounded(self, error: str) -> str:
        """Return the class of an error, or `_OTHER` once there are many."""
        if error not in self._errors:
            if len(self._errors) >= names.MOST_ERRORS:
                return names.OTHER_ERROR
            self._errors.add(error)
        return error

    def _record_exception(self, error: Exception) -> None:
        """Record what a handler raised as a log event, in the span of its run. Decisions of a handler are left out."""
        if isinstance(error, HandlerFailed):
            if error.failure.kind in _DECISIONS:
                return
            message, trace = error.failure.reason, error.failure.traceback
        else:
            message, trace = str(error), ""
        attributes = {"exception.type": error_name(error), "exception.message": message}
        if trace:
            attributes["exception.stacktrace"] = trace
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                context=current.get_current(),
                severity_number=SeverityNumber.ERROR,
                severity_text="ERROR",
                event_name=EXCEPTION_EVENT,
                attributes=attributes,
            )
        )


def _link(span: Span, to: SpanContext | None, attributes: names.Attributes | None = None) -> None:
    if to is not None and to.is_valid:
        span.add_link(to, attributes)


class _UnsampledRun:
    """Encloses the run of a handler whose message is of a trace that is not sampled, in the context of that trace."""

    __slots__ = ("_headers", "_token", "_tracing")

    def __init__(self, tracing: EndpointTracing, headers: Headers) -> None:
        self._tracing, self._headers = tracing, headers
        self._token: Token[Context] | None = None

    async def __aenter__(self) -> None:
        self._token = current.attach(set_span_in_context(UnsampledSpan(self._headers), _ROOT))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._tracing.failed(error)
        if self._token is not None:
            current.detach(self._token)


class _UnitCall:
    """Encloses the beginning of a unit, or its commit."""

    __slots__ = ("_call", "_started", "_token", "_tracing")

    def __init__(self, tracing: EndpointTracing, call: PortCall) -> None:
        self._tracing, self._call = tracing, call
        self._started: tuple[UnitSpan, Span] | None = None
        self._token: Token[Context] | None = None

    async def __aenter__(self) -> None:
        if self._call.point is Point.BEGIN:
            self._started = self._tracing.begin_unit(self._call.items)
        else:
            self._started = self._tracing.begin_commit(self._call)
        if self._started is not None:
            unit, span = self._started
            self._token = current.attach(set_span_in_context(span, unit.context))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started is None:
            return
        if self._token is not None:
            current.detach(self._token)
        if self._call.point is Point.BEGIN:
            self._tracing.has_begun(*self._started, self._call, error)
        else:
            self._tracing.has_committed(*self._started, error)


class _BatchCall:
    """Encloses a call of the transport or of the dead letters. An empty receive has no span."""

    __slots__ = ("_call", "_span", "_started_at", "_token", "_tracing")

    def __init__(self, tracing: EndpointTracing, call: PortCall) -> None:
        self._tracing, self._call = tracing, call
        self._span: Span | None = None
        self._started_at = 0
        self._token: Token[Context] | None = None

    async def __aenter__(self) -> None:
        if self._call.point is Point.RECEIVE:
            self._started_at = time.time_ns()
        elif self._call.items:
            self._span = self._tracing.start_call(self._call)
            self._token = current.attach(set_span_in_context(self._span))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            current.detach(self._token)
        if self._call.point is Point.RECEIVE and (self._call.result or isinstance(error, Exception)):
            self._span = self._tracing.start_call(self._call, self._started_at)
        if self._span is not None:
            self._tracing.end_call(self._span, error)


_ENCLOSING: dict[Point, Callable[[EndpointTracing, PortCall], AbstractAsyncContextManager[object]]] = {
    **dict.fromkeys((Point.BEGIN, Point.COMMIT), _UnitCall),
    **dict.fromkeys((Point.RECEIVE, Point.DISPATCH, *_SETTLES), _BatchCall),
}
