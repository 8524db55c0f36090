"""PostgreSQL and a broker that the library's own transport fills and reads: every row gets the same messages."""

import msgspec

from benchmarks.job import WorkerJob
from benchmarks.rows import BenchmarkRow
from benchmarks.rows.onceonly import OUT, fill
from benchmarks.scenario import OrderPlaced
from benchmarks.stages import Totals, count
from benchmarks.stages.database import BackendDatabase
from onceonly.ports.transport import Transport

TAKEN = 500
"""Messages that are read from the output queue at once."""
PATIENCE_SECONDS = 5.0
_decode = msgspec.json.Decoder(OrderPlaced).decode


class TransportBackend:
    """One broker. `output` is the queue of the subscriber, opened in this process."""

    def __init__(self, url: str, prefix: str, database: BackendDatabase, output: Transport) -> None:
        """Use what `benchmarks.brokers` has declared behind this prefix."""
        self._url = url
        self._prefix = prefix
        self._database = database
        self._output = output
        self._sent: frozenset[str] = frozenset()

    async def prepare(self, row: BenchmarkRow) -> None:
        """Make the tables of this row's package, once; onceonly's are there."""
        await self._database.prepare(row.module)

    async def fill(self, row: BenchmarkRow, order_ids: list[str], *, keep: bool = False) -> None:
        """Empty the tables, and send a message for each order. The queues are empty: `totals` empties the output queue."""
        if not keep:
            await self._database.empty()
        self._sent = frozenset(order_ids)
        await fill(f"{self._url}?prefix={self._prefix}", order_ids)

    async def arrived(self, row: BenchmarkRow) -> int:
        """Count the output queue."""
        return (await self._output.depth(OUT)).waiting

    async def totals(self, row: BenchmarkRow, tag: str) -> Totals:
        """Take everything from the output queue, and compare with the table.

        An order counts once. An event is published again if the broker confirms it late, and its subscriber drops the copy.
        A copy may even come after the run.
        """
        expected, orders = await self.arrived(row), list[str]()
        while len(orders) < expected and (taken := await self._output.receive(TAKEN, PATIENCE_SECONDS)):
            orders += [_decode(delivery.body).order_id for delivery in taken]
            await self._output.ack(taken)
        return count([] if row.is_echo else await self._database.written(tag), sorted(self._sent.intersection(orders)))

    async def wal(self) -> int:
        """Ask PostgreSQL."""
        return await self._database.wal()

    async def commits(self) -> int:
        """Ask PostgreSQL."""
        return await self._database.commits()

    def job(self, row: BenchmarkRow, concurrency: int) -> WorkerJob:
        """Name the database, the broker and the prefix."""
        return WorkerJob(
            work=row.work, database=self._database.url, broker=self._url, prefix=self._prefix, concurrency=concurrency
        )
