"""The cost gate: what a batch of messages costs on the wire, exactly, for each of onceonly's rows in the benchmark.

A statement, a round trip or a publish more than before fails here, and so do 2 % more allocations. Times are measured by
`make bench`, never by a test.
"""

import asyncio
import gc
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from functools import wraps
from pathlib import Path
from sysconfig import get_path
from typing import Any, NamedTuple

import memray
import pytest
from sqlalchemy.engine.default import DefaultDialect

from benchmarks.counting import AMQPEars, PostgreSQLEars
from benchmarks.job import WorkerJob
from benchmarks.rows import BY_NAME, MARIADB, POSTGRESQL, RABBITMQ, SQLITE, BenchmarkRow
from benchmarks.rows.onceonly import SHOP, fill, sqlite_urls, with_driver, with_session, worker_settings
from benchmarks.scenario import PlaceOrder, order_ids
from benchmarks.stages import database, postgresql, rabbitmq, sqlite
from benchmarks.wire import proxied
from benchmarks.worker import find, listened
from onceonly import Endpoint, IdentityHeader, Retry, RetryLater
from tests.benchmarks.exact_batches import ExactBatches, Turn, least
from tests.servers import available
from tests.versions.floors import differences, pinned

WARM_UP, BATCHES = 2, 3


class Cost(NamedTuple):
    """What is counted in both directions."""

    statements: int
    trips: int
    publishes: int


class Case(NamedTuple):
    """A row of the benchmark, or a worker of this test's on the servers of one, with batches of a size, and their cost."""

    row: str
    size: int
    cost: Cost
    work: Callable[[WorkerJob, Turn], Coroutine[Any, Any, None]] | None = None
    handled: int | None = None


def failing(handler: Any, error: Callable[[], Exception]) -> Callable[[WorkerJob, Turn], Coroutine[Any, Any, None]]:
    """Return a worker with one handler that fails for one order of each batch, behind its statements."""

    async def work(job: WorkerJob, turn: Turn) -> None:
        shop = Endpoint(
            SHOP,
            store=job.database,
            transport=f"{job.broker}?prefix={job.prefix}",
            identity=IdentityHeader("message-id"),
            retry=Retry(immediate=0, delayed=0),
            worker=worker_settings(1),
        )

        @wraps(handler)
        async def fail(order: PlaceOrder, *resources: Any, **named: Any) -> None:
            await handler(order, *resources, **named)
            if order.order_id.endswith("-7"):
                raise error()

        shop.handler(fail)
        await turn.begin(receiving := asyncio.Event())
        await shop.run(turn.stop, ready=receiving)

    return work


def broken() -> Exception:
    """Return what a handler raises that is given up at once."""
    return ValueError("this order is bad")


def early() -> Exception:
    """Return what a handler raises that is tried again later, after the test."""
    return RetryLater(3600)


ORM, RAW = "onceonly_orm", "onceonly_raw"
CASES = {
    "orm": Case(ORM, 100, Cost(6, 6, 100)),
    "orm, psycopg": Case("onceonly_orm_psycopg", 100, Cost(6, 6, 100)),
    "core": Case("onceonly_core", 100, Cost(105, 105, 100)),
    "raw": Case(RAW, 100, Cost(105, 105, 100)),
    "batch": Case("onceonly_batch", 100, Cost(6, 6, 100)),
    "core batch": Case("onceonly_core_batch", 100, Cost(105, 6, 100)),
    "entities": Case("onceonly_entities", 100, Cost(7, 7, 100)),
    "off": Case("onceonly_off", 100, Cost(3, 3, 100)),
    "sql queue": Case("onceonly_sql_queue", 100, Cost(17, 17, 0)),
    "sqlite": Case("onceonly_sqlite", 100, Cost(18, 0, 0)),
    "orm, alone": Case(ORM, 1, Cost(4, 4, 1)),
    "entities, alone": Case("onceonly_entities", 1, Cost(5, 5, 1)),
    "sql queue, alone": Case("onceonly_sql_queue", 1, Cost(15, 15, 0)),
    "sqlite, alone": Case("onceonly_sqlite", 1, Cost(18, 0, 0)),
    "orm, one fails": Case(ORM, 100, Cost(11, 11, 99), failing(with_session, broken), 99),
    "raw, one fails": Case(RAW, 100, Cost(211, 211, 99), failing(with_driver, broken), 99),
    "orm, one later": Case(ORM, 100, Cost(7, 7, 100), failing(with_session, early), 99),
    "raw, one later": Case(RAW, 100, Cost(207, 207, 100), failing(with_driver, early), 99),
}
"""From a batch's first receive until it is sent, forgotten and acknowledged."""


ALLOCATIONS = {
    "orm": 2536,
    "raw": 2503,
    "batch": 1770,
    "sql queue": 2080,
    "sqlite": 2221,
    "orm, alone": 12502,
}
"""For one message: how often this process allocates memory and frees it, with its clients of the broker and the database.

A failure is not here: it is logged, and what that costs depends on the handlers of logs that a process has.
"""
ROOM, RECORDED_ON = 0.02, (3, 11)


class Counted(NamedTuple):
    """A row's worker in this process, and what it says to its servers."""

    place: Callable[[list[str]], Awaitable[None]]
    batches: ExactBatches
    counted: Counter[str]

    async def costs(self, case: Case) -> Cost:
        """Return what the cheapest of some batches costs. The first ones prepare statements and are not counted."""
        found: list[dict[str, int]] = []
        for number in range(WARM_UP + BATCHES):
            await self._place(number, case)
            self.counted.clear()
            await self._take(case)
            found.append({name: self.counted[name] for name in Cost._fields})
        return Cost(**least(found[WARM_UP:]))

    async def allocations(self, case: Case, folder: Path) -> float:
        """Return how often memory is allocated and freed for a message, in the cheapest of some batches."""
        found: list[int] = []
        for number in range(WARM_UP + BATCHES):
            await self._place(number, case)
            if number < WARM_UP:
                await self._take(case)
                continue
            file = folder / f"{number}.allocations"
            gc.collect()
            with memray.Tracker(file, trace_python_allocators=True):
                await self._take(case)
            found.append(memray.FileReader(file).metadata.total_allocations)
        return min(found) / case.size

    async def _place(self, number: int, case: Case) -> None:
        await self.place(order_ids(f"{number}", case.size))

    async def _take(self, case: Case) -> None:
        report = await self.batches.take()
        assert report.handled == (case.size if case.handled is None else case.handled), report


@asynccontextmanager
async def opened(case: Case, folder: Path, patch: pytest.MonkeyPatch, *, counting: bool = True) -> AsyncIterator[Counted]:
    """Run a row here, on servers behind proxies that count."""
    row = BY_NAME[case.row]
    batches, counted, turn = ExactBatches(patch, case.size), Counter[str](), Turn()
    async with AsyncExitStack() as stack:
        place, job = await _placed(row, folder, stack)
        if row.backend == SQLITE:
            counted = _listened(patch)
        elif counting:
            through = await stack.enter_async_context(proxied(job.database, listen=lambda: PostgreSQLEars(counted)))
            broker = job.broker and await stack.enter_async_context(proxied(job.broker, listen=lambda: AMQPEars(counted)))
            job = WorkerJob(work=job.work, database=through, broker=broker, prefix=job.prefix)
        work: Any = case.work or find(row.work)
        await stack.enter_async_context(turn.running(work(job, turn), batches))
        yield Counted(place, batches, counted)


async def _placed(row: BenchmarkRow, folder: Path, stack: AsyncExitStack) -> tuple[Any, WorkerJob]:
    if row.backend == SQLITE:
        files = sqlite.SQLiteBackend(folder)
        await files.fill(row, [])
        return lambda ids: fill(sqlite_urls(str(folder))[1], ids), files.job(row, 1)
    own = await stack.enter_async_context(database.opened(available.need(available.POSTGRESQL)))
    if row.backend == POSTGRESQL:
        tables = postgresql.PostgreSQLBackend(own)
        await tables.fill(row, [])
        return lambda ids: fill(own.url, ids), tables.job(row, 1)
    assert row.backend == RABBITMQ
    queues = await stack.enter_async_context(rabbitmq.opened(available.need(available.RABBITMQ), own))
    await queues.prepare(row)
    return lambda ids: queues.fill(row, ids, keep=True), queues.job(row, 1)


def _listened(patch: pytest.MonkeyPatch) -> Counter[str]:
    for name in ("do_execute", "do_executemany", "do_execute_no_params", "do_commit"):
        patch.setattr(DefaultDialect, name, getattr(DefaultDialect, name))  # what is set below is undone
    return listened()


@pytest.mark.parametrize("name", CASES)
async def test_a_batch_costs_this(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference in either direction is written down here, with its reason in the commit."""
    case = CASES[name]
    async with opened(case, tmp_path, monkeypatch) as counted:
        assert await counted.costs(case) == case.cost


@pytest.mark.parametrize("name", ALLOCATIONS)
async def test_a_message_allocates_this(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allocations are the same on a busy machine; a difference is written down here, too."""
    if sys.version_info[:2] != RECORDED_ON or differences(Path(get_path("purelib")), pinned()):
        pytest.skip(f"allocations are recorded for Python {RECORDED_ON} and the versions of constraints.txt")
    case = CASES[name]
    async with opened(case, tmp_path, monkeypatch, counting=False) as counted:
        assert await counted.allocations(case, tmp_path) == pytest.approx(ALLOCATIONS[name], rel=ROOM)


def test_each_row_of_the_benchmark_is_here() -> None:
    """A new row of onceonly's has a cost, but for MariaDB: the benchmark itself limits that."""
    rows = {row.name for row in BY_NAME.values() if row.is_own and row.backend != MARIADB}
    assert rows == {case.row for case in CASES.values()}
