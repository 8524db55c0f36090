"""Orders with arq: each order is a row, and a job to announce it. The row is committed, then the job is enqueued."""

from typing import Any

from arq import func, run_worker
from arq.connections import RedisSettings
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.hosts.program import BROKER, ORDERS, PLACED, STORE, Order, report

sessions = async_sessionmaker(create_async_engine(STORE))


async def place_order(ctx: dict[str, Any], order_id: str) -> None:
    """Write the row, and have it announced."""
    async with sessions.begin() as session:
        session.add(Order(order_id=order_id))
    report(order_id)
    await ctx["redis"].enqueue_job("announce", order_id, _queue_name=PLACED)


class WorkerSettings:
    """The settings of `arq`. A job of a process that died is run again 10 seconds after its `job_timeout`."""

    functions = (func(place_order, keep_result=0),)
    redis_settings = RedisSettings.from_dsn(BROKER)
    queue_name = ORDERS
    job_timeout = 2
    max_tries = 20
    poll_delay = 0.1


def main() -> None:
    """Run a worker."""
    run_worker(WorkerSettings)
