"""`/metrics`: the numbers of all processes and the gauges, as Prometheus text. Needs the extra `prometheus`."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from onceonly.assembly.gauges import GaugeReader, fixed
from onceonly.config.endpoint import Settings
from onceonly.model.health import Pulse
from onceonly.runtime.metrics import catalog
from onceonly.runtime.metrics.catalog import METRICS, Metric, MetricKind
from onceonly.runtime.metrics.observer import MOST_DESTINATIONS, MOST_ERRORS, OTHER, OTHER_ERROR, CappedNames
from onceonly.runtime.metrics.series import Numbers, Row, SharedSeries
from onceonly.runtime.observe.http import HealthReply, TextBody

INSTALL = "pip install 'onceonly[prometheus]'"


def can_serve_metrics() -> bool:
    """Return whether the library for the text is installed. Without it nothing is counted."""
    return find_spec("prometheus_client") is not None


def metrics_missing() -> HealthReply:
    """Answer that the library is not installed."""
    return HealthReply(HTTPStatus.NOT_IMPLEMENTED, {"error": f"/metrics needs prometheus_client: {INSTALL}"})


class MetricsPage:
    """The page. A scrape waits for the gauges, two seconds at most when a server does not answer."""

    def __init__(
        self,
        series: SharedSeries,
        settings: Sequence[Settings],
        pulses: Callable[[], Sequence[Pulse]],
        *,
        silent: float,
        gauges: GaugeReader | None = None,
    ) -> None:
        """Show these numbers. A process whose event loop has been blocked for `silent` seconds hangs."""
        self._series, self._pulses, self._silent = series, pulses, silent
        self.gauges = gauges
        # all processes together, not 50 of each
        self._errors = CappedNames(MOST_ERRORS, OTHER_ERROR)
        self._destinations = {each.name: CappedNames(MOST_DESTINATIONS, OTHER, [each.name]) for each in settings}
        self._fixed = fixed(settings)

    async def __call__(self) -> HealthReply:
        rows: dict[Row, Numbers] = {}
        for (metric, attributes), numbers in self._series.sums().items():
            _add(rows, (metric, self._capped(metric, attributes)), numbers)
        read = await self.gauges.values() if self.gauges is not None else {}
        for row, value in {**self._fixed, **self._processes(), **read}.items():
            rows[row] = Numbers((), value)
        return HealthReply(HTTPStatus.OK, prometheus_text(rows))

    def _capped(self, metric: Metric, attributes: tuple[str, ...]) -> tuple[str, ...]:
        values = dict(zip(metric.attributes, attributes, strict=True))
        if catalog.ERROR in values:
            values[catalog.ERROR] = self._errors(values[catalog.ERROR])
        if catalog.DESTINATION in values and (known := self._destinations.get(values[catalog.ENDPOINT])):
            values[catalog.DESTINATION] = known(values[catalog.DESTINATION])
        return tuple(values.values())

    def _processes(self) -> dict[Row, float]:
        states = Counter({"running": 0, "starting": 0, "hanging": 0, "ended": 0})
        states.update(_state(pulse, self._silent) for pulse in self._pulses())
        return {(catalog.PROCESSES, (state,)): number for state, number in states.items()}


def prometheus_text(rows: dict[Row, Numbers]) -> TextBody:
    """Write rows in the text format of Prometheus. A gauge, or a counter that was read elsewhere, has no counts but a total."""
    from prometheus_client import CollectorRegistry, exposition, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_RowCollector(rows))
    return TextBody(exposition.CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry))


class _RowCollector:
    def __init__(self, rows: dict[Row, Numbers]) -> None:
        self._rows = rows

    def collect(self) -> Iterator[Any]:
        found: dict[Metric, list[tuple[tuple[str, ...], Numbers]]] = {}
        for (metric, attributes), numbers in self._rows.items():
            found.setdefault(metric, []).append((attributes, numbers))
        for metric in METRICS:
            if metric in found:
                yield _family(metric, sorted(found[metric]))


def _family(metric: Metric, rows: list[tuple[tuple[str, ...], Numbers]]) -> Any:
    from prometheus_client import core

    name, meaning, labels = metric.prometheus, metric.meaning, metric.labels
    if metric.kind is MetricKind.HISTOGRAM:
        family = core.HistogramMetricFamily(name, meaning, labels=labels)
        for attributes, numbers in rows:
            bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
            buckets = list(zip(bounds, accumulate(numbers.counts), strict=True))
            family.add_metric(attributes, buckets, numbers.total)
        return family
    kind = core.CounterMetricFamily if metric.kind is MetricKind.COUNTER else core.GaugeMetricFamily
    simple = kind(name, meaning, labels=labels)
    for attributes, numbers in rows:
        simple.add_metric(attributes, sum(numbers.counts) + numbers.total)
    return simple


def _add(rows: dict[Row, Numbers], row: Row, numbers: Numbers) -> None:
    before = rows.get(row)
    rows[row] = numbers if before is None else before.plus(numbers)


def _state(pulse: Pulse, silent: float) -> str:
    if not pulse.runs:
        return "ended"
    if pulse.starts:
        return "starting"
    return "hanging" if pulse.silent > silent else "running"
