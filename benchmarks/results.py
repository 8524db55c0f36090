"""What a whole run found, as it is written to JSON; medians, spreads, and paired ratios."""

from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct, field

from benchmarks.counting import Costs
from benchmarks.machine import Machine
from benchmarks.measuring import RunSample


class Spread(Struct, frozen=True):
    """A median, and the least and the greatest of all rounds."""

    median: float
    low: float
    high: float


class Latency(Struct, frozen=True, kw_only=True):
    """Milliseconds from publish to arrival, at so many messages a second, of all rounds together; `p99_rounds` is of each."""

    rate: int
    messages: int
    p50: float
    p95: float
    p99: float
    p99_rounds: list[float] = field(default_factory=list)


class BacklogMemory(Struct, frozen=True, kw_only=True):
    """The peak memory of a worker in MiB, and how many messages waited when it began."""

    messages: int
    peak: float


class RowResult(Struct, kw_only=True):
    """One row: the concurrency that was chosen, what the tuning showed for each (messages a second), and every round."""

    title: str
    backend: str
    concurrency: int
    tuning: dict[int, float | str] = field(default_factory=dict)
    samples: list[RunSample] = field(default_factory=list)
    costs: Costs | None = None

    def spread(self, what: str = "rate") -> Spread:
        """Return the median and the spread of one figure."""
        return spread([getattr(sample, what) for sample in self.samples])


class GrowthPoint(Struct, frozen=True, kw_only=True):
    """One point of how cost grows: messages a second of each round."""

    axis: str
    value: float
    row: str
    rates: list[float]


class Contention(Struct, frozen=True, kw_only=True):
    """What so many processes cost beside each other: statements and round trips for a message, and how they wait for locks.

    `waiting` is how many of the database's sessions waited for a lock at a time, `deadlocks` how many there were in the run.
    """

    processes: int
    row: str
    messages: int
    statements: float
    trips: float
    waiting: float
    deadlocks: int


class Results(Struct, kw_only=True):
    """Everything."""

    date: str
    mode: str
    rounds: int
    machine: Machine
    versions: dict[str, str]
    seconds: float = 0.0
    rows: dict[str, RowResult] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    ratio_spreads: dict[str, Spread] = field(default_factory=dict)
    latency: dict[str, Latency] = field(default_factory=dict)
    backlog: dict[str, BacklogMemory] = field(default_factory=dict)
    growth: list[GrowthPoint] = field(default_factory=list)
    contention: list[Contention] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not measured in the same run. One sentence each."""


RATIOS: Mapping[str, tuple[str, str]] = {
    "orm_vs_at_least_once": ("onceonly_orm", "at_least_once_orm"),
    "raw_vs_at_least_once": ("onceonly_raw", "at_least_once_raw"),
    "orm_vs_hand_outbox": ("onceonly_orm", "outbox_orm"),
    "raw_vs_hand_outbox": ("onceonly_raw", "outbox_raw"),
    "orm_vs_floor": ("onceonly_orm", "floor_orm"),
    "raw_vs_floor": ("onceonly_raw", "floor_raw"),
    "psycopg_vs_floor": ("onceonly_orm_psycopg", "floor_orm_psycopg"),
    "mariadb_vs_floor": ("onceonly_orm_mariadb", "floor_orm_mariadb"),
    "core_vs_floor": ("onceonly_core", "floor_core"),
    "floor_core_vs_raw": ("floor_core", "floor_raw"),
    "orm_vs_floor_quorum": ("onceonly_orm", "floor_orm_quorum"),
    "raw_vs_floor_quorum": ("onceonly_raw", "floor_raw_quorum"),
    "orm_vs_batched_plain": ("onceonly_orm", "batched_plain_orm"),
    "raw_vs_batched_plain": ("onceonly_raw", "batched_plain_raw"),
    "entities_vs_orm": ("onceonly_entities", "onceonly_orm"),
    "orm_vs_off": ("onceonly_orm", "onceonly_off"),
    "core_vs_raw": ("onceonly_core", "onceonly_raw"),
    "orm_vs_c_floor": ("onceonly_orm", "c_floor"),
    "raw_vs_c_floor": ("onceonly_raw", "c_floor"),
    "batch_vs_c_floor": ("onceonly_batch", "c_floor"),
    "core_batch_vs_c_floor": ("onceonly_core_batch", "c_floor"),
    "c_floor_vs_c_echo": ("c_floor", "c_echo"),
    "raw_vs_driver_echo": ("onceonly_raw", "driver_echo"),
    "raw_vs_driver_echo_quorum": ("onceonly_raw", "driver_echo_quorum"),
    "orm_vs_faststream_outbox": ("onceonly_orm", "faststream_outbox"),
    "orm_vs_dbos": ("onceonly_orm", "dbos"),
    "orm_vs_procrastinate": ("onceonly_orm", "procrastinate"),
    "sql_queue_vs_graphile_worker": ("onceonly_sql_queue", "graphile_worker"),
    "sql_queue_vs_procrastinate": ("onceonly_sql_queue", "procrastinate_queue"),
    "sql_queue_vs_dbos": ("onceonly_sql_queue", "dbos_queue"),
    "sqlite_vs_huey": ("onceonly_sqlite", "huey_sqlite"),
}
"""By name, whose rate is divided by whose."""

P99_RATIOS: Mapping[str, tuple[str, str]] = {"orm_p99_vs_hand_outbox": ("onceonly_orm", "outbox_orm")}
"""By name, whose 99th percentile of latency is divided by whose: less is better."""

REFERENCE = "at_least_once_orm"
"""What every row on RabbitMQ is compared with in the table."""


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the ends."""
    return Spread(median(values), min(values), max(values))


def paired(over: RowResult, under: RowResult) -> Spread:
    """Divide round by round: what disturbs the machine disturbs both."""
    pairs = zip(over.samples, under.samples, strict=True)
    return spread([first.rate / second.rate for first, second in pairs])


def fill_ratios(results: Results) -> None:
    """Calculate every ratio whose two rows were measured.

    A ratio of latencies is that of all rounds together; its spread is that of the rounds.
    """
    for name, (over, under) in RATIOS.items():
        if over in results.rows and under in results.rows:
            found = paired(results.rows[over], results.rows[under])
            results.ratios[name], results.ratio_spreads[name] = round(found.median, 3), found
    for name, (over, under) in P99_RATIOS.items():
        first, second = results.latency.get(over), results.latency.get(under)
        if first and second and first.p99_rounds and second.p99_rounds:
            found = _p99_ratio(first, second)
            results.ratios[name], results.ratio_spreads[name] = round(found.median, 3), found


def _p99_ratio(over: Latency, under: Latency) -> Spread:
    each = [first / second for first, second in zip(over.p99_rounds, under.p99_rounds, strict=True)]
    return Spread(over.p99 / under.p99, min(each), max(each))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that this share of the sorted values does not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1))]
