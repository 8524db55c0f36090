"""Huey on SQLite: each task writes one row and enqueues one task; as durable as the row of onceonly."""

import asyncio
import sqlite3
import threading
from pathlib import Path

from huey import SqliteHuey

from benchmarks.job import JobControl, WorkerJob

WRITE = "insert into baseline_order(order_id) values(?)"


def orders_queue(folder: str) -> SqliteHuey:
    """Open the input queue."""
    return SqliteHuey("orders", filename=str(Path(folder) / "queue.db"), fsync=True, results=False)


def out_queue(folder: str) -> SqliteHuey:
    """Open the output queue, in the same file."""
    return SqliteHuey("out", filename=str(Path(folder) / "queue.db"), fsync=True, results=False)


async def fill(folder: str, order_ids: list[str]) -> None:
    """Enqueue a task for each order."""
    queue = orders_queue(folder)
    place_order = queue.task(name="place_order")(_nothing)
    for order_id in order_ids:
        place_order(order_id)
    queue.storage.close()


async def arrived_ids(folder: str) -> list[str]:
    """Read what was enqueued for the next."""
    queue = out_queue(folder)
    queue.task(name="order_placed")(_nothing)
    ids = [task.args[0] for task in queue.pending()]
    queue.storage.close()
    return ids


async def on_sqlite(job: WorkerJob, turn: JobControl) -> None:
    """Run its consumer with threads."""
    queue, out, own = orders_queue(job.folder), out_queue(job.folder), threading.local()
    order_placed = out.task(name="order_placed")(_nothing)

    @queue.task(name="place_order")
    def place_order(order_id: str) -> None:
        if not hasattr(own, "connection"):
            own.connection = _connect(job.folder)
        with own.connection:
            own.connection.execute(WRITE, (order_id,))
        order_placed(order_id)

    await turn.begin()
    consumer = queue.create_consumer(workers=job.concurrency, periodic=False, initial_delay=0.005, max_delay=0.05)
    consumer.start()
    await turn.over()
    await asyncio.to_thread(consumer.stop, graceful=True)


def _connect(folder: str) -> sqlite3.Connection:
    connection = sqlite3.connect(Path(folder) / "shop.db", timeout=30)
    connection.execute("pragma journal_mode=wal")
    connection.execute("pragma synchronous=full")
    return connection


def _nothing(order_id: str) -> None:
    """Stand for a task that is only enqueued here."""
