"""Spans and log events in memory, for tests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler
from opentelemetry.trace import SpanContext, SpanKind

from onceonly.telemetry import OpenTelemetry


class Recording:
    """Providers whose spans and log events are kept."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.spans, self.logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
        self.tracers, self.loggers = TracerProvider(sampler=sampler), LoggerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.loggers.add_log_record_processor(SimpleLogRecordProcessor(self.logs))
        self.telemetry = self.setting()

    def setting(self, **options: object) -> OpenTelemetry:
        """Return a setting that uses these providers."""
        return OpenTelemetry(tracer_provider=self.tracers, logger_provider=self.loggers, **options)  # type: ignore[arg-type]

    @contextmanager
    def request(self, name: str = "POST /orders") -> Iterator[SpanContext]:
        """Enclose a block in a span of a server, as an instrumented web framework does."""
        with self.tracers.get_tracer("web").start_as_current_span(name, kind=SpanKind.SERVER) as span:
            yield span.get_span_context()

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of this name, in the order in which they ended."""
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """Return the only span of this name."""
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans are named {name!r}: {sorted(self.names)}"
        return found[0]

    async def until(self, name: str) -> None:
        """Wait until a span of this name has ended."""
        async with asyncio.timeout(60):
            while not self.named(name):  # noqa: ASYNC110 - the exporter has no event
                await asyncio.sleep(0.005)

    @property
    def names(self) -> list[str]:
        """The names of all spans, in the order in which they ended."""
        return [span.name for span in self.spans.get_finished_spans()]


@pytest.fixture
def recording() -> Recording:
    """Record everything."""
    return Recording()


def parent_of(span: ReadableSpan) -> int | None:
    """Return the id of a span's parent."""
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    """Return a span's id."""
    assert span.context is not None
    return span.context.span_id


def trace_of(span: ReadableSpan) -> int:
    """Return the id of a span's trace."""
    assert span.context is not None
    return span.context.trace_id


def linked(span: ReadableSpan) -> set[int]:
    """Return the ids of the spans that a span links to."""
    return {link.context.span_id for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, object]:
    """Return a span's attributes."""
    return dict(span.attributes or {})
