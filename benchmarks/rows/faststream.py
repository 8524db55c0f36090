"""FastStream as its documentation shows: at least once, and with an outbox written by hand."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import asyncpg
from faststream import AckPolicy
from faststream.rabbit import Channel, RabbitBroker, RabbitQueue
from pydantic import BaseModel
from sqlalchemy import func, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.job import JobControl, WorkerJob
from benchmarks.scenario import INSERT, OUTBOX, Order, sqlalchemy_url

PREFETCH = 200


class PlaceOrderModel(BaseModel):
    """What is consumed, in the form that FastStream's documentation uses."""

    order_id: str


Handler = Callable[[PlaceOrderModel, RabbitBroker], Awaitable[None]]


async def plain_raw(job: WorkerJob, turn: JobControl) -> None:
    """A row by asyncpg, then the message: at least once."""
    async with asyncpg.create_pool(job.database, min_size=job.concurrency, max_size=job.concurrency) as pool:

        async def handler(order: PlaceOrderModel, broker: RabbitBroker) -> None:
            async with pool.acquire() as connection:
                await connection.execute(INSERT, order.order_id)
            await broker.publish(order, job.target, persist=True)

        await consume(job, turn, handler)


async def plain_orm(job: WorkerJob, turn: JobControl) -> None:
    """A row by a session of its own, then the message: at least once."""
    engine = create_async_engine(sqlalchemy_url(job.database), pool_size=job.concurrency)
    gate = asyncio.Semaphore(job.concurrency)

    async def handler(order: PlaceOrderModel, broker: RabbitBroker) -> None:
        async with gate, AsyncSession(engine) as session:
            session.add(Order(order_id=order.order_id))
            await session.commit()
        await broker.publish(order, job.target, persist=True)

    await consume(job, turn, handler)
    await engine.dispose()


async def outbox_raw(job: WorkerJob, turn: JobControl) -> None:
    """A row and an outbox row in one transaction, the message, then the mark that it was sent; by asyncpg."""
    remember = "insert into baseline_outbox(id,messages) values($1,$2) on conflict do nothing returning id"
    mark = "update baseline_outbox set dispatched_at=now(), messages=null where id=$1"
    async with asyncpg.create_pool(job.database, min_size=job.concurrency, max_size=job.concurrency) as pool:

        async def handler(order: PlaceOrderModel, broker: RabbitBroker) -> None:
            key = str(uuid.uuid4())
            async with pool.acquire() as connection:
                async with connection.transaction():
                    await connection.fetchrow(remember, key, order.model_dump_json().encode())
                    await connection.execute(INSERT, order.order_id)
                await broker.publish(order, job.target, persist=True)
                await connection.execute(mark, key)

        await consume(job, turn, handler)


async def outbox_orm(job: WorkerJob, turn: JobControl) -> None:
    """The same with a session."""
    engine = create_async_engine(sqlalchemy_url(job.database), pool_size=job.concurrency)
    gate = asyncio.Semaphore(job.concurrency)

    async def handler(order: PlaceOrderModel, broker: RabbitBroker) -> None:
        key = str(uuid.uuid4())
        body = order.model_dump_json().encode()
        async with gate, AsyncSession(engine) as session:
            await session.execute(insert(OUTBOX).values(id=key, messages=body).on_conflict_do_nothing())
            session.add(Order(order_id=order.order_id))
            await session.commit()
            await broker.publish(order, job.target, persist=True)
            sent = update(OUTBOX).where(OUTBOX.c.id == key).values(messages=None, dispatched_at=func.now())
            await session.execute(sent)
            await session.commit()

    await consume(job, turn, handler)
    await engine.dispose()


async def consume(job: WorkerJob, turn: JobControl, handler: Handler) -> None:
    """Run a handler on the input queue until the turn is over."""
    broker = RabbitBroker(job.broker, default_channel=Channel(prefetch_count=PREFETCH), logger=None)

    @broker.subscriber(RabbitQueue(job.source, durable=True, declare=False), ack_policy=AckPolicy.NACK_ON_ERROR)
    async def place_order(order: PlaceOrderModel) -> None:
        await handler(order, broker)

    await broker.connect()
    await turn.begin()
    await broker.start()
    await turn.over()
    await broker.stop()
