"""How much memory a worker needs when very much waits: what waits must stay with the broker."""

from benchmarks.measuring import run
from benchmarks.results import BacklogMemory
from benchmarks.rows import BenchmarkRow
from benchmarks.stages import Backend

ROWS = ("onceonly_orm",)


async def measure(stage: Backend, row: BenchmarkRow, count: int, concurrency: int) -> BacklogMemory:
    """Work a backlog off, and give the peak memory of the process. Raises RunFailed."""
    sample = await run(stage, row, count, concurrency)
    return BacklogMemory(messages=count, peak=round(sample.peak, 1))
