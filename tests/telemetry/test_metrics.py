"""The metrics of an endpoint in a meter provider: by their names, units and buckets, and only where one keeps them."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from onceonly.model.errors import SetupError
from onceonly.model.message import Delivery, Message, Send
from onceonly.model.record import Answer
from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.observer import MOST_DESTINATIONS, MOST_ERRORS, MOST_TYPES, OTHER, MetricsObserver
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.runtime.observe.outcomes import MessageOutcome, OutcomeKind
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


async def test_gauges_of_servers_are_read_at_intervals(recording: Recording, tmp_path: Path) -> None:
    """What the queue, the store and the dead letters know, of both services. Nothing is left of it when they have stopped."""
    reader = InMemoryMetricReader()
    telemetry = recording.setting(meter_provider=MeterProvider([reader]), gauges=timedelta(seconds=1))
    places = services(f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/queue.db", telemetry)
    async with places.running():
        await places.place("a")
        await places.billed.wait()
        while not is_read(found := points(reader)):  # noqa: ASYNC110 - the reader has no event
            await asyncio.sleep(0.05)
        assert set(waiting(found)) == {"shop", "billing"}
        assert {name for name, (_, rows) in found.items() if rows} >= {
            metric.name
            for metric in (catalog.PENDING, catalog.DEAD_LETTERS, catalog.RETENTION, catalog.INTERVAL, catalog.POOL, catalog.UP)
        }
        assert {row.value for row in found[catalog.UP.name][1]} == {1}
    assert not waiting(points(reader))


def is_read(found: dict[str, tuple[str, list[Any]]]) -> bool:
    """Return whether both queues and a run of maintenance were read, and nothing waits in them any more."""
    return len(rows := waiting(found)) == 2 and not any(rows.values()) and catalog.MAINTENANCE.name in found


def waiting(found: dict[str, tuple[str, list[Any]]]) -> dict[str, float]:
    """Return the messages that wait, by endpoint."""
    _, rows = found.get(catalog.QUEUE_MESSAGES.name, ("", []))
    return {row.attributes[catalog.ENDPOINT]: row.value for row in rows if row.attributes[catalog.STATE] == "waiting"}


def test_gauges_can_be_left_out(recording: Recording) -> None:
    """Nothing is read then, and nothing without a meter provider."""
    provider = MeterProvider()
    assert recording.setting(meter_provider=provider).instrument(SUBJECT).gauges is not None
    assert recording.setting(meter_provider=provider, gauges=None).instrument(SUBJECT).gauges is None
    assert recording.telemetry.instrument(SUBJECT).gauges is None
    with pytest.raises(SetupError, match=r"at least a second, not 0\.5 s"):
        OpenTelemetry(gauges=timedelta(seconds=0.5))


def test_nothing_is_counted_without_a_provider(recording: Recording) -> None:
    """The global one keeps nothing, so it costs nothing."""
    assert recording.telemetry._metrics(SUBJECT, "1") is None


def test_one_provider_is_enough() -> None:
    """Traces may go nowhere."""
    found = OpenTelemetry(meter_provider=MeterProvider())._metrics(SUBJECT, "1")
    assert isinstance(found, MetricsObserver)


def test_thousands_of_own_types_make_a_bounded_number_of_series(recording: Recording) -> None:
    """Of messages, of what is sent, of errors and of durations: each instrument keeps the first names, and the rest as one."""
    count, reader = 3000, InMemoryMetricReader()
    metrics = recording.setting(meter_provider=MeterProvider([reader]))._metrics(SUBJECT, "1")
    assert metrics is not None
    for number in range(count):
        message = Message(id=f"m{number}", source="s", type=f"Event{number:04}", body=b"")
        delivery = Delivery(receipt=number, queue="shop", headers=(), body=b"")
        error = type(f"Error{number}", (Exception,), {})("no")
        send, refused = Send(message=message), Send(message=message, to=f"queue-{number}")
        metrics.ended(PortCall(Point.DISPATCH, "shop", (send, refused), result=(Answer.TAKEN, Answer.REFUSED)), None, 0.01)
        metrics.ended(PortCall(Point.HANDLE, "shop", (message,)), error, 0.01)
        metrics.ended(PortCall(Point.RECEIVE, "shop", result=(delivery,)), error, 0.01)
        for outcome in OutcomeKind:
            metrics.settled(MessageOutcome(endpoint="shop", outcome=outcome, delivery=delivery, message=message, attempt=1))
    found = points(reader)
    types = {kind for _, kind, outcome in counted(found, catalog.MESSAGES) if outcome == OutcomeKind.HANDLED.value}
    assert (len(types), OTHER in types) == (MOST_TYPES + 1, True)
    handled = counted(found, catalog.MESSAGES)
    assert sum(value for (_, _, outcome), value in handled.items() if outcome == OutcomeKind.HANDLED.value) == count
    destinations = {row[3] for row in counted(found, catalog.SENT)}
    assert (len(destinations), OTHER in destinations) == (MOST_DESTINATIONS + 1, True)
    assert sum(counted(found, catalog.SENT).values()) == 2 * count
    each_name = (MOST_TYPES + MOST_DESTINATIONS + MOST_ERRORS + 3) * len(OutcomeKind)
    assert {name: len(rows) for name, (_, rows) in found.items() if len(rows) > each_name} == {}
