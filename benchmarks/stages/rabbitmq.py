"""A database and RabbitMQ: queues behind a prefix of the benchmark's own; every row gets the very same messages."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiormq
import msgspec

from benchmarks.job import WorkerJob
from benchmarks.rows import BenchmarkRow
from benchmarks.rows.onceonly import EVENT, SHOP, topologies
from benchmarks.scenario import OrderPlaced, PlaceOrder, encode
from benchmarks.stages import RowDatabase, Totals, count
from benchmarks.worker import find_optional
from onceonly.assembly import open_transport, temporary_transport

CHUNK = 200
_decode = msgspec.json.Decoder(OrderPlaced).decode
_Properties = aiormq.spec.Basic.Properties


class RabbitMQBackend:
    """Two input queues, since onceonly declares its own (a quorum queue), and one output queue for all (classic, durable)."""

    def __init__(self, url: str, prefix: str, database: RowDatabase, *, folder: Path, connection: Any, channel: Any) -> None:
        """Stand on what `opened` declared."""
        self._url = url
        self._folder = folder
        self._prefix = prefix
        self._database = database
        self._connection = connection
        self.channel = channel

    async def prepare(self, row: BenchmarkRow) -> None:
        """Make the tables of this row's package, once, and build its program."""
        await self._database.prepare(row.module)
        build = find_optional(f"{row.module}:build")
        if build is not None:
            await asyncio.to_thread(build, self._folder)

    async def fill(self, row: BenchmarkRow, order_ids: list[str], *, keep: bool = False) -> None:
        """Empty queues and tables (not with `keep`), and publish the messages."""
        for queue in (self.source(row), self.target):
            await self.channel.queue_purge(queue)
        if not keep:
            await self._database.empty()
        for start in range(0, len(order_ids), CHUNK):
            await asyncio.gather(*(self.place(row, order_id) for order_id in order_ids[start : start + CHUNK]))

    async def place(self, row: BenchmarkRow, order_id: str) -> None:
        """Publish one message and wait for its confirm."""
        body = encode(PlaceOrder(order_id))
        properties = _Properties(message_id=str(uuid.uuid4()), delivery_mode=2, content_type="application/json")
        await self.channel.basic_publish(body, routing_key=self.source(row), properties=properties)

    async def arrived(self, row: BenchmarkRow) -> int:
        """Count the output queue."""
        declared = await self.channel.queue_declare(self.target, passive=True)
        return int(declared.message_count)

    async def totals(self, row: BenchmarkRow, tag: str) -> Totals:
        """Take everything from the output queue, and compare with the table."""
        expected = await self.arrived(row)
        bodies: list[bytes] = []
        complete = asyncio.Event()

        async def take(delivery: Any) -> None:
            bodies.append(delivery.body)
            if len(bodies) >= expected:
                complete.set()

        channel = await self._connection.channel()
        if expected:
            await channel.basic_consume(self.target, take, no_ack=True)
            await complete.wait()
        await channel.close()
        rows = [] if row.is_echo else await self.rows(tag)
        return count(rows, [_decode(body).order_id for body in bodies])

    async def rows(self, tag: str) -> list[str]:
        """Read the orders that a run wrote."""
        return await self._database.written(tag)

    async def wal(self) -> int:
        """Ask PostgreSQL."""
        return await self._database.wal()

    async def commits(self) -> int:
        """Ask PostgreSQL."""
        return await self._database.commits()

    def job(self, row: BenchmarkRow, concurrency: int) -> WorkerJob:
        """Name the database, the broker and the queues."""
        return WorkerJob(
            work=row.work,
            database=self._database.url,
            broker=self._url,
            prefix=self._prefix,
            folder=str(self._folder),
            source=self.source(row),
            target=self.target,
            concurrency=concurrency,
        )

    def source(self, row: BenchmarkRow) -> str:
        """Name the input queue."""
        return f"{self._prefix}{SHOP}" if row.reads_quorum else f"{self._prefix}in"

    @property
    def version(self) -> str:
        """Name the broker's version."""
        return str(self._connection.server_properties.get("version", "unknown"))

    @property
    def target(self) -> str:
        """Name the output queue."""
        return f"{self._prefix}events"

    async def consumer(self, arrive: Any) -> Any:
        """Consume the output queue; gives the channel, to be closed."""
        channel = await self._connection.channel()
        await channel.basic_consume(self.target, arrive, no_ack=True)
        return channel


@asynccontextmanager
async def opened(url: str, database: RowDatabase) -> AsyncIterator[RabbitMQBackend]:
    """Declare the queues, and make a folder for programs. All of it is deleted at the end."""
    prefix = f"bench_{uuid.uuid4().hex[:8]}_"
    place = f"{url}?prefix={prefix}"
    shop = topologies()[:1]
    exchange = f"{prefix}onceonly:event:{EVENT}"  # where onceonly publishes this event; the same arguments as its own
    connection = await aiormq.connect(url)
    try:
        channel = await connection.channel(publisher_confirms=True)
        async with AsyncExitStack() as stack, temporary_transport(place, topologies()):
            async with open_transport(place, SHOP) as transport:
                await transport.declare(shop)
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="onceonly-bench-")))
            stage = RabbitMQBackend(url, prefix, database, folder=folder, connection=connection, channel=channel)
            for queue in (f"{prefix}in", stage.target):
                await channel.queue_declare(queue, durable=True)
            await channel.exchange_declare(exchange, exchange_type="fanout", durable=True)
            await channel.queue_bind(stage.target, exchange)
            try:
                yield stage
            finally:
                for queue in (f"{prefix}in", stage.target):
                    await channel.queue_delete(queue)
    finally:
        await connection.close()
