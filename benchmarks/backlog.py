"""How much memory a worker needs when very much waits: what waits must stay with the broker."""

from benchmarks.measuring import run
from benchmarks.results import Backlog
from benchmarks.rows import Row
from benchmarks.stages import Stage

ROWS = ("onceonly_orm",)


async def measure(stage: Stage, row: Row, count: int, concurrency: int) -> Backlog:
    """Work a backlog off, and give the peak memory of the process. Raises RunFailed."""
    sample = await run(stage, row, count, concurrency)
    return Backlog(messages=count, peak=round(sample.peak, 1))
