"""Runs the program for a round, in a database and behind a prefix of its own, and counts what it costs on the wire."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import aio_pika
from msgspec import Struct
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from benchmarks.counting import AMQPEars, PostgreSQLEars
from benchmarks.crew import ROOT, RunFailed
from benchmarks.django_views.program import WARM_UP
from benchmarks.servers import opened_servers
from benchmarks.wire import proxied

__all__ = ["KINDS", "Costs", "Plan", "Round", "count", "measure"]

PACKAGE = "benchmarks.django_views"
KINDS = ("plain", "unconfirmed", "once", "once_relay")
_OF_SENDER = (
    *("out", "onceonly:event:OrderPlaced", "onceonly:census", "onceonly:unsubscribed:bench"),
    *(f"onceonly:delay:{name}" for name in ("due", "unheard", "subscribed", "unsubscribed")),
)
"""Queues and exchanges of a run."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to run, and where."""

    kind: str
    postgresql: str
    rabbitmq: str
    requests: int = 3000
    threads: int = 4


class Round(Struct, frozen=True, kw_only=True):
    """Requests a second, events a second until the last one was on the queue, and milliseconds of CPU for a request."""

    rate: float
    sent: float
    cpu: float


class Costs(Struct, frozen=True, kw_only=True):
    """For one request: SQL statements, round trips to the database, and messages that were published."""

    statements: float
    trips: float
    publishes: float


class Place:
    """A database and a prefix of one run."""

    def __init__(self, plan: Plan, engine: AsyncEngine, channel: aio_pika.abc.AbstractChannel) -> None:
        self.plan, self.engine, self.channel = plan, engine, channel
        self.prefix = f"bench-{uuid4().hex[:8]}-"
        self.store = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)

    def environment(self, **own: str) -> dict[str, str]:
        """Return the environment of the project."""
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": f"{PACKAGE}.settings",
            "DJANGO_BENCH_KIND": self.plan.kind,
            "DJANGO_BENCH_STORE": self.store,
            "DJANGO_BENCH_BROKER": self.plan.rabbitmq,
            "DJANGO_BENCH_PREFIX": self.prefix,
            **own,
        }

    async def prepare(self) -> None:
        """Make tables, the exchange and the queue."""
        async with self.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id bigserial PRIMARY KEY, order_id varchar(80) NOT NULL)"))
        command = (sys.executable, "-m", "django", "migrate", "--verbosity=0")
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=self.environment(), stdout=PIPE, stderr=STDOUT)
        output, _ = await process.communicate()
        if process.returncode:
            raise RunFailed(f"migrate failed: {output.decode()}")
        exchange = await self.channel.declare_exchange(f"{self.prefix}onceonly:event:OrderPlaced", "fanout", durable=True)
        queue = await self.channel.declare_queue(f"{self.prefix}out", durable=True)
        await queue.bind(exchange)

    async def check(self) -> None:
        """Count rows and events. Raises RunFailed."""
        async with self.engine.connect() as connection:
            rows = (await connection.execute(text("SELECT count(*) FROM orders"))).scalar_one()
        declared = await self.channel.declare_queue(f"{self.prefix}out", durable=True, passive=True)
        events, wanted = declared.declaration_result.message_count, self.plan.requests
        if (rows, events) != (wanted, wanted):
            raise RunFailed(f"{self.plan.kind}: {rows} rows and {events} events for {wanted} requests")

    @asynccontextmanager
    async def process(self, *command: str, **own: str) -> AsyncIterator[Process]:
        """Run a process for a block."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *command), cwd=ROOT, env=self.environment(**own), stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await process.wait()

    async def remove(self) -> None:
        """Remove what was declared."""
        for name in _OF_SENDER:
            await self.channel.queue_delete(f"{self.prefix}{name}")
            await self.channel.exchange_delete(f"{self.prefix}{name}")


@asynccontextmanager
async def opened(plan: Plan) -> AsyncIterator[Place]:
    """Make a place, and remove it at the end."""
    async with opened_servers(plan.postgresql, plan.rabbitmq) as (engine, channel):
        place = Place(plan, engine, channel)
        try:
            await place.prepare()
            yield place
        finally:
            await place.remove()


@asynccontextmanager
async def warm(place: Place, **own: str) -> AsyncIterator[Process]:
    """Run the program, and the relay if it needs one, until it is warm."""
    plan = place.plan
    async with AsyncExitStack() as stack:
        if plan.kind == "once_relay":
            await stack.enter_async_context(
                place.process("onceonly", "relay", "onceonly.integrations.django.endpoints:bench", "--log-level=error")
            )
        program = (f"{PACKAGE}.program", str(plan.requests), str(plan.threads))
        process = await stack.enter_async_context(place.process(*program, **own))
        if (await _line(process)) != "warm":
            raise RunFailed(f"{plan.kind}: the program does not start")
        yield process


async def finish(process: Process) -> list[float]:
    """Let the program do the rest; returns what it has measured."""
    if process.stdin is not None:
        process.stdin.write(b"\n")
    return [float(each) for each in (await _line(process)).split()]


async def _line(process: Process) -> str:
    return (await process.stdout.readline()).decode().strip() if process.stdout is not None else ""


async def measure(plan: Plan) -> Round:
    """Measure one round. Raises RunFailed when a row or an event is missing or too many."""
    async with opened(plan) as place, warm(place) as process:
        if not (found := await finish(process)):
            raise RunFailed(f"{plan.kind}: the program has failed")
        await place.check()
    answered, sent, cpu = found
    measured = plan.requests - int(plan.requests * WARM_UP)
    return Round(rate=measured / answered, sent=measured / sent, cpu=1000 * cpu / measured)


async def count(plan: Plan) -> Costs:
    """Count what requests cost, through proxies that listen; the speed of this run means nothing."""
    counted: Counter[str] = Counter()
    async with opened(plan) as place, AsyncExitStack() as stack:
        store = await stack.enter_async_context(proxied(place.store, listen=lambda: PostgreSQLEars(counted)))
        broker = await stack.enter_async_context(proxied(plan.rabbitmq, listen=lambda: AMQPEars(counted)))
        async with warm(place, DJANGO_BENCH_STORE=store, DJANGO_BENCH_BROKER=broker) as process:
            counted.clear()
            await finish(process)
            await place.check()
    requests = plan.requests - int(plan.requests * WARM_UP)
    return Costs(
        statements=counted["statements"] / requests,
        trips=counted["trips"] / requests,
        publishes=counted["publishes"] / requests,
    )
