"""The metrics of `onceonly.runtime.metrics` as instruments of OpenTelemetry: counters and histograms of one process.

Gauges of databases and brokers are served by `/metrics` only: a reader of OpenTelemetry cannot wait for a server.
"""

from collections.abc import Callable
from typing import Any

from onceonly.runtime.metrics.catalog import Metric, MetricKind
from onceonly.runtime.metrics.series import Instrument

Record = Callable[[float, dict[str, str]], None]


class OpenTelemetryMeter:
    """Makes instruments with a meter of OpenTelemetry."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter

    def instrument(self, metric: Metric) -> Instrument:
        """Return the instrument of a metric, by its name, unit and buckets."""
        names: dict[str, Any] = {"name": metric.name, "unit": metric.unit, "description": metric.meaning}
        if metric.kind is MetricKind.COUNTER:
            return OpenTelemetryInstrument(self._meter.create_counter(**names).add, metric)
        if metric.kind is MetricKind.GAUGE:
            return OpenTelemetryInstrument(self._meter.create_gauge(**names).set, metric)
        histogram = self._meter.create_histogram(**names, explicit_bucket_boundaries_advisory=metric.buckets)
        return OpenTelemetryInstrument(histogram.record, metric)


class OpenTelemetryInstrument:
    """One instrument. The attributes of each row are made once."""

    def __init__(self, record: Record, metric: Metric) -> None:
        self._record, self._names = record, metric.attributes
        self._attributes: dict[tuple[str, ...], dict[str, str]] = {}

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        """Record a value. An empty attribute is left out, as the conventions ask."""
        named = self._attributes.get(attributes)
        if named is None:
            pairs = zip(self._names, attributes, strict=True)
            named = self._attributes[attributes] = {name: each for name, each in pairs if each}
        self._record(value, named)


def records(provider: Any) -> bool:
    """Return whether a provider keeps what is recorded: the global one does not until an application sets it."""
    return type(provider).__name__ not in ("NoOpMeterProvider", "_ProxyMeterProvider")
