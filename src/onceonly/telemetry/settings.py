"""The setting: from which providers tracers and loggers come, and what a consumer's span has as its parent."""

from datetime import timedelta
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Literal

from onceonly.model.errors import DriverMissing, SetupError
from onceonly.runtime.metrics.observer import EndpointLabels, MetricsObserver
from onceonly.runtime.observe.observer import Observers
from onceonly.runtime.observe.outcomes import OutcomeObserver

if TYPE_CHECKING:
    from opentelemetry._logs import LoggerProvider
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from onceonly.telemetry.metrics import OpenTelemetryGauges

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SCOPE = "onceonly"


class OpenTelemetry:
    """Traces of an endpoint: `Endpoint(..., telemetry=OpenTelemetry())`.

    * `tracer_provider`, `meter_provider`, `logger_provider`: default: the global ones, which `opentelemetry-instrument` sets.
    * `parent`: with "creation", the span of a handled message continues the trace in which the message was created. With
      "links", it begins a trace, and links to the other one.
    * `body_size`: whether spans of messages have the size of the body.
    * `gauges`: how often each process reads what databases and brokers know, such as the depth of the queue; at least a second.
      None: never. It is read only if there is a meter provider. All processes report the same values, so take their maximum.

    One object may serve several endpoints. Raises DriverMissing without the OpenTelemetry API, SetupError for another `parent`.
    """

    def __init__(
        self,
        *,
        tracer_provider: "TracerProvider | None" = None,
        meter_provider: "MeterProvider | None" = None,
        logger_provider: "LoggerProvider | None" = None,
        parent: Literal["creation", "links"] = "creation",
        body_size: bool = False,
        gauges: timedelta | None = timedelta(seconds=30),
    ) -> None:
        try:
            import opentelemetry.trace  # noqa: F401, PLC0415 - imported only when it is used
        except ImportError as error:
            raise DriverMissing(
                "telemetry=OpenTelemetry() needs the OpenTelemetry API, which is not installed: pip install "
                "'onceonly[opentelemetry]'"
            ) from error
        given: object = parent
        if given not in ("creation", "links"):
            raise SetupError(f'OpenTelemetry(parent=...) must be "creation" or "links", not {given!r:.100}')
        if gauges is not None and gauges < timedelta(seconds=1):
            raise SetupError(f"OpenTelemetry(gauges=...) must be at least a second, not {gauges.total_seconds():g} s")
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._logger_provider = logger_provider
        self._continues = parent == "creation"
        self._body_size = body_size
        self._every = gauges
        self._gauges: OpenTelemetryGauges | None = None
        """Made when the first endpoint with a meter provider opens. All endpoints share it."""

    def instrument(self, subject: Any) -> Any:
        """Return the telemetry of one endpoint. The endpoint calls it when it opens."""
        from opentelemetry._logs import get_logger  # noqa: PLC0415 - when an endpoint opens
        from opentelemetry.trace import get_tracer  # noqa: PLC0415 - the same

        from onceonly.telemetry.conventions import EndpointNames  # noqa: PLC0415 - the same
        from onceonly.telemetry.tracing import EndpointTracing  # noqa: PLC0415 - the same

        number = version("onceonly")
        tracing = EndpointTracing(
            get_tracer(SCOPE, number, self._tracer_provider, SCHEMA_URL),
            get_logger(SCOPE, number, self._logger_provider, SCHEMA_URL),
            EndpointNames.of(subject),
            continues=self._continues,
            body_size=self._body_size,
        )
        metrics, tracing.gauges = self._metrics(subject, number), self._gauges
        if metrics is None:
            tracing.observer = Observers(tracing, OutcomeObserver(tracing, runs=tracing, wanted=tracing.samples))
        else:
            tracing.observer = Observers(tracing, OutcomeObserver(tracing, metrics, runs=tracing), metrics)
        return tracing

    def _metrics(self, subject: Any, number: str) -> MetricsObserver | None:
        """Return what counts for the meter provider; None where nothing would be kept."""
        from opentelemetry.metrics import get_meter_provider  # noqa: PLC0415 - when an endpoint opens

        from onceonly.telemetry.conventions import EndpointNames  # noqa: PLC0415 - the same
        from onceonly.telemetry.metrics import OpenTelemetryGauges, OpenTelemetryMeter, records  # noqa: PLC0415 - the same

        provider = self._meter_provider or get_meter_provider()
        if not records(provider):
            return None
        meter = OpenTelemetryMeter(provider.get_meter(SCOPE, number, SCHEMA_URL))
        if self._gauges is None and self._every is not None:
            self._gauges = OpenTelemetryGauges(meter.meter, self._every.total_seconds())
        names = EndpointNames.of(subject)
        return MetricsObserver(meter, [EndpointLabels(name=names.endpoint, system=names.system, types=None)])
