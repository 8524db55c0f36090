"""The context in which a message was created, as it travels: W3C `traceparent` and `tracestate`.

They are CloudEvents extension attributes (the distributed tracing extension), so records, retry copies and dead letters keep
them. Other senders may write them as plain headers.
"""

from collections.abc import Iterable, Mapping

from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from onceonly.formats.cloudevents import attribute_of
from onceonly.model.message import Delivery, Headers, Message

PARENT, STATE = "traceparent", "tracestate"
_NAMES = (PARENT, STATE)
_propagator = TraceContextTextMapPropagator()
_EMPTY = Context()
_LENGTH = 55
_EVEN = frozenset("02468ace")
"""The last digits of flags without the one for a trace that is sampled."""


class UnsampledSpan(NonRecordingSpan):
    """Stands for the span in which a message was created, of a trace that is not sampled. `headers` carry its context.

    Most of them are never asked for it, so it is read on demand.
    """

    def __init__(self, headers: Headers) -> None:
        """Keep the extension attributes of a message, or its headers."""
        self._all = headers

    @property
    def headers(self) -> Headers:
        return tuple([pair for pair in self._all if pair[0] in _NAMES])

    def get_span_context(self) -> SpanContext:
        return get_current_span(_propagator.extract(dict(self.headers), _EMPTY)).get_span_context()


def unsampled(message: Message) -> Headers:
    """Return the attributes of a message that was created in a trace that is not sampled: its extensions, or its headers.

    Empty for a trace that is sampled, for none, and for one of another version than 00, whose flags may differ.
    """
    for headers in (message.extensions, message.headers):
        for name, value in headers:
            if name == PARENT:
                return headers if value[-1:] in _EVEN and value[:3] == "00-" and len(value) == _LENGTH else ()
    return ()


def written(context: SpanContext) -> Headers:
    """Return the attributes that carry a span's context. Empty if it is none."""
    if not context.is_valid:
        return ()
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return ((PARENT, parent), (STATE, context.trace_state.to_header())) if context.trace_state else ((PARENT, parent),)


def creation_of(message: Message) -> Context:
    """Return the context in which a message was created. Empty if it carries none."""
    found = _found(message.extensions) or _found(message.headers)
    return _propagator.extract(found, _EMPTY) if found else _EMPTY


def creation_in(delivery: Delivery) -> Context:
    """Return the same for a delivery, which may be unreadable."""
    found = _found((attribute_of(name) or "", value) for name, value in delivery.headers) or _found(delivery.headers)
    return _propagator.extract(found, _EMPTY) if found else _EMPTY


def link_to(context: Context) -> SpanContext | None:
    """Return the span of a context, to link to. None if it has none."""
    span = get_current_span(context).get_span_context()
    return span if span.is_valid else None


def _found(headers: Iterable[tuple[str, str]]) -> Mapping[str, str] | None:
    found = {name: value for name, value in headers if name in _NAMES}
    return found if PARENT in found else None
