"""How cost grows: with finished messages in the store, with processes, with the latency of the database."""

from collections.abc import AsyncIterator

from benchmarks.measuring import USUAL, Way, run
from benchmarks.results import Point
from benchmarks.rows import BY_NAME
from benchmarks.stages.database import Database
from benchmarks.stages.rabbitmq import RabbitMQStage

ROWS = ("onceonly_orm", "outbox_orm", "at_least_once_orm")
ROUNDS = 3
FINISHED = (0, 1_000_000, 3_000_000)
PROCESSES = (1, 2)
MILLISECONDS = (0, 1, 5)
POOL = 8  # connections, whatever the latency
STORED, PARALLEL, DISTANT = "finished messages in the store", "processes", "added database latency, ms"


async def grow(
    stage: RabbitMQStage, database: Database, chosen: dict[str, int], counts: dict[str, int]
) -> AsyncIterator[Point]:
    """Measure every point; `chosen` is each row's concurrency, `counts` its messages. Leaves the tables empty."""
    for processes in PROCESSES:
        for point in await _points(stage, counts, (PARALLEL, processes), chosen, way=Way(processes=processes)):
            yield point
    pools = {name: POOL if BY_NAME[name].concurrencies[0] == POOL else chosen[name] for name in ROWS}
    for delay in MILLISECONDS:
        for point in await _points(stage, counts, (DISTANT, delay), pools, way=Way(delay=delay / 1000)):
            yield point
    await database.empty()
    stored = 0
    for size in FINISHED:
        await database.store_finished(stored, size)
        stored = size
        for point in await _points(stage, counts, (STORED, size), chosen, way=Way(keep=True)):
            yield point
    await database.empty()


async def _points(
    stage: RabbitMQStage, counts: dict[str, int], where: tuple[str, int], chosen: dict[str, int], *, way: Way = USUAL
) -> list[Point]:
    """Measure the rows in turns."""
    rates: dict[str, list[float]] = {name: [] for name in ROWS}
    for _ in range(ROUNDS):
        for name in ROWS:
            row = BY_NAME[name]
            sample = await run(stage, row, counts[name], chosen[name], way=way)
            rates[name].append(round(sample.rate, 1))
    axis, value = where
    return [Point(axis=axis, value=value, row=name, rates=found) for name, found in rates.items()]
