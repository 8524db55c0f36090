"""Starts the processes of a program, kills them with SIGKILL while they work, starts them again, and counts with SQL.

Clients post orders and repeat each request until it is answered, some of them once more. Others send the first task
themselves, each twice under the same id, as a producer does that has lost a confirmation.
"""

import asyncio
import os
import random
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
from celery import Celery
from kombu import Connection
from redis import Redis
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

import examples.hosts.celery_flask.lines  # noqa: F401 - its table
from examples.hosts.harness import LONGEST_MOMENT, ROOT, SETTLING_SECONDS, created_tables, opened_database, with_copies
from examples.hosts.http_clients import CLIENTS, CONFLICT, PAUSE_SECONDS, SERVER_ERROR, socket_of

__all__ = ["PROGRAMS", "Counts", "Places", "Program", "run"]

PACKAGE = "examples.hosts.celery_flask"
ROWS, FOLLOW_UPS = ("ordered", "charged"), ("packed", "shipped", "booked")
WORKERS, CHILDREN = 2, 2
QUIET_SECONDS = 6.0
"""Seconds without a new row, and without a waiting task, after which nothing more is expected of a control run."""
STARTING_SECONDS = 60.0
GLANCE_SECONDS = 0.1
KILLS = ("web", "child", "worker", "child", "parent", "web", "child", "worker")
"""What is killed, in turns: a process of the web server, a child of a worker, a worker with its children, or without them."""


@dataclass(frozen=True)
class Program:
    """One way to write the application: its module, its `HOSTS_CELERY`, and commands that prepare it and run with it."""

    name: str
    module: str
    kind: str = ""
    prepare: Sequence[str] = ()
    beside: Sequence[str] = ()
    is_once: bool = False
    needs: str = ""


_DJANGO = (sys.executable, "-m", f"{PACKAGE}.outbox")
PROGRAMS = {
    each.name: each
    for each in (
        Program("defaults", "control", "defaults"),
        Program("acks_late", "control", "acks_late"),
        Program("deduplicate", "control", "deduplicate"),
        Program("celery_once", "control", "celery_once", needs="celery_once"),
        Program(
            "outbox",
            "outbox",
            prepare=(*_DJANGO, "migrate"),
            beside=(*_DJANGO, "celery_outbox_relay", "--idle-time=0.1"),
            needs="django_celery_outbox",
        ),
        Program(
            "exactly_once",
            "exactly_once",
            beside=(sys.executable, "-m", "onceonly", "run", f"{PACKAGE}.books:books"),
            is_once=True,
        ),
    )
}


class Places(NamedTuple):
    """A PostgreSQL server, on which the run makes a database, the broker, and Redis for results."""

    postgresql: str
    broker: str
    results: str

    @classmethod
    def local(cls, broker: str) -> "Places":
        """Return the servers of this machine, or those that the environment names."""
        redis = os.environ.get("ONCEONLY_REDIS", "redis://127.0.0.1:6379")
        rabbitmq = os.environ.get("ONCEONLY_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/")
        postgresql = os.environ.get("ONCEONLY_POSTGRESQL", "postgresql://root@127.0.0.1:5432/postgres")
        return cls(postgresql, {"rabbitmq": rabbitmq, "redis": redis}[broker], redis)


class Counts(NamedTuple):
    """What a run left. A row is a step of an order: `rows` are of the view and its task, `follow_ups` of what they sent.

    Doubled ones are counted apart: of orders that were sent once, and of those whose task was sent twice under one id.
    """

    program: str
    broker: str
    kills: int
    orders: int
    rows_lost: int
    rows_doubled: int
    rows_doubled_of_copies: int
    follow_ups_lost: int
    follow_ups_doubled: int
    follow_ups_doubled_of_copies: int
    seconds: float

    @property
    def lost(self) -> int:
        """All rows that are not there."""
        return self.rows_lost + self.follow_ups_lost

    @property
    def doubled(self) -> int:
        """All rows that are there more than once."""
        own = self.rows_doubled + self.follow_ups_doubled
        return own + self.rows_doubled_of_copies + self.follow_ups_doubled_of_copies

    @property
    def is_exact(self) -> bool:
        """Return whether each step of each order was done once."""
        return not self.lost and not self.doubled


class Report(NamedTuple):
    """A process that has something in work, and the program that has started it."""

    pid: int
    what: str
    of: "Process"


class Process:
    """A program with its children, in a process group of its own. It may be killed and started again."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], reports: "asyncio.Queue[Report]") -> None:
        self._command, self._environment, self._reports = command, environment, reports
        self._process: Any = None
        self._reading: set[asyncio.Task[None]] = set()
        self._groups: list[int] = []

    async def start(self) -> None:
        """Start it."""
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=_log(),
            cwd=ROOT,
            env=self._environment,
            start_new_session=True,
        )
        self._groups.append(process.pid)
        reading = asyncio.create_task(self._read(process.stdout))
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)

    @property
    def has_ended(self) -> bool:
        """Return whether it has ended before it was stopped."""
        return self._process is not None and self._process.returncode is not None

    async def kill(self, *, children: bool) -> None:
        """Kill it, with its children or without them."""
        with suppress(ProcessLookupError):
            (os.killpg if children else os.kill)(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> None:
        """End it, and what is left of its groups."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(20):
                    await self._process.wait()
        for each in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(each, signal.SIGKILL)
        await asyncio.gather(*self._reading)

    async def _read(self, output: asyncio.StreamReader) -> None:
        async for line in output:
            pid, _, rest = line.decode(errors="replace").partition(" ")
            what, _, order_id = rest.strip().partition(" ")
            if pid.isdigit() and order_id:
                self._reports.put_nowait(Report(int(pid), what, self))


def _log() -> Any:
    """Return where programs write their logs: nowhere, or to the file that HOSTS_LOG names."""
    return Path(path).open("ab") if (path := os.environ.get("HOSTS_LOG")) else DEVNULL


class Clients:
    """Those who order. A client repeats its request until it is answered. Others send tasks, and send each again later."""

    def __init__(self, program: Program, places: Places, prefix: str) -> None:
        self._client = httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=socket_of(prefix)), timeout=10)
        self._free = asyncio.Semaphore(CLIENTS)
        self._asking: set[asyncio.Task[None]] = set()
        self._prefix, self._task = prefix, f"{PACKAGE}.{program.module}.charge"
        self._producer = Celery("clients", broker=places.broker, set_as_current=False)
        self._producer.conf.update(task_default_queue=f"{prefix}tasks", broker_transport_options=_transport(places, prefix))

    async def ready(self) -> None:
        """Wait until the web server answers."""
        async with asyncio.timeout(STARTING_SECONDS):
            while True:
                with suppress(httpx.TransportError):
                    await self._client.get("http://host/")
                    return
                await asyncio.sleep(GLANCE_SECONDS)

    def post(self, order_ids: Sequence[str]) -> None:
        """Begin a request for each id."""
        for each in order_ids:
            asking = asyncio.create_task(self._ask(each))
            self._asking.add(asking)
            asking.add_done_callback(self._asking.discard)

    async def send(self, order_ids: Sequence[str]) -> None:
        """Send a task for each id. Its id is the same each time."""
        for each in order_ids:
            await asyncio.to_thread(self._producer.send_task, self._task, (each,), task_id=f"{self._prefix}{each}")

    async def answered(self) -> None:
        """Wait until each request is answered."""
        await asyncio.gather(*self._asking)

    async def close(self) -> None:
        """End what is left."""
        for each in list(self._asking):
            each.cancel()
        await self._client.aclose()
        self._producer.close()

    async def _ask(self, order_id: str) -> None:
        async with self._free:
            while True:
                with suppress(httpx.TransportError):
                    headers = {"Idempotency-Key": order_id}
                    answer = await self._client.post("http://host/orders", json={"order_id": order_id}, headers=headers)
                    if answer.status_code < SERVER_ERROR and answer.status_code != CONFLICT:
                        return
                await asyncio.sleep(PAUSE_SECONDS)


class Killer:
    """Kills what has just reported that it works, and starts it again."""

    def __init__(self, reports: "asyncio.Queue[Report]", seed: int) -> None:
        self._reports = reports
        self._rng = random.Random(seed)  # noqa: S311 - when a process dies is no secret
        self.killed: Counter[str] = Counter()

    def begin(self) -> None:
        """Forget what was reported: a process that has done its work is not worth a kill."""
        while not self._reports.empty():
            self._reports.get_nowait()

    async def kill(self, kind: str, most: int) -> None:
        """Wait for one of the next `most` reports of such a process, and kill it a moment later."""
        number = self._rng.randint(1, max(1, most))
        report: Report | None = None
        async with asyncio.timeout(STARTING_SECONDS):
            while number:
                report = await self._reports.get()
                number -= (report.what == "web") == (kind == "web")
        assert report is not None  # noqa: S101 - the number is one at least
        await asyncio.sleep(self._rng.uniform(0, LONGEST_MOMENT))
        self.killed[kind] += 1
        if kind in {"web", "child"}:
            with suppress(ProcessLookupError):
                os.kill(report.pid, signal.SIGKILL)
        else:
            await report.of.kill(children=kind == "worker")
            await report.of.start()


async def run(program: Program, places: Places, *, orders: int = 240, kills: int = 24, seed: int = 1) -> Counts:
    """Run a program with N kills. Two thirds of the orders are posted, the others are tasks that are sent twice."""
    since, prefix = time.monotonic(), f"hosts-{uuid4().hex[:8]}-"
    posted = [f"web-{number}" for number in range(orders - orders // 3)]
    sent = [f"wire-{number}" for number in range(orders // 3)]
    wanted = {*_wanted(posted, (*ROWS, *FOLLOW_UPS)), *_wanted(sent, (*ROWS[1:], *FOLLOW_UPS))}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(opened_database(places.postgresql))
        stack.callback(partial(_clean, places, prefix))
        environment = {
            **os.environ,
            "HOSTS_STORE": engine.url.render_as_string(hide_password=False),
            "HOSTS_BROKER": places.broker,
            "HOSTS_RESULTS": places.results,
            "HOSTS_PREFIX": prefix,
            "HOSTS_CELERY": program.kind,
            "PYTHONUNBUFFERED": "1",
        }
        await _prepare(program, environment)
        if program.is_once:
            await _command((sys.executable, "-m", "onceonly", "topology", "create", f"{PACKAGE}.books:books"), environment)
        reports: asyncio.Queue[Report] = asyncio.Queue()
        killer = Killer(reports, seed)
        clients = Clients(program, places, prefix)
        stack.push_async_callback(clients.close)
        async with _processes(program, environment, reports):
            await clients.ready()
            portions = zip(_portions(with_copies(posted), kills + 1), _portions(_sent_twice(sent), kills + 1), strict=True)
            known: set[str] = set()
            for number, (new, tasks) in enumerate(portions):
                killer.begin()
                clients.post(new)
                await clients.send(tasks)
                to_web, to_workers = set(new) - known, {*new, *tasks} - known
                known |= to_workers
                if number < kills:
                    kind = KILLS[number % len(KILLS)] if to_web else "child"
                    await killer.kill(kind, len(to_web if kind == "web" else to_workers))
            await clients.answered()
            await _settle(engine, places, prefix, wanted, is_once=program.is_once)
        found = await _lines(engine)
    return _counts(program, places, wanted, found, killer.killed.total(), orders, time.monotonic() - since)


def _wanted(order_ids: Sequence[str], steps: Sequence[str]) -> Iterator[tuple[str, str]]:
    return ((step, each) for each in order_ids for step in steps)


def _sent_twice(ids: Sequence[str]) -> list[str]:
    """Return each id twice: a few at once, others later."""
    sent = list(ids)
    for place, each in enumerate(ids):
        sent.insert(min(len(sent), sent.index(each) + 1 + 5 * (place % 3)), each)
    return sent


def _portions(sent: Sequence[str], count: int) -> list[Sequence[str]]:
    return [sent[len(sent) * number // count : len(sent) * (number + 1) // count] for number in range(count)]


@asynccontextmanager
async def _processes(program: Program, environment: dict[str, str], reports: "asyncio.Queue[Report]") -> AsyncIterator[None]:
    """Run the web server, the workers, and the program's other commands."""
    module, prefix = f"{PACKAGE}.{program.module}", environment["HOSTS_PREFIX"]
    web = (
        sys.executable,
        "-m",
        "gunicorn",
        "--config=python:examples.hosts.flask_gunicorn.settings",
        "--preload",
        f"{module}:app",
    )
    queues = f"{prefix}tasks" if program.is_once else f"{prefix}tasks,{prefix}bookings"
    worker = (
        *(
            sys.executable,
            "-m",
            "celery",
            f"--app={module}:celery",
            "worker",
            f"--concurrency={CHILDREN}",
            f"--queues={queues}",
        ),
        *("--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel=WARNING"),
    )
    commands = [
        web,
        *([program.beside] if program.beside else []),
        *((*worker, f"--hostname=w{n}@run") for n in range(WORKERS)),
    ]
    processes = [Process(command, environment, reports) for command in commands]
    try:
        for each in processes:
            await each.start()
        yield
    finally:
        await asyncio.gather(*(each.stop() for each in processes))


async def _prepare(program: Program, environment: dict[str, str]) -> None:
    if program.is_once:
        await created_tables(f"{PACKAGE}.{program.module}:shop", environment)
    if program.prepare:
        await _command(program.prepare, environment)


async def _command(command: Sequence[str], environment: dict[str, str]) -> None:
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {output.decode()}")


async def _lines(engine: AsyncEngine) -> Counter[tuple[str, str]]:
    async with engine.connect() as connection:
        found = await connection.execute(text("SELECT step, order_id, count(*) FROM lines GROUP BY step, order_id"))
        return Counter({(step, order_id): count for step, order_id, count in found})


async def _settle(engine: AsyncEngine, places: Places, prefix: str, wanted: set[tuple[str, str]], *, is_once: bool) -> None:
    """Wait until no task waits, and what is wanted is there, or nothing more comes."""
    until = time.monotonic() + SETTLING_SECONDS
    before, since = -1, time.monotonic()
    while time.monotonic() < until:
        found = await _lines(engine)
        now = time.monotonic()
        if found.total() != before or await asyncio.to_thread(_waiting, places, prefix):
            before, since = found.total(), now
        if now - since > QUIET_SECONDS and (not is_once or wanted <= found.keys()):
            return
        await asyncio.sleep(GLANCE_SECONDS)


def _transport(places: Places, prefix: str) -> dict[str, str]:
    return {"global_keyprefix": prefix} if places.broker.startswith("redis") else {}


def _waiting(places: Places, prefix: str) -> int:
    """Count the tasks that wait. On RabbitMQ those in work are left out."""
    names = (f"{prefix}tasks", f"{prefix}bookings")
    if places.broker.startswith("redis"):
        with Redis.from_url(places.broker) as redis:
            return int(redis.hlen(f"{prefix}unacked")) + sum(int(redis.llen(f"{prefix}{name}")) for name in names)
    with Connection(places.broker) as connection:
        count = 0
        for name in names:
            channel: Any = connection.channel()
            with suppress(connection.channel_errors):  # there is no such queue
                count += channel.queue_declare(name, passive=True).message_count
        return count


_DELAYS = ("due", "unheard", "subscribed", "unsubscribed", *(f"books:{level:02}" for level in range(17)))
_OF_BOOKS = (
    "books",
    *("onceonly:event:OrderCharged", "onceonly:census", "onceonly:inbox:books", "onceonly:inbox:books:missing"),
    *(f"onceonly:delay:{name}" for name in _DELAYS),
)
"""Queues and exchanges of the other service: its own, that of its event, and those of delays, which a retry has declared."""


def _clean(places: Places, prefix: str) -> None:
    """Remove what Celery and the result backend have left."""
    for url in {places.results, places.broker}:
        if url.startswith("redis"):
            with Redis.from_url(url) as redis:
                for pattern in (f"*{prefix}*", f"qo_{PACKAGE}*"):
                    for key in redis.scan_iter(match=pattern, count=1000):
                        redis.delete(key)
    if not places.broker.startswith("redis"):
        with Connection(places.broker) as connection:
            channel: Any = connection.channel()
            for name in ("tasks", "bookings", *_OF_BOOKS):  # what is not there counts as deleted
                channel.queue_delete(f"{prefix}{name}")
                channel.exchange_delete(f"{prefix}{name}")
    with suppress(FileNotFoundError):
        Path(socket_of(prefix)).unlink()


def _counts(  # noqa: PLR0913, PLR0917 - what a run is made of
    program: Program,
    places: Places,
    wanted: set[tuple[str, str]],
    found: Counter[tuple[str, str]],
    kills: int,
    orders: int,
    seconds: float,
) -> Counts:
    def count(steps: Sequence[str], is_counted: Callable[[str, int], bool], of: set[tuple[str, str]]) -> int:
        return sum(step in steps and is_counted(order_id, found[step, order_id]) for step, order_id in of)

    seen = set(found)
    numbers = []
    for steps in (ROWS, FOLLOW_UPS):
        numbers += [
            count(steps, lambda _, rows: not rows, wanted),
            count(steps, lambda order_id, rows: rows > 1 and order_id.startswith("web-"), seen),
            count(steps, lambda order_id, rows: rows > 1 and not order_id.startswith("web-"), seen),
        ]
    broker = "Redis" if places.broker.startswith("redis") else "RabbitMQ"
    return Counts(program.name, broker, kills, orders, *numbers, round(seconds, 1))
