"""How cost grows: with finished messages in the store, with processes, with the latency of the database."""

from collections.abc import AsyncIterator, Sequence

from benchmarks.counting import count_costs
from benchmarks.measuring import USUAL, RunVariant, run
from benchmarks.results import Contention, GrowthPoint
from benchmarks.rows import BY_NAME, BenchmarkRow
from benchmarks.stages.database import BackendDatabase
from benchmarks.stages.rabbitmq import RabbitMQBackend

ROWS = ("onceonly_orm", "outbox_orm", "at_least_once_orm")
ROUNDS = 3
FINISHED = (0, 1_000_000, 3_000_000)
PROCESSES = (1, 2)
CROWDS = (4, 8, 16)  # processes, more than there may be cores: what they cost and how they wait is counted, no speed is claimed
MILLISECONDS = (0, 1, 5)
POOL = 8  # connections, whatever the latency
STORED, PARALLEL, DISTANT = "finished messages in the store", "processes", "added database latency, ms"


async def grow(
    stage: RabbitMQBackend, database: BackendDatabase, chosen: dict[str, int], counts: dict[str, int]
) -> AsyncIterator[GrowthPoint]:
    """Measure every point; `chosen` is each row's concurrency, `counts` its messages. Leaves the tables empty."""
    for processes in PROCESSES:
        for point in await _points(stage, counts, (PARALLEL, processes), chosen, way=RunVariant(processes=processes)):
            yield point
    pools = {name: POOL if BY_NAME[name].concurrencies[0] == POOL else chosen[name] for name in ROWS}
    for delay in MILLISECONDS:
        for point in await _points(stage, counts, (DISTANT, delay), pools, way=RunVariant(delay=delay / 1000)):
            yield point
    await database.empty()
    stored = 0
    for size in FINISHED:
        await database.store_finished(stored, size)
        stored = size
        for point in await _points(stage, counts, (STORED, size), chosen, way=RunVariant(keep=True)):
            yield point
    await database.empty()


async def gate(
    stage: RabbitMQBackend,
    database: BackendDatabase,
    rows: Sequence[BenchmarkRow],
    counts: dict[str, int],
    *,
    crowds: Sequence[int] = CROWDS,
) -> AsyncIterator[Contention]:
    """Count, for many processes beside each other, statements and round trips for a message, lock waits, and deadlocks.

    Each process has a pool of at most `POOL` connections.
    """
    for processes in crowds:
        for row in rows:
            before = await database.deadlocks()
            count, concurrency = counts[row.name], min(POOL, row.concurrencies[0])
            async with database.watched() as waiting:
                costs = await count_costs(stage, row, count, concurrency, processes=processes)
            yield Contention(
                processes=processes,
                row=row.name,
                messages=count,
                statements=costs.statements,
                trips=costs.trips,
                waiting=round(sum(waiting) / max(1, len(waiting)), 3),
                deadlocks=await database.deadlocks() - before,
            )


async def _points(
    stage: RabbitMQBackend, counts: dict[str, int], where: tuple[str, int], chosen: dict[str, int], *, way: RunVariant = USUAL
) -> list[GrowthPoint]:
    """Measure the rows in turns."""
    rates: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(ROUNDS):
        for name in ROWS:
            row = BY_NAME[name]
            sample = await run(stage, row, counts[name], chosen[name], way=way)
            rates[name].append(round(sample.rate, 1))
    axis, value = where
    return [GrowthPoint(axis=axis, value=value, row=name, rates=found) for name, found in rates.items()]
