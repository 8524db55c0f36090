"""The tables of a run as rows of text, and the page `docs/explanation/benchmarks.md` made of them."""

from benchmarks.results import P99_RATIOS, RATIOS, REFERENCE, Latency, Results, RowResult, Spread, paired, spread
from benchmarks.rows import BY_NAME, RABBITMQ, SQLITE

Rows = list[list[str]]
COUNTS = 6  # columns of what is counted on the wire

HEAD = """\
# Benchmarks

Written by `python -m benchmarks --write`; do not edit. One scenario everywhere: consume `PlaceOrder`, write one row, publish
`OrderPlaced`.

![Messages a second, and how cost grows](../images/benchmarks.png)

## Run it again

```console
$ make bench
$ python -m benchmarks --quick
$ python -m benchmarks --latency
$ python -m benchmarks --rows onceonly_orm --rows floor_orm --json
```

`make bench` installs the other libraries into `.venv` (graphile-worker by npm), measures everything, and writes this page.
It takes more than half an hour. `--quick` takes minutes and leaves out tuning and growth. `--latency` measures only the
latency again and writes it into the page of the last run, with a note. It needs a PostgreSQL (`BENCH_DATABASE`, a URL of
any database of it) and a RabbitMQ (`BENCH_BROKER`), and for two rows a MariaDB (`BENCH_MARIADB`); it makes databases and
queues of its own, and removes them. The limits in C need `cc`, librabbitmq and libpq (Debian: `gcc librabbitmq-dev
libpq-dev`). A library that is not installed is left out, loudly. A row whose totals are wrong (rows written, messages
published, each exactly once) is taken out, and the run ends with an error.
"""

METHOD = """\
## How it is measured

* Rounds are interleaved: the first of every row, the second of every row, and so on. Numbers are medians, with the least and
  the greatest in brackets. A ratio is the median of the ratios of each round.
* Every worker is a fresh process with one event loop (uvloop's, where it is installed, for all alike). All messages wait in
  the input queue before the clock starts; it stops when the last output message stands in the output queue. Connecting comes
  before.
* All rows on RabbitMQ get the very same messages and publish into the same durable classic queue. onceonly declares its own
  input queue, a quorum queue; all others read from a durable classic one, as their authors' examples do. The floors and the
  driver's echo are there on both, to tell what the kind of queue costs.
* "limit: C floor" is what this machine allows: the same messages, rows, claims, publishes, confirms and acknowledgements by a
  C program of one process (`benchmarks/programs/limit.c`). The echo of the Python driver is no limit of the machine. Both C
  rows read from a quorum queue, as onceonly does. The C program sends the statements of a batch as one, so one is counted.
* Concurrency: with `make bench`, connection pools of 8, 32 and 64 are tried once and the best is kept, for onceonly one and
  two batches at once. Rows with two pools (DBOS, Procrastinate) have at most 32 connections in each. Every row is one
  process.
* onceonly's settings: `WorkerSettings(batch_size=100, concurrency=N)`, N being the concurrency in the table, all else as it
  comes.
* The worker processes of onceonly's rows collect garbage as those of `onceonly run` do by default. The other rows keep Python's
  own settings.
* CPU is the worker process's own, without the servers; memory is the most it ever had. WAL is the difference of PostgreSQL's
  position over a timed round, so other work on the server would show in it.
* Statements, database round trips, publishes, confirms and acknowledgements are counted on the wire, in a run of their own
  through a proxy that reads the protocols: the same counter for every driver. BEGIN and COMMIT are statements. One confirm
  may cover many publishes, and one acknowledgement many messages. Commits are `pg_stat_database.xact_commit`; those of
  starting up are among them. On SQLite the worker counts its own statements and commits. The counts of onceonly's rows have
  upper limits (`benchmarks/limits.py`); a row that costs more fails. A tiny run has room for smaller batches.
* Latency is measured at {rate} messages a second, sent on time whatever comes back: from the publish to the arrival of the
  output message. Three rounds are pooled. A row that cannot handle this rate falls behind, and shows the age of its backlog.
* Memory with a backlog is the peak of a worker that begins with so many messages waiting in its queue, all of which it handles.
* How cost grows: finished messages are claims (onceonly), outbox rows marked as sent (by hand) and orders (all), made by the
  database. The database's latency is added by a proxy, to each answer, with a pool of 8 connections; a round trip through the
  proxy costs something even with 0 added.
* Four and eight processes are more than this machine has cores for, so no speed is claimed: statements and round trips for a
  message are counted on the wire, with at most 8 connections for each process. "Waiting for a lock" is how many of
  the database's sessions waited for another's lock at a time, read from `pg_stat_activity` every 10 ms from starting the
  workers to their end; deadlocks are `pg_stat_database`'s.
"""


def row_rows(results: Results) -> Rows:
    """Return the main table, its head first."""
    head = ["row", "messages/s", "vs at-least-once", "concurrency", "CPU s/1,000", "peak MiB", "WAL B/msg"]
    head += ["statements", "round trips", "commits", "publishes", "confirms", "acks"]
    return [head, *(_row(results, name, measured) for name, measured in results.rows.items() if measured.samples)]


def ratio_rows(results: Results) -> Rows:
    """Return the ratios, their head first."""
    found = results.ratio_spreads.items()
    return [["ratio", "median", "spread"], *([name, *_ratio(value)] for name, value in found)]


def latency_rows(results: Results) -> Rows:
    """Return the latencies, their head first."""
    head = ["row", "messages/s", "p50 ms", "p95 ms", "p99 ms", "p99 of each round", "messages"]
    return [
        head,
        *([BY_NAME[name].title, str(it.rate), *_percentiles(it), f"{it.messages:,}"] for name, it in results.latency.items()),
    ]


def backlog_rows(results: Results) -> Rows:
    """Return the memory with a backlog, its head first."""
    rows = [[BY_NAME[name].title, f"{it.messages:,}", f"{it.peak:.0f}"] for name, it in results.backlog.items()]
    return [["row", "messages waiting", "peak MiB"], *rows]


def growth_rows(results: Results) -> Rows:
    """Return how cost grows, its head first."""
    head = ["axis", "value", "row", "messages/s"]
    rows = [[it.axis, f"{it.value:,.0f}", it.row, _shown(spread(it.rates))] for it in results.growth]
    return [head, *rows]


def contention_rows(results: Results) -> Rows:
    """Return what many processes cost beside each other, its head first."""
    head = ["processes", "row", "messages", "statements", "round trips", "waiting for a lock", "deadlocks"]
    rows = [
        [
            str(it.processes),
            it.row,
            f"{it.messages:,}",
            f"{it.statements:.2f}",
            f"{it.trips:.2f}",
            f"{it.waiting:.3f}",
            str(it.deadlocks),
        ]
        for it in results.contention
    ]
    return [head, *rows]


def page(results: Results) -> str:
    """Write the whole page."""
    machine = results.machine
    load = f"load average {machine.load_before} before and {machine.load_after} after"
    length = f"{results.mode} run, {results.rounds} rounds, {results.seconds / 60:.0f} minutes"
    lines = [
        HEAD,
        f"## {results.date}\n",
        f"{machine.cores} cores, {machine.memory_gib} GiB, {machine.system}, {load}; {length}.\n",
        f"{machine.interpreter}, {machine.built}.\n" if machine.interpreter else "",
        ", ".join(f"{name} {version}" for name, version in results.versions.items()) + ".\n",
        *(f"{note}\n" for note in results.notes),
        _markdown(row_rows(results)),
        *(f"Not measured: {name}: {why}.\n" for name, why in results.skipped.items()),
        *(f"Failed: {name}: {why}\n" for name, why in results.failed.items()),
        _section("Paired ratios", ratio_rows(results)),
        "".join(f"* `{name}`: {BY_NAME[over].title} over {BY_NAME[under].title}\n" for name, (over, under) in RATIOS.items())
        + "".join(
            f"* `{name}`: p99 at 200 messages a second, {BY_NAME[over].title} over {BY_NAME[under].title}; less is better\n"
            for name, (over, under) in P99_RATIOS.items()
        ),
        _section("End-to-end latency", latency_rows(results)),
        _section("Memory with a backlog", backlog_rows(results)),
        _section("How cost grows", growth_rows(results)),
        _section("Many processes beside each other", contention_rows(results)),
        "## What each row is\n",
        "".join(f"* {row.title} (`{row.name}`, {row.backend}): {row.about}.\n" for row in BY_NAME.values()),
        METHOD.format(rate=200),
    ]
    return "\n".join(line for line in lines if line)


def _row(results: Results, name: str, measured: RowResult) -> list[str]:
    reference = results.rows.get(REFERENCE)
    ratio = "" if reference is None or measured.backend != RABBITMQ else f"{paired(measured, reference).median:.2f}"
    figures = [
        BY_NAME[name].title,
        _shown(measured.spread()),
        ratio,
        str(measured.concurrency),
        f"{measured.spread('cpu').median:.3f}",
        f"{measured.spread('peak').median:.0f}",
        "" if measured.backend == SQLITE else f"{measured.spread('wal').median:,.0f}",
    ]
    return figures + _costs(measured)


def _costs(measured: RowResult) -> list[str]:
    """Return the six counts; what cannot be counted, for want of a server, is left empty."""
    costs = measured.costs
    if costs is None:
        return [""] * COUNTS
    if measured.backend == SQLITE:  # no server, so no round trips
        return [f"{costs.statements:.2f}", "", f"{costs.commits:.2f}", "", "", ""]
    broker = (costs.publishes, costs.confirms, costs.acks) if measured.backend == RABBITMQ else ()
    told = [f"{each:.2f}" for each in (costs.statements, costs.trips, costs.commits, *broker)]
    return told + [""] * (COUNTS - len(told))


def _percentiles(found: Latency) -> list[str]:
    pooled = [f"{value:.1f}" for value in (found.p50, found.p95, found.p99)]
    return [*pooled, ", ".join(f"{value:.1f}" for value in found.p99_rounds)]


def _shown(found: Spread) -> str:
    return f"{found.median:,.0f} ({found.low:,.0f} to {found.high:,.0f})"


def _ratio(found: Spread) -> list[str]:
    return [f"{found.median:.2f}", f"{found.low:.2f} to {found.high:.2f}"]


def _section(title: str, rows: Rows) -> str:
    return f"## {title}\n\n{_markdown(rows)}" if len(rows) > 1 else ""


def _markdown(rows: Rows) -> str:
    head, *body = rows
    rule = ["---", *(["---:"] * (len(head) - 1))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *body))
