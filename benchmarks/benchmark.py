"""The whole run: everything opened, tuned once, measured in interleaved rounds, then costs, latency and growth."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct
from sqlalchemy.exc import DBAPIError

from benchmarks import backlog, growth, latency, limits, machine
from benchmarks.counting import count_costs
from benchmarks.crew import RunFailed
from benchmarks.measuring import run
from benchmarks.modes import Mode
from benchmarks.results import Latency, Results, RowResult, fill_ratios, percentile
from benchmarks.rows import MARIADB, POSTGRESQL, RABBITMQ, SQLITE, BenchmarkRow
from benchmarks.stages import Backend, database, mariadb, postgresql, rabbitmq, sqlite

Say = Callable[[str], None]
P99 = 0.99
LEAST_COUNTED = 100  # messages whose costs are counted


class Servers(Struct, frozen=True, kw_only=True):
    """The URLs of a PostgreSQL server, any database of it, of a RabbitMQ, and of a MariaDB, which may be missing."""

    database: str
    broker: str
    mariadb: str = ""


class Benchmark:
    """One run over open stages; fills its results step by step."""

    def __init__(self, place: "BenchmarkContext", rows: Sequence[BenchmarkRow], mode: Mode, say: Say) -> None:
        """Prepare to measure these rows."""
        self._place = place
        self._rows = rows
        self._mode = mode
        self._say = say
        self.results = Results(
            date=datetime.now(UTC).date().isoformat(),
            mode=mode.name,
            rounds=mode.rounds,
            machine=machine.look(),
            versions={},
        )

    async def measure(self) -> Results:
        """Do everything that the mode asks for. What failed is named in the results."""
        began = time.monotonic()
        self.results.versions = machine.versions(PostgreSQL=await self._place.database.version(), RabbitMQ=self._place.broker)
        await self._choose()
        await self._rounds()
        await self._costs()
        await self._latencies()
        await self._backlogs()
        await self._growth()
        fill_ratios(self.results)
        self.results.machine.load_after = machine.load()
        self.results.seconds = round(time.monotonic() - began, 1)
        return self.results

    async def measure_latency_again(self, stored: Results) -> Results:
        """Replace the latencies of an earlier run, and note that. Raises RunFailed."""
        self.results = stored
        for row in self._measured(latency.ROWS):
            await self._stage(row).prepare(row)
        await self._latencies()
        if stored.failed:
            raise RunFailed(str(stored.failed))
        fill_ratios(stored)
        today = datetime.now(UTC)
        stored.notes = [f"The latency is that of a later run, measured alone on {today:%Y-%m-%d} at {today:%H:%M} UTC."]
        return stored

    async def _choose(self) -> None:
        """Leave out what is not installed, loudly; try each concurrency once and keep the best."""
        for row in self._rows:
            if missing := row.missing():
                self.results.skipped[row.name] = f"not installed: {', '.join(missing)}"
                self._say(f"!!! NOT MEASURED: {row.title}: not installed: {', '.join(missing)}")
                continue
            if row.backend not in self._place.stages:
                self.results.skipped[row.name] = f"no server for {row.backend}"
                self._say(f"!!! NOT MEASURED: {row.title}: no server for {row.backend}")
                continue
            await self._stage(row).prepare(row)
            measured = RowResult(title=row.title, backend=row.backend, concurrency=row.concurrencies[0])
            self.results.rows[row.name] = measured
            if self._mode.tunes and len(row.concurrencies) > 1:
                async with self._guarded(row):
                    for each in row.concurrencies:
                        measured.tuning[each] = await self._tried(row, each)
                    measured.concurrency = _best(row, measured.tuning)

    async def _tried(self, row: BenchmarkRow, concurrency: int) -> float | str:
        self._say(f"tuning: {row.name}, concurrency {concurrency}")
        try:
            count = self._count(row)
            return round((await run(self._stage(row), row, count, concurrency)).rate, 1)
        except RunFailed as error:
            self._say(f"!!! {row.name} failed with concurrency {concurrency}: {error}")
            return f"failed: {str(error).splitlines()[0]}"

    async def _rounds(self) -> None:
        for number in range(1, self._mode.rounds + 1):
            for row in self._measured():
                async with self._guarded(row):
                    measured = self.results.rows[row.name]
                    sample = await run(self._stage(row), row, self._count(row), measured.concurrency)
                    measured.samples.append(sample)
                    self._say(f"round {number}: {row.name}: {sample.rate:,.0f} messages/s")

    async def _costs(self) -> None:
        for row in self._measured():
            if row.backend == SQLITE and not row.is_own:
                continue  # there is no wire
            if row.is_own or self._mode.costs:
                async with self._guarded(row):
                    self._say(f"counting: {row.name}")
                    await self._count_costs(row)

    async def _count_costs(self, row: BenchmarkRow) -> None:
        """Count; onceonly's own rows are counted in every mode, and may not cost more than they are allowed."""
        measured = self.results.rows[row.name]
        count = max(self._count(row) // 4, limits.MESSAGES if row.is_own else LEAST_COUNTED)
        measured.costs = await count_costs(self._stage(row), row, count, measured.concurrency)
        limits.check_costs(row, measured.costs, room=self._mode.room)

    async def _latencies(self) -> None:
        found: dict[str, list[list[float]]] = {}
        for _ in range(self._mode.latency_rounds if self._mode.latency else 0):
            for row in self._measured(latency.ROWS):
                async with self._guarded(row):
                    self._say(f"latency: {row.name}")
                    concurrency = self.results.rows[row.name].concurrency
                    values = await latency.measure(self._place.rabbitmq, row, concurrency, self._mode.latency)
                    found.setdefault(row.name, []).append(values)
        self.results.latency = {name: _latency(rounds) for name, rounds in found.items()}

    async def _backlogs(self) -> None:
        for row in self._measured(backlog.ROWS) if self._mode.backlog else ():
            async with self._guarded(row):
                self._say(f"backlog of {self._mode.backlog:,}: {row.name}")
                concurrency = self.results.rows[row.name].concurrency
                found = await backlog.measure(self._stage(row), row, self._mode.backlog, concurrency)
                self.results.backlog[row.name] = found

    async def _growth(self) -> None:
        rows = self._measured(growth.ROWS)
        chosen = {row.name: self.results.rows[row.name].concurrency for row in rows}
        counts = {row.name: self._count(row) for row in rows}
        if self._mode.growth and len(rows) == len(growth.ROWS):
            async for point in growth.grow(self._place.rabbitmq, self._place.database, chosen, counts):
                self._say(f"growth: {point.axis} {point.value:,}: {point.row}: {point.rates}")
                self.results.growth.append(point)
        if self._mode.growth:  # rows that are not installed are missing here, and the others are counted all the same
            async for gate in growth.gate(self._place.rabbitmq, self._place.database, rows, counts):
                self._say(f"contention: {gate.processes} processes: {gate.row}: {gate.waiting} waiting for locks")
                self.results.contention.append(gate)

    @asynccontextmanager
    async def _guarded(self, row: BenchmarkRow) -> AsyncIterator[None]:
        """Take a row out that fails, loudly: no number of it can be believed. The others go on; the run ends with an error."""
        try:
            yield
        except RunFailed as error:
            self.results.failed[row.name] = str(error)
            self.results.rows.pop(row.name)
            self._say(f"!!! FAILED: {row.name}: {error}")

    def _count(self, row: BenchmarkRow) -> int:
        """Return how many messages a round of this row has, by what is known of its speed here."""
        measured = self.results.rows[row.name]
        known = [sample.rate for sample in measured.samples[-1:]]
        known += [rate for rate in measured.tuning.values() if isinstance(rate, float)]
        return self._mode.messages(row.messages, max(known) if known else None)

    def _measured(self, names: Sequence[str] = ()) -> list[BenchmarkRow]:
        return [row for row in self._rows if row.name in self.results.rows and (not names or row.name in names)]

    def _stage(self, row: BenchmarkRow) -> Backend:
        return self._place.stages[row.backend]


class BenchmarkContext(Struct, frozen=True, kw_only=True):
    """Everything that is open."""

    database: database.BackendDatabase
    rabbitmq: rabbitmq.RabbitMQBackend
    broker: str
    stages: dict[str, Backend]


@asynccontextmanager
async def opened(servers: Servers) -> AsyncIterator[BenchmarkContext]:
    """Make a database, queues and a folder of this run's own; all of it is gone at the end."""
    async with AsyncExitStack() as stack:
        own = await stack.enter_async_context(database.opened(servers.database))
        queues = await stack.enter_async_context(rabbitmq.opened(servers.broker, own))
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="onceonly-bench-")))
        stages: dict[str, Backend] = {
            RABBITMQ: queues,
            POSTGRESQL: postgresql.PostgreSQLBackend(own),
            SQLITE: sqlite.SQLiteBackend(folder),
        }
        with suppress(DBAPIError):  # its rows are left out loudly
            if servers.mariadb:
                others = await stack.enter_async_context(mariadb.opened(servers.mariadb))
                stages[MARIADB] = await stack.enter_async_context(rabbitmq.opened(servers.broker, others))
        yield BenchmarkContext(database=own, rabbitmq=queues, broker=queues.version, stages=stages)


def _best(row: BenchmarkRow, tuning: dict[int, float | str]) -> int:
    rates = {each: rate for each, rate in tuning.items() if isinstance(rate, float)}
    if not rates:
        raise RunFailed(f"{row.name}: no concurrency worked: {tuning}")
    return max(rates, key=rates.__getitem__)


def _latency(rounds: list[list[float]]) -> Latency:
    """Pool the rounds; the 99th percentile of each round is there too."""
    pooled = sorted(value for values in rounds for value in values)
    p50, p95, p99 = (_milliseconds(pooled, share) for share in (0.5, 0.95, P99))
    each = [_milliseconds(sorted(values), P99) for values in rounds]
    return Latency(rate=latency.RATE, messages=len(pooled), p50=p50, p95=p95, p99=p99, p99_rounds=each)


def _milliseconds(ordered: list[float], share: float) -> float:
    return round(percentile(ordered, share) * 1000, 2)
