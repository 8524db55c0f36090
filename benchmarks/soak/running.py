"""Runs one host for a time, samples what it holds, ends it, and checks what it did."""

import asyncio
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from uuid import uuid4

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import URL, make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.crew import ROOT
from benchmarks.soak.limits import Finding, Sample, judge
from benchmarks.soak.plan import AFTER_SECONDS, PRESENCE, SLACK_SECONDS, SoakPlan, limits_of
from benchmarks.soak.sampling import Broker, ProcessUse, broker_of_run, in_database, use_of
from benchmarks.soak.tables import Base, Order
from benchmarks.soak.world import World

__all__ = ["Outcome", "Servers", "run"]

SAMPLE_SECONDS = 5.0
MINUTE_SAMPLES = 12
BROKER_SAMPLES = 6
"""A sample of the broker, which takes a process of its own, comes with each sixth of the others."""
SETTLING_SECONDS = 120.0
STOPPING_SECONDS = 60.0
READY_SECONDS = 60.0
DRIVERS = {"forked": "asyncpg", "threaded": "psycopg", "celery": "asyncpg"}
MODULES = {"forked": "forked", "threaded": "threaded", "celery": "celery_worker"}


class Servers(Struct, frozen=True):
    """Where a run takes place: on a PostgreSQL server it makes a database, and on RabbitMQ a virtual host."""

    postgresql: str
    rabbitmq: str


class Outcome(Struct, kw_only=True):
    """What a run found. It passes if `problems` is empty."""

    host: str
    minutes: float
    orders: int
    rows: int
    events: int
    repeated: int
    """Events on the wire beyond the first of each order and step, with the same id."""
    ended: dict[str, int]
    """How often a child or thread has ended, by how."""
    findings: list[Finding]
    samples: list[Sample]
    problems: list[str]


class Host:
    """The process of a host, and its children as it reports them."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.began = time.monotonic()
        self.slots: dict[int, int] = {}
        """The process of each slot."""
        self.requested: set[str] = set()
        self.ended: Counter[str] = Counter()
        self.killed: deque[float] = deque()
        self.is_ready = asyncio.Event()
        self.has_served = asyncio.Event()

    async def listen(self) -> None:
        """Read its reports until its end."""
        assert self.process.stdout is not None  # noqa: S101 - it was started with a pipe
        async for line in self.process.stdout:
            what, *words = line.decode().split() or [""]  # Celery prints a banner
            if what == "child":
                self.slots[int(words[0])] = int(words[1])
                self.is_ready.set()
            elif what == "ended":
                self._note_end(int(words[2]))
            elif what == "order":
                self.requested.add(words[0])
            elif what == "ready":
                self.is_ready.set()
            elif what == "served":
                self.has_served.set()
        self.is_ready.set()
        self.has_served.set()

    def _note_end(self, status: int) -> None:
        name = {0: "recycled", -signal.SIGKILL: "killed"}.get(status, f"failed with {status}")
        self.ended[name] += 1
        if status == -signal.SIGKILL:
            self.killed.append(time.monotonic())

    def killed_within(self, seconds: float) -> int:
        """Count the children that were killed within the last seconds."""
        since = time.monotonic() - seconds
        return sum(at >= since for at in self.killed)

    async def end(self) -> int | None:
        """Stop it, and return its exit status; None for one that had to be killed."""
        for each in (signal.SIGTERM, signal.SIGKILL):
            if self.process.returncode is None:
                self.process.send_signal(each)
                try:
                    async with asyncio.timeout(STOPPING_SECONDS):
                        await self.process.wait()
                except TimeoutError:
                    continue
            return self.process.returncode if each == signal.SIGTERM else None
        return None


async def run(plan: SoakPlan, servers: Servers, say: Callable[[str], None]) -> Outcome:
    """Run a host as planned. `say` gets a line each minute."""
    name = f"soak-{uuid4().hex[:8]}"
    url = make_url(servers.postgresql).set(drivername=f"postgresql+{DRIVERS[plan.host]}")
    async with _database(url, name.replace("-", "_")) as engine, broker_of_run(servers.rabbitmq, name) as broker:
        store = url.set(database=engine.url.database).render_as_string(hide_password=False)
        plan = replace(plan, name=name, store=store, broker=broker.url)
        await _create_tables(plan)
        world = World(plan)
        await world.open()
        try:
            return await Soak(plan, world, engine, broker).run(say)
        finally:
            await world.close()


class Soak:
    """One run of a host, in a database and a virtual host that are there."""

    def __init__(self, plan: SoakPlan, world: World, engine: AsyncEngine, broker: Broker) -> None:
        self._plan = plan
        self._world = world
        self._engine = engine
        self._broker = broker
        self._samples: list[Sample] = []
        self._problems: list[str] = []
        self._host: Host

    async def run(self, say: Callable[[str], None]) -> Outcome:
        """Run the host until the end of its time, stop it, and check what it did."""
        command = (sys.executable, "-m", f"benchmarks.soak.{MODULES[self._plan.host]}")
        environment = self._plan.environment()
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE)
        self._host = host = Host(process)
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(host.listen())
            try:
                async with asyncio.timeout(READY_SECONDS):
                    await host.is_ready.wait()
                await self._work(tasks, say)
                await self._settle()
            finally:
                status = await host.end()
                await listening
        if status != 0:
            self._problems.append(f"the host ended with {status}")
        self._problems += [
            f"{count} children or threads {how}" for how, count in host.ended.items() if how.startswith("failed")
        ]
        return await self._outcome()

    async def _work(self, tasks: asyncio.TaskGroup, say: Callable[[str], None]) -> None:
        """Give the host work for its time. The threaded host has clients of its own."""
        if self._plan.host == "threaded":
            await self._sample(say)
            if self._host.process.returncode is None:
                self._host.process.send_signal(signal.SIGTERM)
            await self._host.has_served.wait()
            return
        stop = asyncio.Event()
        feeding = tasks.create_task(self._world.feed(stop))
        try:
            await self._sample(say)
        finally:
            stop.set()
            await feeding

    async def _sample(self, say: Callable[[str], None]) -> None:
        """Take samples until the end of the run's minutes, or of the host."""
        plan, host, count = self._plan, self._host, 0
        while (at := time.monotonic() - host.began) < plan.minutes * 60 and host.process.returncode is None:
            numbers = await in_database(self._engine)
            if not count % BROKER_SAMPLES:
                numbers |= await self._broker.numbers(own=1)
            numbers |= _of_processes(plan, host)
            lately = host.killed_within(plan.row_kept + AFTER_SECONDS / 2 + SLACK_SECONDS)
            living = {"forked": plan.children, "threaded": 1, "celery": plan.children + 1}[plan.host]
            numbers[PRESENCE] = max(0.0, numbers["rows of processes"] - living - lately)
            self._samples.append(Sample(round(at, 1), numbers))
            if not count % MINUTE_SAMPLES:
                say(f"{plan.host} {at / 60:5.1f} min: " + ", ".join(f"{name} {value:g}" for name, value in numbers.items()))
            count += 1
            await asyncio.sleep(SAMPLE_SECONDS - (time.monotonic() - host.began) % SAMPLE_SECONDS)

    async def _settle(self) -> None:
        """Wait until every order has its rows and events, no message waits, and no record is left."""
        until = time.monotonic() + SETTLING_SECONDS
        while time.monotonic() < until and self._host.process.returncode is None:
            left = (await in_database(self._engine))["rows of records"]
            if not left and set(self._wanted()) <= self._world.events.keys() and not await self._world.waiting():
                return
            await asyncio.sleep(1.0)

    def _wanted(self) -> Iterator[tuple[str, str]]:
        """Return what had to be done: each order, and its step."""
        requested = self._host.requested
        for ids in (*self._world.sent.values(), requested):
            for each in ids:
                yield each, "placed"
                if self._plan.host == "celery":
                    yield each, "confirmed"
        if self._plan.host == "threaded":
            for each in requested:
                yield each, "confirmed"

    async def _outcome(self) -> Outcome:
        plan, world, wanted = self._plan, self._world, set(self._wanted())
        async with self._engine.connect() as connection:
            found = await connection.execute(select(Order.order_id, Order.step))
            rows = Counter((order_id, step) for order_id, step in found)
        after = await in_database(self._engine)
        checks = {
            "orders without a row": len(wanted - rows.keys()),
            "orders with more than one row": sum(count > 1 for count in rows.values()),
            "rows of no order": len(rows.keys() - wanted),
            "orders without an event": len(wanted - world.events.keys()),
            "orders with events of different ids": sum(len(ids) > 1 for ids in world.events.values()),
            "events of no order": len(world.events.keys() - wanted),
            "records after the end": after["rows of records"],
            "dead letters": after["rows of dead letters"],
            "connections of onceonly after the end": after["connections of onceonly"],
            "connections of the application after the end": after["connections of the application"],
        }
        self._problems += [f"{count:g} {what}" for what, count in checks.items() if count]
        if not wanted:
            self._problems.append("nothing was done")
        limits = [each for each in limits_of(plan) if self._broker.vhost or "RabbitMQ" not in each.name]
        findings = judge(self._samples, limits, warm_up=plan.retention * 13 / 12 + SLACK_SECONDS)
        return Outcome(
            host=plan.host,
            minutes=round((time.monotonic() - self._host.began) / 60, 1),
            orders=len(wanted),
            rows=rows.total(),
            events=world.received,
            repeated=world.received - sum(map(len, world.events.values())),
            ended=dict(self._host.ended),
            findings=findings,
            samples=self._samples,
            problems=[*self._problems, *(problem for finding in findings for problem in finding.problems)],
        )


def _of_processes(plan: SoakPlan, host: Host) -> dict[str, float]:
    main = use_of(host.process.pid)
    if main is None:
        return {}
    if plan.host == "threaded":
        return {
            "descriptors of the process": main.descriptors,
            "MiB of the process": main.resident,
            "threads of the process": main.threads,
        }
    found = {"descriptors of the parent": float(main.descriptors), "MiB of the parent": main.resident}
    children = {slot: use for slot, pid in host.slots.items() if (use := use_of(pid)) is not None}
    uses: Sequence[ProcessUse] = tuple(children.values())
    if 0 in children and plan.host == "forked":  # the child 0 of Celery ends as all others
        found["MiB of the oldest child"] = children[0].resident
        found["descriptors of the oldest child"] = children[0].descriptors
    if uses:
        found["MiB of the largest child"] = max(each.resident for each in uses)
        found["descriptors of a child"] = max(each.descriptors for each in uses)
        found["threads of a child"] = max(each.threads for each in uses)
        found["MiB of the host in sum"] = main.proportional + sum(each.proportional for each in uses)
    return found


@asynccontextmanager
async def _database(server: URL, name: str) -> AsyncIterator[AsyncEngine]:
    """Make a database with the application's table, and drop it at the end."""
    url = server.set(drivername="postgresql+asyncpg")
    operator = create_async_engine(url, isolation_level="AUTOCOMMIT")
    engine = create_async_engine(url.set(database=name), pool_size=1, max_overflow=0)
    try:
        async with operator.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield engine
    finally:
        await engine.dispose()
        async with operator.connect() as connection:
            await connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        await operator.dispose()


async def _create_tables(plan: SoakPlan) -> None:
    """Create the endpoint's tables, as a deployment does."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "onceonly", "schema", "create", "benchmarks.soak.shop:shop"),
        cwd=ROOT,
        env=plan.environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"schema create failed: {output.decode()}")
