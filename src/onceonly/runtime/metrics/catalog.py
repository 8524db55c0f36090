"""The metrics: names, kinds, units and attributes, by the OpenTelemetry semantic conventions where they have one.

Prometheus has the same names, derived: dots become underscores, `s` adds `_seconds`, counters add `_total`, units in braces are
left out.
"""

from enum import StrEnum

from msgspec import Struct

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"

ENDPOINT = "onceonly.endpoint"
TYPE = "cloudevents.event_type"
OUTCOME = "onceonly.outcome"
KIND = "onceonly.kind"
RESULT = "onceonly.result"
PHASE = "onceonly.phase"
PROCESS = "onceonly.process"
STATE = "onceonly.state"
ACTION = "onceonly.action"
PART = "onceonly.part"
STORE = "onceonly.store"
TASK = "onceonly.task"
SYSTEM = "messaging.system"
OPERATION = "messaging.operation.name"
DESTINATION = "messaging.destination.name"
ERROR = "error.type"

MESSAGING = (ENDPOINT, SYSTEM, OPERATION, DESTINATION, ERROR)

DURATION_BUCKETS_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds of an operation: the buckets of the conventions."""
AGE_BUCKETS_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
"""Seconds of a message's age."""
SIZE_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
"""Messages of a batch."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


class Source(StrEnum):
    """Where the numbers come from.

    PROCESSES: worker processes count them. SERVERS: the command reads them from the database and the broker. SUPERVISOR: the
    command knows them itself. DASHBOARD: the process that serves the dashboard counts them.
    """

    PROCESSES = "worker processes"
    SERVERS = "database and broker"
    SUPERVISOR = "supervisor"
    DASHBOARD = "dashboard"


class Metric(Struct, frozen=True):
    """One metric. `meaning` is one sentence; `buckets` are the upper bounds of a histogram."""

    name: str
    unit: str
    attributes: tuple[str, ...]
    meaning: str
    source: Source = Source.PROCESSES
    buckets: tuple[float, ...] = ()
    is_gauge: bool = False

    @property
    def kind(self) -> MetricKind:
        return MetricKind.HISTOGRAM if self.buckets else MetricKind.GAUGE if self.is_gauge else MetricKind.COUNTER

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, without the suffix `_total` of counters."""
        name = self.name.replace(".", "_")
        return f"{name}_seconds" if self.unit == "s" else name

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(name.replace(".", "_") for name in self.attributes)

    @property
    def samples(self) -> tuple[str, ...]:
        match self.kind:
            case MetricKind.COUNTER:
                return (f"{self.prometheus}_total",)
            case MetricKind.HISTOGRAM:
                return tuple(f"{self.prometheus}_{suffix}" for suffix in ("bucket", "count", "sum"))
            case MetricKind.GAUGE:
                return (self.prometheus,)


def _gauge(name: str, unit: str, attributes: tuple[str, ...], meaning: str, *, source: Source = Source.SERVERS) -> Metric:
    return Metric(name, unit, attributes, meaning, source, is_gauge=True)


SENT = Metric("messaging.client.sent.messages", "{message}", MESSAGING, "Messages sent to the broker, retry copies included.")
CONSUMED = Metric("messaging.client.consumed.messages", "{message}", MESSAGING, "Deliveries received from the broker.")
OPERATION_DURATION = Metric(
    "messaging.client.operation.duration",
    "s",
    MESSAGING,
    "Duration of calls to the broker. A receive that waited and brought nothing is left out.",
    buckets=DURATION_BUCKETS_SECONDS,
)
PROCESS_DURATION = Metric(
    "messaging.process.duration", "s", MESSAGING, "Duration of handlers.", buckets=DURATION_BUCKETS_SECONDS
)
MESSAGES = Metric("onceonly.messages", "{message}", (ENDPOINT, TYPE, OUTCOME), "Deliveries settled, by outcome.")
RETRIES = Metric("onceonly.retries", "{message}", (ENDPOINT, KIND), "Retry copies sent, by kind of failure.")
RELAYED = Metric("onceonly.relay.messages", "{message}", (ENDPOINT, RESULT), "Messages that relays sent, by answer.")
AGE = Metric(
    "onceonly.message.age",
    "s",
    (ENDPOINT, TYPE),
    "Time from the sending of a message to the acknowledgement of its handling.",
    buckets=AGE_BUCKETS_SECONDS,
)
UNIT_DURATION = Metric(
    "onceonly.unit.duration",
    "s",
    (ENDPOINT, PHASE),
    "Duration of begin, commit, dispatch and forget.",
    buckets=DURATION_BUCKETS_SECONDS,
)
LOOP_LAG = Metric(
    "onceonly.event_loop.lag",
    "s",
    (PROCESS,),
    "Delay of a timer in the event loop of a process.",
    buckets=DURATION_BUCKETS_SECONDS,
)
BATCH_SIZE = Metric("onceonly.batch.size", "{message}", (ENDPOINT,), "Deliveries of a batch.", buckets=SIZE_BUCKETS)
QUEUE_MESSAGES = _gauge("onceonly.queue.messages", "{message}", (ENDPOINT, STATE), "Messages in the queue.")
QUEUE_OLDEST = _gauge("onceonly.queue.oldest_age", "s", (ENDPOINT,), "For how long the oldest waiting message has been due.")
PENDING = _gauge("onceonly.pending.records", "{record}", (ENDPOINT,), "Records with messages that are not sent.")
PENDING_OLDEST = _gauge("onceonly.pending.oldest_age", "s", (ENDPOINT,), "Age of the oldest pending record, 0 without one.")
DEAD_LETTERS = _gauge("onceonly.dead_letters", "{letter}", (ENDPOINT,), "Dead letters in the store.")
DEAD_LETTERS_OLDEST = _gauge(
    "onceonly.dead_letters.oldest_age", "s", (ENDPOINT,), "Age of the oldest dead letter, 0 without one."
)
DEAD_LETTERS_STORED = Metric(
    "onceonly.dead_letters.stored", "{letter}", (ENDPOINT, KIND), "Dead letters stored, by kind of failure."
)
UNSUBSCRIBED = Metric(
    "onceonly.events.unsubscribed", "{event}", (ENDPOINT, TYPE), "Events published without a subscriber.", Source.SERVERS
)
SHADOW = Metric(
    "onceonly.shadow.messages",
    "{message}",
    (ENDPOINT, OUTCOME),
    "Messages handled in shadow mode that would not have been handled otherwise.",
    Source.SERVERS,
)
CONFLICTS = Metric(
    "onceonly.conflicts", "{conflict}", (ENDPOINT, KIND), "Units that ended in a conflict or an unknown outcome."
)
RECONNECTS = Metric(
    "onceonly.reconnects", "{reconnect}", (ENDPOINT, PART), "Times a server answered again after calls that failed."
)
CLAIMS = _gauge("onceonly.claims", "{claim}", (STORE,), "Claims in the store, estimated by the statistics of the database.")
BUCKETS_LATE = _gauge("onceonly.claims.buckets.late", "{bucket}", (STORE,), "Time buckets that were not rotated in time.")
BUCKETS_ROTATED = Metric("onceonly.claims.buckets.rotated", "{bucket}", (STORE,), "Time buckets rotated.")
POOL = _gauge(
    "onceonly.pool.connections",
    "{connection}",
    (PART, STATE),
    "Connections of the pools of SQL databases in the worker processes.",
    source=Source.PROCESSES,
)
PROCESSES = _gauge("onceonly.processes", "{process}", (STATE,), "Worker processes.", source=Source.SUPERVISOR)
MAINTENANCE = _gauge(
    "onceonly.maintenance.last_run.timestamp", "s", (ENDPOINT, TASK), "When a maintenance task ended last, in Unix time."
)

UP = _gauge("onceonly.source.up", "1", (ENDPOINT, PART), "1 if the last read of this part's gauges succeeded, else 0.")
"""An unreachable server has no gauges. This one tells so."""
RETENTION = _gauge("onceonly.retention", "s", (ENDPOINT,), "How long claims are kept.", source=Source.SUPERVISOR)
INTERVAL = _gauge(
    "onceonly.maintenance.interval", "s", (ENDPOINT,), "Time between two runs of maintenance.", source=Source.SUPERVISOR
)

DASHBOARD_ACTIONS = Metric(
    "onceonly.dashboard.actions", "{action}", (ACTION, OUTCOME), "Actions of operators, by outcome.", Source.DASHBOARD
)
"""Not one of `METRICS`: no worker counts it."""

METRICS = (
    *(SENT, CONSUMED, OPERATION_DURATION, PROCESS_DURATION),
    *(MESSAGES, RETRIES, RELAYED, AGE, UNIT_DURATION, LOOP_LAG, BATCH_SIZE),
    *(QUEUE_MESSAGES, QUEUE_OLDEST, PENDING, PENDING_OLDEST, DEAD_LETTERS, DEAD_LETTERS_OLDEST),
    *(DEAD_LETTERS_STORED, UNSUBSCRIBED, SHADOW, CONFLICTS, RECONNECTS),
    *(CLAIMS, BUCKETS_LATE, BUCKETS_ROTATED, POOL, PROCESSES, MAINTENANCE),
    *(UP, RETENTION, INTERVAL),
)
BY_NAME = {metric.name: metric for metric in METRICS}
