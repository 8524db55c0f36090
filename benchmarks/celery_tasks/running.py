"""Fills a queue with tasks, runs a worker of Celery on it, and measures until each task and its follow-up are done."""

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import aio_pika
from celery import Celery
from msgspec import Struct
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.counting import AMQPEars, PostgreSQLEars
from benchmarks.crew import ROOT
from benchmarks.servers import opened_servers
from benchmarks.wire import proxied

__all__ = ["KINDS", "Costs", "Place", "Plan", "Round", "count", "measure"]

PROGRAM = "benchmarks.celery_tasks.program"
KINDS = ("plain", "confirmed", "once")
GLANCE_SECONDS = 0.01
WARM_UP = 0.1
"""The part of the tasks that is done before the measurement begins."""
PATIENCE_SECONDS = 300.0


class Plan(Struct, frozen=True, kw_only=True):
    """What to run, and where."""

    kind: str
    postgresql: str
    rabbitmq: str
    tasks: int = 3000
    children: int = 2
    profile: str = ""


class Round(Struct, frozen=True, kw_only=True):
    """Tasks a second, and rows and follow-ups at the end."""

    rate: float
    rows: int
    follow_ups: int


class Costs(Struct, frozen=True, kw_only=True):
    """For one task: SQL statements, round trips to the database, commits, and messages that were published."""

    statements: float
    trips: float
    commits: float
    publishes: float


class Place:
    """A database and queues of one run."""

    program = PROGRAM

    def __init__(self, plan: Plan, engine: AsyncEngine, channel: aio_pika.abc.AbstractChannel) -> None:
        self.plan, self.engine, self.channel = plan, engine, channel
        self.prefix = f"bench-{uuid4().hex[:8]}-"
        self.store = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def environment(self, **own: str) -> dict[str, str]:
        """Return the environment of the program."""
        return {
            **os.environ,
            "CELERY_BENCH_STORE": self.store,
            "CELERY_BENCH_BROKER": self.plan.rabbitmq,
            "CELERY_BENCH_PREFIX": self.prefix,
            "CELERY_BENCH_KIND": self.plan.kind,
            "CELERY_BENCH_PROFILE": self.plan.profile,
            **own,
        }

    async def prepare(self) -> None:
        """Make tables and queues, and fill the first one."""
        async with self.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (number serial PRIMARY KEY, order_id text NOT NULL)"))
        await self.create()
        await self.fill()

    async def create(self) -> None:
        """Create the tables of onceonly, if the program has an endpoint."""
        if self.plan.kind == "once":
            command = (sys.executable, "-m", "onceonly", "schema", "create", f"{self.program}:shop")
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env=self.environment(), stdout=PIPE, stderr=STDOUT
            )
            output, _ = await process.communicate()
            if process.returncode:
                raise RuntimeError(f"schema create failed: {output.decode()}")

    async def fill(self) -> None:
        """Declare the queues, and send the tasks."""
        for name in ("in", "out"):
            await self.declare(name)
        await asyncio.to_thread(self._fill)

    def _fill(self) -> None:
        producer = Celery("bench", broker=self.plan.rabbitmq, set_as_current=False)
        producer.conf.task_default_queue = f"{self.prefix}in"
        with producer.producer_or_acquire() as open_producer:
            for number in range(self.plan.tasks):
                producer.send_task("place", (f"order-{number}",), producer=open_producer)
        producer.close()

    async def declare(self, name: str) -> None:
        """Declare a queue as Celery does."""
        full = f"{self.prefix}{name}"
        exchange = await self.channel.declare_exchange(full, durable=True)
        queue = await self.channel.declare_queue(full, durable=True)
        await queue.bind(exchange, full)

    async def follow_ups(self) -> int:
        """Count the tasks that were sent."""
        declared = await self.channel.declare_queue(f"{self.prefix}out", durable=True, passive=True)
        return declared.declaration_result.message_count or 0

    async def rows(self) -> int:
        """Count the rows."""
        async with self.engine.connect() as connection:
            return int((await connection.execute(text("SELECT count(*) FROM orders"))).scalar_one())

    async def commits(self) -> int:
        """Return PostgreSQL's count of commits in this database."""
        async with self.engine.connect() as connection:
            asked = text("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
            return int((await connection.execute(asked)).scalar_one())

    async def until(self, number: int) -> float:
        """Wait for so many tasks that were sent; returns when they were there."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.follow_ups() < number:  # noqa: ASYNC110 - nothing reports a message in a queue
                await asyncio.sleep(GLANCE_SECONDS)
        return time.monotonic()

    @property
    def command(self) -> tuple[str, ...]:
        """The command that runs a worker."""
        return (
            *(sys.executable, "-m", "celery", f"--app={self.program}", "worker", f"--concurrency={self.plan.children}"),
            *(f"--queues={self.prefix}in", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            "--loglevel=ERROR",
        )

    @asynccontextmanager
    async def worker(self, **own: str) -> AsyncIterator[None]:
        """Run a worker for a block."""
        process = await asyncio.create_subprocess_exec(
            *self.command,
            cwd=ROOT,
            env=self.environment(**own),
            stdout=DEVNULL,
            stderr=DEVNULL,
        )
        try:
            yield
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()

    async def remove(self) -> None:
        """Remove the queues."""
        for name in ("in", "out"):
            await self.channel.queue_delete(f"{self.prefix}{name}")
            await self.channel.exchange_delete(f"{self.prefix}{name}")


@asynccontextmanager
async def opened(plan: Plan, kind: type[Place] = Place) -> AsyncIterator[Place]:
    """Make a place, and remove it at the end."""
    async with opened_servers(plan.postgresql, plan.rabbitmq) as (engine, channel):
        place = kind(plan, engine, channel)
        try:
            await place.prepare()
            yield place
        finally:
            await place.remove()


async def measure(plan: Plan, kind: type[Place] = Place) -> Round:
    """Measure one round."""
    async with opened(plan, kind) as place:
        first = int(plan.tasks * WARM_UP)
        async with place.worker():
            begin = await place.until(first)
            began_with = await place.follow_ups()
            end = await place.until(plan.tasks)
        return Round(
            rate=(plan.tasks - began_with) / (end - begin), rows=await place.rows(), follow_ups=await place.follow_ups()
        )


async def count(plan: Plan, kind: type[Place] = Place) -> Costs:
    """Count what tasks cost, through proxies that listen; the speed of this run means nothing."""
    counted: Counter[str] = Counter()
    async with opened(plan, kind) as place, AsyncExitStack() as stack:
        store = await stack.enter_async_context(proxied(place.store, listen=lambda: PostgreSQLEars(counted)))
        broker = await stack.enter_async_context(proxied(plan.rabbitmq, listen=lambda: AMQPEars(counted)))
        async with place.worker(CELERY_BENCH_STORE=store, CELERY_BENCH_BROKER=broker):
            first = int(plan.tasks * WARM_UP)
            await place.until(first)
            began_with = await place.follow_ups()
            counted.clear()
            before = await place.commits()
            await place.until(plan.tasks)
            after = await place.commits()
            tasks = plan.tasks - began_with
            return Costs(
                statements=counted["statements"] / tasks,
                trips=counted["trips"] / tasks,
                commits=(after - before) / tasks,
                publishes=counted["publishes"] / tasks,
            )
