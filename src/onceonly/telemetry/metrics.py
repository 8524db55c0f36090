"""The metrics of `onceonly.runtime.metrics` as instruments of OpenTelemetry.

Counters and histograms are those of one process. Gauges are read from databases and brokers at intervals, because a reader of
OpenTelemetry cannot wait for a server. It is given what was read last.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from opentelemetry.metrics import Observation

from onceonly.runtime.metrics.catalog import INTERVAL, METRICS, POOL, RETENTION, Metric, MetricKind, Source
from onceonly.runtime.metrics.series import Instrument, Row, pool_connections

Record = Callable[[float, dict[str, str]], None]


class OpenTelemetryMeter:
    def __init__(self, meter: Any) -> None:
        self.meter = meter

    def instrument(self, metric: Metric) -> Instrument:
        """Return the instrument of a counter or a histogram, by its name, unit and buckets."""
        names: dict[str, Any] = {"name": metric.name, "unit": metric.unit, "description": metric.meaning}
        if metric.kind is MetricKind.COUNTER:
            return OpenTelemetryInstrument(self.meter.create_counter(**names).add, metric)
        histogram = self.meter.create_histogram(**names, explicit_bucket_boundaries_advisory=metric.buckets)
        return OpenTelemetryInstrument(histogram.record, metric)


class OpenTelemetryInstrument:
    """One instrument. The attributes of each row are made once."""

    def __init__(self, record: Record, metric: Metric) -> None:
        self._record, self._names = record, metric.attributes
        self._attributes: dict[tuple[str, ...], dict[str, str]] = {}

    def add(self, attributes: tuple[str, ...], value: float = 1) -> None:
        known = self._attributes.get(attributes)
        if known is None:
            known = self._attributes[attributes] = named(self._names, attributes)
        self._record(value, known)


class OpenTelemetryGauges:
    """What was read last of each endpoint, as observable instruments. One for all endpoints with the same setting."""

    def __init__(self, meter: Any, every: float) -> None:
        """Make the instruments. `every` are the seconds between two reads."""
        self.every = every
        self._shown: dict[str, Mapping[Row, float]] = {}
        for metric in METRICS:
            if metric.source is Source.SERVERS or metric in (RETENTION, INTERVAL):
                observe: Any = partial(self._observe, metric)
            elif metric is POOL:
                observe = _pools
            else:
                continue
            is_gauge = metric.kind is MetricKind.GAUGE
            create = meter.create_observable_gauge if is_gauge else meter.create_observable_counter
            create(metric.name, callbacks=[observe], unit=metric.unit, description=metric.meaning)

    def show(self, endpoint: str, values: Mapping[Row, float]) -> None:
        self._shown[endpoint] = values

    def _observe(self, metric: Metric, _options: Any) -> Iterable[Observation]:
        rows = {row: value for values in tuple(self._shown.values()) for row, value in values.items() if row[0] is metric}
        return [Observation(value, named(metric.attributes, attributes)) for (_, attributes), value in rows.items()]


def _pools(_options: Any) -> Iterable[Observation]:
    return [Observation(pool.number, named(POOL.attributes, (pool.system, pool.state))) for pool in pool_connections()]


def named(names: tuple[str, ...], attributes: tuple[str, ...]) -> dict[str, str]:
    """Return the attributes of a row by name. An empty one is left out, as the conventions ask."""
    return {name: each for name, each in zip(names, attributes, strict=True) if each}


def records(provider: Any) -> bool:
    """Return whether a provider keeps what is recorded: the global one does not until an application sets it."""
    return type(provider).__name__ not in ("NoOpMeterProvider", "_ProxyMeterProvider")
