"""Orders with arq, exactly once: the row and the job are in one commit, with the job's id as key."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from arq import func, run_worker
from arq.connections import ArqRedis, RedisSettings, create_pool
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report
from onceonly import Context, Endpoint

shop = Endpoint("shop", store=STORE, transport=STORE)
sessions = async_sessionmaker(create_async_engine(STORE))


@dataclass
class Job:
    """A job to enqueue."""

    function: str
    args: list[Any]
    queue: str


@shop.provide
async def connect() -> AsyncIterator[ArqRedis]:
    """Connect to arq's Redis."""
    redis = await create_pool(RedisSettings.from_dsn(BROKER))
    yield redis
    await redis.aclose(close_connection_pool=True)


@shop.handler
async def enqueue(job: Job, context: Context, redis: ArqRedis) -> None:
    """Enqueue a job, whose id is that of the message. arq drops a copy."""
    await redis.enqueue_job(job.function, *job.args, _job_id=context.message.id, _queue_name=job.queue)


async def place_order(ctx: dict[str, Any], order_id: str) -> None:
    """Write the row, and have it announced."""
    async with sessions.begin() as session:
        entry = await shop.enlist(session, key=ctx["job_id"])
        if not entry.is_known:
            session.add(Order(order_id=order_id))
            entry.send(Job("announce", [order_id], PLACED), to="shop")
    report(order_id)


async def start(ctx: dict[str, Any]) -> None:
    """Run the endpoint next to arq's worker."""
    ctx["stack"] = AsyncExitStack()
    await ctx["stack"].enter_async_context(shop.running())


async def stop(ctx: dict[str, Any]) -> None:
    """Stop it."""
    await ctx["stack"].aclose()


class WorkerSettings:
    """The settings of `arq`. A job of a process that died is run again 10 seconds after its `job_timeout`."""

    functions = (func(place_order, keep_result=0),)
    redis_settings = RedisSettings.from_dsn(BROKER)
    queue_name = ORDERS
    job_timeout = 2
    max_tries = 20
    poll_delay = 0.1
    on_startup = start
    on_shutdown = stop


def main() -> None:
    """Run a worker."""
    run_worker(WorkerSettings)
