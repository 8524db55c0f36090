"""DBOS: one durable workflow for each message, its row in a datasource transaction; on RabbitMQ and with its own queue."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiormq
from dbos import DBOS, AsyncSQLAlchemyDatasource, DBOSClient, DBOSConfig, SetWorkflowID
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.job import JobControl, WorkerJob
from benchmarks.scenario import Order, decode_order, encode, sqlalchemy_url

ORDERS, OUT = "orders", "out"
ARRIVED = f"select count(*) from dbos.workflow_status where queue_name = '{OUT}'"  # noqa: S608 - a constant
ARRIVED_IDS = f"select workflow_uuid from dbos.workflow_status where queue_name = '{OUT}'"  # noqa: S608 - a constant
PREFETCH = 200
POOL = 32  # the most connections of each of its two pools: the server has a hundred
POLLING = 0.01  # seconds; its own default is one
TRANSACTION: Any = {"name": "write", "isolation_level": "READ COMMITTED"}
VERSION = "benchmark"

os.environ.setdefault("DBOS__APPVERSION", VERSION)


async def prepare(database: str) -> None:
    """Make its tables, those of the system database and of the datasource."""
    DBOS(config=_config(database, 2))
    engine = create_async_engine(sqlalchemy_url(database))
    await AsyncSQLAlchemyDatasource.create(sqlalchemy_url(database), engine=engine)
    DBOS.launch()
    await engine.dispose()
    await asyncio.to_thread(DBOS.destroy, destroy_registry=True)


async def fill(database: str, order_ids: list[str]) -> None:
    """Enqueue a workflow for each order."""
    await asyncio.to_thread(_fill, database, order_ids)


def _fill(database: str, order_ids: list[str]) -> None:
    client = DBOSClient(system_database_url=database)
    for order_id in order_ids:
        options: Any = {"queue_name": ORDERS, "workflow_name": "place_order", "workflow_id": f"in:{order_id}"}
        client.enqueue(options, order_id)
    client.destroy()


async def on_rabbitmq(job: WorkerJob, turn: JobControl) -> None:
    """Start a workflow under the message's id, then acknowledge; the workflow writes and publishes in two steps."""
    connection = await aiormq.connect(job.broker)
    channel, out = await connection.channel(), await connection.channel(publisher_confirms=True)
    await channel.basic_qos(prefetch_count=PREFETCH)
    gate = asyncio.Semaphore(job.concurrency)
    async with _datasource(job) as write:

        async def publish(order_id: str) -> None:
            properties = aiormq.spec.Basic.Properties(message_id=order_id, delivery_mode=2)
            await out.basic_publish(encode({"order_id": order_id}), routing_key=job.target, properties=properties)

        @DBOS.workflow(name="place_order")
        async def place_order(order_id: str) -> None:
            try:
                await write(order_id)
                await DBOS.run_step_async({"name": "publish"}, publish, order_id)
            finally:
                gate.release()

        async def arrive(delivery: Any) -> None:
            await gate.acquire()
            with SetWorkflowID(delivery.header.properties.message_id):
                await DBOS.start_workflow_async(place_order, decode_order(delivery.body).order_id)
            await channel.basic_ack(delivery.delivery_tag)

        DBOS.launch()
        await turn.begin()
        await channel.basic_consume(job.source, arrive)
        await turn.over()
        await connection.close()


async def on_its_queue(job: WorkerJob, turn: JobControl) -> None:
    """Its queue starts a workflow that writes the row and enqueues the next workflow."""
    async with _datasource(job) as write:

        @DBOS.workflow(name="order_placed")
        async def order_placed(order_id: str) -> None:
            """Nobody runs it here: it is the message that goes out."""

        @DBOS.workflow(name="place_order")
        async def place_order(order_id: str) -> None:
            await write(order_id)
            with SetWorkflowID(order_id):
                await DBOS.enqueue_workflow_async(OUT, order_placed, order_id)

        DBOS.launch()
        await turn.begin()
        await DBOS.register_queue_async(ORDERS, worker_concurrency=job.concurrency, polling_interval_sec=POLLING)
        await turn.over()


@asynccontextmanager
async def _datasource(job: WorkerJob) -> AsyncIterator[Any]:
    """Configure DBOS, and give what writes the row as a transaction step."""
    pool = min(job.concurrency, POOL)
    DBOS(config=_config(job.database, pool))
    engine = create_async_engine(sqlalchemy_url(job.database), pool_size=pool, max_overflow=0)
    datasource = await AsyncSQLAlchemyDatasource.create(sqlalchemy_url(job.database), engine=engine)

    async def insert(order_id: str) -> None:
        datasource.sql_session().add(Order(order_id=order_id))

    async def write(order_id: str) -> None:
        await datasource.run_tx_step_async(TRANSACTION, insert, order_id)

    try:
        yield write
    finally:
        await asyncio.to_thread(DBOS.destroy)
        await engine.dispose()


def _config(database: str, pool: int) -> DBOSConfig:
    return {"name": "benchmark", "system_database_url": database, "sys_db_pool_size": pool, "log_level": "ERROR"}
