"""The trace of a task: that of the span that is current when it runs, or else that of the context in its message.

An instrumentation of Celery puts the context of the caller into the headers of the message, by the names of W3C.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from onceonly.model.message import TRACE_CONTEXT, TRACE_PARENT


def carried_context(request: Any) -> Mapping[str, str]:
    """Return the headers of a task's message that have the context of its caller. Empty if there is none."""
    found = {name: request.get(name) for name in TRACE_CONTEXT}
    has_parent = isinstance(found[TRACE_PARENT], str)
    return {name: value for name, value in found.items() if isinstance(value, str)} if has_parent else {}


@contextmanager
def in_trace(carried: Mapping[str, str]) -> Iterator[None]:
    """Enclose a task in the context of its caller, unless a span is current: that of the worker's own instrumentation."""
    if not carried:
        yield
        return
    from opentelemetry import context, trace  # noqa: PLC0415 - only an endpoint with telemetry needs it
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 - the same

    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = context.attach(TraceContextTextMapPropagator().extract(carried))
    try:
        yield
    finally:
        context.detach(token)
