"""Batches written by hand: without claims and records, with them (the floor), and the broker's echo without a database."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiormq
import asyncpg
from sqlalchemy import Insert
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.job import JobControl, WorkerJob
from benchmarks.scenario import INSERT, OUTBOX, Order, decode_order, encode, sqlalchemy_url

BATCH = 100
PREFETCH = 3 * BATCH

_CLAIM = insert(OUTBOX).on_conflict_do_nothing().returning(OUTBOX.c.id)

Unit = Callable[[Sequence[Any]], Awaitable[list[bytes]]]


async def echo(job: WorkerJob, turn: JobControl) -> None:
    """Publish what was consumed: what the broker and its driver can do."""

    async def unit(deliveries: Sequence[Any]) -> list[bytes]:
        return [delivery.body for delivery in deliveries]

    await _batches(job, turn, unit)


async def plain_raw(job: WorkerJob, turn: JobControl) -> None:
    """One transaction for a batch, one INSERT for a message, no claims and no records: at least once."""
    connection = await asyncpg.connect(job.database)

    async def unit(deliveries: Sequence[Any]) -> list[bytes]:
        orders = [decode_order(delivery.body) for delivery in deliveries]
        async with connection.transaction():
            for order in orders:
                await connection.execute(INSERT, order.order_id)
        return [encode(order) for order in orders]

    await _batches(job, turn, unit)
    await connection.close()


async def plain_orm(job: WorkerJob, turn: JobControl) -> None:
    """One session, one flush and one commit for a batch, no claims and no records: at least once."""
    engine = create_async_engine(sqlalchemy_url(job.database))

    async def unit(deliveries: Sequence[Any]) -> list[bytes]:
        bodies = []
        async with AsyncSession(engine) as session:
            for delivery in deliveries:
                order = decode_order(delivery.body)
                session.add(Order(order_id=order.order_id))
                bodies.append(encode(order))
            await session.commit()
        return bodies

    await _batches(job, turn, unit)
    await engine.dispose()


async def floor_raw(job: WorkerJob, turn: JobControl) -> None:
    """The least that exactly-once costs by hand: claims, rows and records in one transaction, records removed by the next."""
    connection = await asyncpg.connect(job.database)
    previous: list[str] = []
    claim = "insert into baseline_outbox(id) select unnest($1::text[]) on conflict do nothing returning id"
    record = "update baseline_outbox o set messages=x.m from unnest($1::text[],$2::bytea[]) x(id,m) where o.id=x.id"

    async def unit(deliveries: Sequence[Any]) -> list[bytes]:
        nonlocal previous
        keys = [delivery.header.properties.message_id for delivery in deliveries]
        bodies = []
        async with connection.transaction():
            if previous:
                await connection.execute("delete from baseline_outbox where id = any($1)", previous)
            await connection.fetch(claim, sorted(keys))
            for delivery in deliveries:
                order = decode_order(delivery.body)
                await connection.execute(INSERT, order.order_id)
                bodies.append(encode(order))
            await connection.execute(record, keys, bodies)
        previous = keys
        return bodies

    await _batches(job, turn, unit)
    await connection.close()


async def floor_core(job: WorkerJob, turn: JobControl) -> None:
    """The same by SQLAlchemy without the ORM, one INSERT for a message."""
    engine = create_async_engine(sqlalchemy_url(job.database))
    order_row = insert(Order)
    previous: list[str] = []

    async def unit(deliveries: Sequence[Any]) -> list[bytes]:
        nonlocal previous
        keys = [delivery.header.properties.message_id for delivery in deliveries]
        bodies = []
        async with engine.begin() as connection:
            if previous:
                await connection.execute(OUTBOX.delete().where(OUTBOX.c.id.in_(previous)))
            for delivery in deliveries:
                order = decode_order(delivery.body)
                await connection.execute(order_row, {"order_id": order.order_id})
                bodies.append(encode(order))
            records = sorted(zip(keys, bodies, strict=True))
            await connection.execute(_CLAIM, [{"id": key, "messages": body} for key, body in records])
        previous = keys
        return bodies

    await _batches(job, turn, unit)
    await engine.dispose()


async def floor_orm(job: WorkerJob, turn: JobControl) -> None:
    """The same with a session and one flush for a batch."""
    await _floor_orm(job, turn, sqlalchemy_url(job.database), _CLAIM)


async def floor_orm_psycopg(job: WorkerJob, turn: JobControl) -> None:
    """The same by psycopg."""
    await _floor_orm(job, turn, job.database.replace("postgresql://", "postgresql+psycopg://", 1), _CLAIM)


async def floor_orm_mariadb(job: WorkerJob, turn: JobControl) -> None:
    """The same on MariaDB."""
    url = job.database.replace("mariadb://", "mariadb+asyncmy://", 1)
    await _floor_orm(job, turn, url, mysql_insert(OUTBOX).prefix_with("IGNORE"))


async def _floor_orm(job: WorkerJob, turn: JobControl, url: str, claim: Insert) -> None:
    engine = create_async_engine(url)
    previous: list[str] = []

    async def unit(deliveries: Sequence[Any]) -> list[bytes]:
        nonlocal previous
        keys = [delivery.header.properties.message_id for delivery in deliveries]
        bodies = []
        async with AsyncSession(engine) as session:
            if previous:
                await session.execute(OUTBOX.delete().where(OUTBOX.c.id.in_(previous)))
            for delivery in deliveries:
                order = decode_order(delivery.body)
                session.add(Order(order_id=order.order_id))
                bodies.append(encode(order))
            records = sorted(zip(keys, bodies, strict=True))
            await session.execute(claim, [{"id": key, "messages": body} for key, body in records])
            await session.commit()
        previous = keys
        return bodies

    await _batches(job, turn, unit)
    await engine.dispose()


async def _batches(job: WorkerJob, turn: JobControl, unit: Unit) -> None:
    """Take what waits, let the unit make bodies of it, publish them with pipelined confirms, acknowledge once."""
    receiving, sending = await aiormq.connect(job.broker), await aiormq.connect(job.broker)
    channel, out = await receiving.channel(), await sending.channel(publisher_confirms=True)
    await channel.basic_qos(prefetch_count=PREFETCH)
    waiting: asyncio.Queue[Any] = asyncio.Queue()

    async def arrive(delivery: Any) -> None:
        waiting.put_nowait(delivery)

    async def loop() -> None:
        while True:
            deliveries = [await waiting.get()]
            while len(deliveries) < BATCH and not waiting.empty():
                deliveries.append(waiting.get_nowait())
            bodies = await unit(deliveries)
            await asyncio.gather(*(_publish(out, body, job.target) for body in bodies))
            await channel.basic_ack(deliveries[-1].delivery_tag, multiple=True)

    await turn.begin()
    await channel.basic_consume(job.source, arrive)
    await turn.until_over(loop())
    await receiving.close()
    await sending.close()


def _publish(channel: Any, body: bytes, target: str) -> Any:
    properties = aiormq.spec.Basic.Properties(message_id=str(uuid.uuid4()), delivery_mode=2)
    return channel.basic_publish(body, routing_key=target, properties=properties)
