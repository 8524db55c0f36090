"""The metrics of an endpoint in a meter provider: by their names, units and buckets, and only where one keeps them."""

from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.observer import MetricsObserver
from onceonly.runtime.observe.telemetry import TelemetrySubject
from onceonly.telemetry.settings import OpenTelemetry
from tests.telemetry.places import services
from tests.telemetry.recording import Recording

SUBJECT = TelemetrySubject("shop", "memory", "memory://a", "history")


def points(reader: InMemoryMetricReader) -> dict[str, tuple[str, list[Any]]]:
    """Return the unit and the points of each metric."""
    data = reader.get_metrics_data()
    assert data is not None
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    assert (scope.scope.name, scope.schema_url) == ("onceonly", catalog.SCHEMA_URL)
    return {metric.name: (metric.unit or "", [*metric.data.data_points]) for metric in scope.metrics}


def counted(found: dict[str, tuple[str, list[Any]]], metric: catalog.Metric) -> dict[tuple[str, ...], Any]:
    """Return what was counted, by the attributes in their order; not what is 0."""
    unit, rows = found[metric.name]
    assert unit == metric.unit
    assert all(set(row.attributes) <= set(metric.attributes) for row in rows)
    return {tuple(row.attributes.get(name, "") for name in metric.attributes): row.value for row in rows if row.value}


async def test_a_meter_provider_has_what_metrics_serves(recording: Recording, tmp_path: Path) -> None:
    """Of both services: outcomes, calls to the broker and durations."""
    reader = InMemoryMetricReader()
    telemetry = recording.setting(meter_provider=MeterProvider([reader]))
    places = services(f"sqlite:///{tmp_path}/shop.db", f"memory://{tmp_path.name}", telemetry)
    async with places.running():
        await places.place("a")
        await places.billed.wait()
    found = points(reader)
    outcomes = counted(found, catalog.MESSAGES)
    assert outcomes == {("shop", "PlaceOrder", "handled"): 1, ("billing", "OrderPlaced", "handled"): 1}
    assert counted(found, catalog.CONSUMED)["billing", "memory", "receive", "billing", ""] == 1
    assert counted(found, catalog.SENT)["shop", "memory", "send", "OrderPlaced", ""] == 1
    unit, durations = found[catalog.PROCESS_DURATION.name]
    assert unit == "s"
    for point in durations:
        assert isinstance(point, HistogramDataPoint)
        assert (point.count, tuple(point.explicit_bounds)) == (1, catalog.DURATION_BUCKETS_SECONDS)
    assert {point.attributes[catalog.ENDPOINT] for point in durations} == {"shop", "billing"}
    assert len(found[catalog.AGE.name][1]) == 2


def test_nothing_is_counted_without_a_provider(recording: Recording) -> None:
    """The global one keeps nothing, so it costs nothing."""
    assert recording.telemetry._metrics(SUBJECT, "1") is None


def test_one_provider_is_enough() -> None:
    """Traces may go nowhere."""
    found = OpenTelemetry(meter_provider=MeterProvider())._metrics(SUBJECT, "1")
    assert isinstance(found, MetricsObserver)
