"""Procrastinate: a job deferred in the transaction that writes the row, on RabbitMQ and with its own queue alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from faststream.rabbit import RabbitBroker
from procrastinate import App, PsycopgConnector
from psycopg_pool import AsyncConnectionPool

from benchmarks.job import JobControl, WorkerJob
from benchmarks.rows.faststream import PlaceOrderModel, consume

ORDERS, OUT = "orders", "out"
ARRIVED = f"select count(*) from procrastinate_jobs where queue_name = '{OUT}'"  # noqa: S608 - a constant
ARRIVED_IDS = f"select args->>'order_id' from procrastinate_jobs where queue_name = '{OUT}'"  # noqa: S608 - a constant
WRITE = "insert into baseline_order(order_id) values(%s)"
POOL = 32  # the most connections of each of its two pools: the server has a hundred


async def prepare(database: str) -> None:
    """Make its tables."""
    async with App(connector=PsycopgConnector(conninfo=database)).open_async() as app:
        await app.schema_manager.apply_schema_async()


async def fill(database: str, order_ids: list[str]) -> None:
    """Defer a job for each order."""
    async with App(connector=PsycopgConnector(conninfo=database)).open_async() as app:
        place_order = app.configure_task("place_order", queue=ORDERS)
        jobs: list[Any] = [{"order_id": order_id} for order_id in order_ids]
        await place_order.batch_defer_async(*jobs)


async def on_rabbitmq(job: WorkerJob, turn: JobControl) -> None:
    """FastStream consumes; the row and a job that publishes are committed together, and a worker runs the job."""
    broker = RabbitBroker(job.broker, logger=None)
    async with broker, _opened(job) as (app, pool):

        @app.task(name="order_placed", queue=OUT)
        async def order_placed(order_id: str) -> None:
            await broker.publish({"order_id": order_id}, job.target, persist=True)

        async def handler(order: PlaceOrderModel, _: RabbitBroker) -> None:
            async with pool.connection() as connection:
                await connection.execute(WRITE, (order.order_id,))
                await order_placed.configure(connection=connection).defer_async(order_id=order.order_id)

        async with _working(app, OUT, job.concurrency):
            await consume(job, turn, handler)


async def on_its_queue(job: WorkerJob, turn: JobControl) -> None:
    """Its worker runs a job that writes the row and defers the next one, in one transaction."""
    async with _opened(job) as (app, pool):

        @app.task(name="order_placed", queue=OUT)
        async def order_placed(order_id: str) -> None:
            """Nobody runs it here: it is the message that goes out."""

        @app.task(name="place_order", queue=ORDERS)
        async def place_order(order_id: str) -> None:
            async with pool.connection() as connection:
                await connection.execute(WRITE, (order_id,))
                await order_placed.configure(connection=connection).defer_async(order_id=order_id)

        await turn.begin()
        async with _working(app, ORDERS, job.concurrency):
            await turn.over()


@asynccontextmanager
async def _opened(job: WorkerJob) -> AsyncIterator[tuple[App, Any]]:
    pool_size = min(job.concurrency, POOL)
    app = App(connector=PsycopgConnector(conninfo=job.database, max_size=pool_size))
    async with app.open_async(), AsyncConnectionPool(job.database, min_size=1, max_size=pool_size) as pool:
        yield app, pool


@asynccontextmanager
async def _working(app: App, queue: str, concurrency: int) -> AsyncIterator[None]:
    """Run its worker beside the block."""
    worker = app.run_worker_async(queues=[queue], concurrency=concurrency, install_signal_handlers=False)
    working = asyncio.create_task(worker)
    try:
        yield
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
