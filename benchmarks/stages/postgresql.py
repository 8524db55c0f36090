"""PostgreSQL alone: each library's own queue, filled and read by the library's own means."""

from benchmarks.job import WorkerJob
from benchmarks.rows import BenchmarkRow
from benchmarks.stages import Totals, count
from benchmarks.stages.database import BackendDatabase
from benchmarks.worker import find


class PostgreSQLBackend:
    """One database for the rows and the queue."""

    def __init__(self, database: BackendDatabase) -> None:
        """Work in this database."""
        self._database = database

    async def prepare(self, row: BenchmarkRow) -> None:
        """Make the tables of this row's package, once; onceonly's are there."""
        await self._database.prepare(row.module)

    async def fill(self, row: BenchmarkRow, order_ids: list[str], *, keep: bool = False) -> None:
        """Empty all tables, for the queue is one of them, and enqueue a message for each order."""
        await self._database.empty()
        await find(f"{row.module}:fill")(self._database.url, order_ids)

    async def arrived(self, row: BenchmarkRow) -> int:
        """Count what was enqueued for the next."""
        return await self._database.look(find(f"{row.module}:ARRIVED"))

    async def totals(self, row: BenchmarkRow, tag: str) -> Totals:
        """Compare the rows with what was enqueued for the next."""
        found = await self._database.own.fetch(find(f"{row.module}:ARRIVED_IDS"))
        return count(await self._database.written(tag), [order_id for (order_id,) in found])

    async def wal(self) -> int:
        """Ask PostgreSQL."""
        return await self._database.wal()

    async def commits(self) -> int:
        """Ask PostgreSQL."""
        return await self._database.commits()

    def job(self, row: BenchmarkRow, concurrency: int) -> WorkerJob:
        """Name the database."""
        return WorkerJob(work=row.work, database=self._database.url, concurrency=concurrency)
