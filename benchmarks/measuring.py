"""One run of one row: fill, start, go, watch the output queue, stop, check the totals."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from uuid import uuid4

import msgspec
from msgspec import Struct

from benchmarks.crew import Crew, RunFailed, crew
from benchmarks.job import Usage, WorkerJob
from benchmarks.rows import BenchmarkRow
from benchmarks.scenario import order_ids
from benchmarks.stages import Backend, Totals
from benchmarks.wire import proxied

GLANCE = 0.01  # seconds between two looks at the output queue
PATIENCE = 30.0  # seconds without any progress
MEGABYTE = 1024 * 1024


class RunSample(Struct, frozen=True, kw_only=True):
    """What one run showed: messages a second, CPU seconds for 1,000 messages, peak memory in MiB, WAL bytes for a message."""

    messages: int
    rate: float
    cpu: float
    peak: float
    wal: float


class RunVariant(Struct, frozen=True, kw_only=True):
    """How a run differs from the usual one.

    How many processes; whether what earlier runs left stays in the tables; with `delay`, in seconds for each round trip, the
    database is reached through a proxy (also with 0).
    """

    processes: int = 1
    keep: bool = False
    delay: float | None = None


USUAL = RunVariant()


async def run(stage: Backend, row: BenchmarkRow, count: int, concurrency: int, *, way: RunVariant = USUAL) -> RunSample:
    """Run a row once in processes of its own. Raises RunFailed when a message or a row is missing or too many."""
    tag, job = uuid4().hex[:8], stage.job(row, concurrency)
    async with AsyncExitStack() as stack:
        if way.delay is not None:
            job = through(job, database=await stack.enter_async_context(proxied(job.database, delay=way.delay)))
        workers = await stack.enter_async_context(crew(job, way.processes))
        await asyncio.gather(stage.fill(row, order_ids(tag, count), keep=way.keep), workers.ready())
        before = await stage.wal()
        rate, usages = await work(lambda: stage.arrived(row), workers, count)
        written = await stage.wal() - before
    check(row, await stage.totals(row, tag), count)
    return RunSample(
        messages=count,
        rate=rate,
        cpu=sum(usage.cpu for usage in usages) * 1000 / count,
        peak=sum(usage.peak for usage in usages) / MEGABYTE,
        wal=written / count,
    )


async def work(
    arrived: Callable[[], Awaitable[int]], workers: Crew, count: int, *, begun: Callable[[], object] = lambda: None
) -> tuple[float, list[Usage]]:
    """Let the workers go, wait until all messages came out, and stop them; gives messages a second, and what they used.

    The clock starts when they begin to receive: connecting is not throughput. `begun` is called then.
    """
    await workers.go()
    begun()
    rate = await _watched(arrived, workers, count)
    return rate, await workers.stop()


def check(row: BenchmarkRow, totals: Totals, count: int) -> None:
    """Compare what is left with what must be. Raises RunFailed."""
    rows = 0 if row.is_echo else count
    expected = Totals(rows=rows, distinct_rows=rows, messages=count, distinct_messages=count)
    if totals != expected:
        raise RunFailed(f"{row.name}: wrong totals: {totals}, expected {expected}")


async def _watched(arrived: Callable[[], Awaitable[int]], workers: Crew, count: int) -> float:
    began = progressed = time.perf_counter()
    last = 0
    while True:
        seen, now = await arrived(), time.perf_counter()
        if seen > last:
            progressed, last = now, seen
        if seen >= count:
            return seen / (now - began)
        workers.check()
        if now - progressed > PATIENCE:
            stalled = f"{seen} of {count} messages came out, and no more for {PATIENCE:.0f} seconds"
            raise RunFailed(f"{stalled}; the workers' errors:\n{workers.errors()}")
        await asyncio.sleep(GLANCE)


def through(job: WorkerJob, *, database: str = "", broker: str = "") -> WorkerJob:
    """Return the same job with other ways to its servers."""
    return msgspec.structs.replace(job, database=database or job.database, broker=broker or job.broker)
