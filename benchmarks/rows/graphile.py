"""graphile-worker, a job queue in PostgreSQL for Node.js. Its program takes the place of the worker process."""

import asyncio

import asyncpg

from benchmarks.job import JobControl, WorkerJob
from benchmarks.programs import become_graphile_worker, make_graphile_tables

_PLACED = (
    "from graphile_worker._private_jobs j join graphile_worker._private_tasks t on t.id = j.task_id where identifier = 'placed'"
)
ARRIVED = f"select count(*) {_PLACED}"
ARRIVED_IDS = f"select payload->>'order_id' {_PLACED}"
ADD = """select count(graphile_worker.add_job('place', json_build_object('order_id', order_id)))
from unnest($1::text[]) order_id"""


async def prepare(database: str) -> None:
    """Make its tables."""
    await asyncio.to_thread(make_graphile_tables, database)


async def fill(database: str, order_ids: list[str]) -> None:
    """Add a job for each order."""
    connection = await asyncpg.connect(database)
    try:
        await connection.fetchval(ADD, order_ids)
    finally:
        await connection.close()


async def on_its_queue(job: WorkerJob, _: JobControl) -> None:
    """Its worker runs a job that writes the row and adds the next one, in one transaction."""
    become_graphile_worker(job.database, str(job.concurrency))
