"""The package faststream-outbox: FastStream consumes, the row and the outbox row share a transaction, a relay publishes."""

import asyncio
from typing import Any

from faststream import AckPolicy
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from faststream_outbox import OutboxBroker, make_outbox_table
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.job import JobControl, WorkerJob
from benchmarks.rows.faststream import PREFETCH, PlaceOrderModel
from benchmarks.scenario import Order, sqlalchemy_url

BATCH = 100
WORKERS = 16
INTERVAL = 0.01  # seconds between fetches; the package's own default is a second

_METADATA = MetaData()
_OUTBOX = make_outbox_table(_METADATA, table_name="relay_outbox")


async def prepare(database: str) -> None:
    """Make the outbox table."""
    engine = create_async_engine(sqlalchemy_url(database))
    async with engine.begin() as connection:
        await connection.run_sync(_METADATA.create_all)
    await engine.dispose()


async def relay(job: WorkerJob, turn: JobControl) -> None:
    """Write row and outbox row together; the relay takes what was committed and publishes it."""
    engine = create_async_engine(sqlalchemy_url(job.database), pool_size=job.concurrency, max_overflow=WORKERS + 2)
    rabbit = RabbitBroker(job.broker, default_channel=Channel(prefetch_count=PREFETCH), logger=None)
    outbox = OutboxBroker(engine, outbox_table=_OUTBOX, logger=None)
    publisher = rabbit.publisher(RabbitQueue(job.target, durable=True), persist=True)
    gate = asyncio.Semaphore(job.concurrency)

    @rabbit.subscriber(RabbitQueue(job.source, durable=True), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def place_order(order: PlaceOrderModel) -> None:
        async with gate, AsyncSession(engine) as session, session.begin():
            session.add(Order(order_id=order.order_id))
            await outbox.publish({"order_id": order.order_id}, queue="orders", session=session)

    @publisher
    @outbox.subscriber(
        "orders",
        max_workers=min(job.concurrency, WORKERS),
        fetch_batch_size=BATCH,
        min_fetch_interval=INTERVAL,
        terminal_flush_batch_size=BATCH // 5,
    )
    async def order_placed(body: dict[str, Any]) -> dict[str, Any]:
        return body

    await rabbit.connect()
    await outbox.connect()
    await turn.begin()
    await rabbit.start()
    await outbox.start()
    await turn.over()
    await rabbit.stop()
    await outbox.stop()
    await engine.dispose()
