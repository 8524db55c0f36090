"""`python -m benchmarks.locks`: what a row that is locked for long costs the messages that do not need it.

Messages arrive at a steady rate, and every fifth of them changes one row. After a while another transaction locks this row, and
the rate at which the other messages are committed is compared with that before. With `--hot` no row is locked: so many messages
wait, each changes one of five rows, and the rate at which the workers handle them is measured.

It needs a database and a RabbitMQ, uses tables and queues with a prefix of their own there, and drops them.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import typer
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from benchmarks.worker import new_event_loop
from onceonly import Endpoint
from onceonly.assembly import open_database, open_transport, schemas, temporary_transport
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology, Transport
from onceonly.sql.database import Database
from onceonly.sql.schema import create, drop

DATABASE, BROKER = "postgresql://postgres@127.0.0.1:5432/postgres", "amqp://guest:guest@127.0.0.1:5672/"
BEFORE = 4.0
"""Seconds in which the workers start, and in which they are then measured before the row is locked."""
HOT_ROWS, BATCH, GLANCE = 5, 500, 0.02

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass
class Add:
    """A message: its handler inserts a row, and changes the row that it names."""

    id: str
    row: str = ""


@dataclass
class LockBenchmark:
    """Where a run takes place."""

    store: str
    transport: str
    table: str


@app.command()
def main(
    *,
    database: Annotated[str, typer.Option(help="The store's URL.")] = DATABASE,
    broker: Annotated[str, typer.Option(help="RabbitMQ's URL.")] = BROKER,
    rate: Annotated[int, typer.Option(help="Messages a second.")] = 250,
    lock: Annotated[int, typer.Option(help="Seconds for which the row is locked.")] = 12,
    processes: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    hot: Annotated[int, typer.Option(help="Lock nothing, and handle so many messages that change one of five rows.")] = 0,
) -> None:
    """Measure, and print one line of JSON."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        found = runner.run(measure(database, broker, rate=rate, lock=lock, processes=processes, hot=hot))
    print(msgspec.json.encode({**found, "load": round(os.getloadavg()[0], 1)}).decode())


async def measure(database: str, broker: str, *, rate: int, lock: int, processes: int, hot: int) -> dict[str, Any]:
    """Make the tables and queues, and measure."""
    prefix = f"l{uuid4().hex[:8]}_"
    place = LockBenchmark(f"{database}?prefix={prefix}", f"{broker}?prefix={prefix}", f"{prefix}rows")
    topology = [Topology(endpoint="shop", events=(Add.__name__,)), Topology(endpoint="web")]
    async with (
        open_database(place.store) as opened,
        _tables(opened, place.table),
        temporary_transport(place.transport, topology),
        open_transport(place.transport, "web") as transport,
    ):
        await transport.declare(topology)
        if hot:
            return await measure_hot_rows(place, opened, transport, messages=hot, processes=processes)
        return await measure_lock(place, opened, transport, rate=rate, lock=lock, processes=processes)


async def measure_lock(
    place: LockBenchmark, database: Database, transport: Transport, *, rate: int, lock: int, processes: int
) -> dict[str, Any]:
    """Compare the rates of the messages that do not need the row, before it is locked and while it is."""
    async with _workers(place, processes), _sending(transport, rate):
        await asyncio.sleep(BEFORE)
        before = await _rate(database, place.table, BEFORE)
        async with database.engine.connect() as connection:
            await connection.exec_driver_sql("BEGIN")
            await connection.execute(text(f"SELECT total FROM {place.table} WHERE id = 'hot 0' FOR UPDATE"))  # noqa: S608 - a table of our own
            during = await _rate(database, place.table, lock)
            await connection.exec_driver_sql("ROLLBACK")
    return {"before": round(before), "during": round(during), "ratio": round(during / before, 2)}


async def measure_hot_rows(
    place: LockBenchmark, database: Database, transport: Transport, *, messages: int, processes: int
) -> dict[str, Any]:
    """Measure from when a tenth of the messages is handled until all are."""
    adds = [Add(f"free {number}", f"hot {number * 7 % HOT_ROWS}") for number in range(messages)]
    for first in range(0, messages, BATCH):
        await transport.send([_sent(add) for add in adds[first : first + BATCH]])
    async with _workers(place, processes):
        begun = await _until(database, place.table, messages // 10)
        began = time.perf_counter()
        await _until(database, place.table, messages)
    return {"messages a second": round((messages - begun) / (time.perf_counter() - began))}


@asynccontextmanager
async def _tables(database: Database, table: str) -> AsyncIterator[None]:
    for schema in schemas("store", "transport"):
        await create(database, schema)
    try:
        async with database.writing() as connection:
            await connection.execute(text(f"CREATE TABLE {table} (id VARCHAR(40) PRIMARY KEY, total INTEGER NOT NULL)"))
            for number in range(HOT_ROWS):
                await connection.execute(text(f"INSERT INTO {table} VALUES ('hot {number}', 0)"))  # noqa: S608 - a table of our own
        yield
    finally:
        for schema in schemas("store", "transport"):
            await drop(database, schema)
        async with database.writing() as connection:
            await connection.execute(text(f"DROP TABLE IF EXISTS {table}"))


@asynccontextmanager
async def _workers(place: LockBenchmark, processes: int) -> AsyncIterator[None]:
    spawning = multiprocessing.get_context("spawn")
    stop = spawning.Event()
    workers = [spawning.Process(target=_work, args=(place, stop)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        yield
    finally:
        stop.set()
        for worker in workers:
            await asyncio.to_thread(worker.join)


def _work(place: LockBenchmark, stop: Any) -> None:
    """Run the endpoint in a process of its own."""
    shop = Endpoint("shop", store=place.store, transport=place.transport)

    @shop.handler
    async def add(message: Add, connection: AsyncConnection) -> None:
        await connection.execute(text(f"INSERT INTO {place.table} VALUES (:id, 0)"), {"id": message.id})  # noqa: S608 - a table of our own
        if message.row:
            changed = text(f"UPDATE {place.table} SET total = total + 1 WHERE id = :row")  # noqa: S608 - the same
            await connection.execute(changed, {"row": message.row})

    async def run() -> None:
        async with shop.running():
            await asyncio.to_thread(stop.wait)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(run())


@asynccontextmanager
async def _sending(transport: Transport, rate: int) -> AsyncIterator[None]:
    async def send() -> None:
        began, sent = time.perf_counter(), 0
        while True:
            due = int((time.perf_counter() - began) * rate)
            adds = [Add(f"waits {n}", "hot 0") if n % 5 == 0 else Add(f"free {n}") for n in range(sent, due)]
            await transport.send([_sent(add) for add in adds])
            sent = due
            await asyncio.sleep(GLANCE)

    sending = asyncio.create_task(send())
    try:
        yield
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError):
            await sending


def _sent(add: Add) -> Send:
    body = msgspec.json.encode(add)
    return Send(message=Message(id=add.id, source="web", type=Add.__name__, body=body), to="shop")


async def _rate(database: Database, table: str, seconds: float) -> float:
    first, began = await _committed(database, table), time.perf_counter()
    await asyncio.sleep(seconds)
    return (await _committed(database, table) - first) / (time.perf_counter() - began)


async def _until(database: Database, table: str, number: int) -> int:
    while (found := await _committed(database, table)) < number:  # noqa: ASYNC110 - the server has no event
        await asyncio.sleep(GLANCE)
    return found


async def _committed(database: Database, table: str) -> int:
    """Count the messages that did not need the locked row."""
    async with database.reading() as connection:
        return int(await connection.scalar(text(f"SELECT count(*) FROM {table} WHERE id LIKE 'free %'")) or 0)  # noqa: S608 - a table of our own


if __name__ == "__main__":
    app()
