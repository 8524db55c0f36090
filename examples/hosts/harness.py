"""Runs an application of a host, kills it with SIGKILL while it works, starts it again, and counts what came of it.

feed      N ids, a fifth of them twice, a portion to each process before it starts
kill      when the process has reported N messages, and a random moment later
settle    until no message waits, and what is expected is there or cannot come any more
count     what the application has written, such as rows in PostgreSQL, and events on the wire
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import uuid4

from rich.console import Console
from rich.table import Table
from sqlalchemy import make_url, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from examples.hosts.program import Base, Order, account_of, number_of

ROOT = Path(__file__).parents[2]
SETTLING_SECONDS = 150.0
"""How long what is expected may take to come. The counts show what is missing then."""
GLANCE_SECONDS = 0.1
STOPPING_SECONDS = 20.0
LONGEST_MOMENT = 0.03
"""Seconds from a report to the kill, at most. Chance decides whether it hits a commit, a send or an ack."""
APPLICATION, WORKERS, BESIDE = "application", "workers", "beside"
"""What may be killed; see `Host`."""


class WireEvent(NamedTuple):
    """One event on the wire: the id by which a receiver recognizes copies, and its order. Without an id each one is new."""

    id: str
    order_id: str


class Wire(Protocol):
    """A broker, as the world around the application sees it. Names begin with a prefix of this run."""

    async def prepare(self) -> None:
        """Make what the application and this side need, empty."""

    async def feed(self, order_ids: Sequence[str]) -> None:
        """Send the application one message for each of these ids, in this order."""

    async def waiting(self) -> int:
        """Count the messages that the application has not acknowledged. Those in work may be left out while it runs."""

    async def events(self) -> Sequence[WireEvent]:
        """Return all events that were published since the start."""

    async def clean(self) -> None:
        """Remove all of it."""


class Books(Protocol):
    """Where the application writes its orders."""

    @property
    def url(self) -> str:
        """What the application opens."""

    async def prepare(self, host: "Host", environment: Mapping[str, str]) -> None:
        """Create what the program `exactly_once` needs, as a deployment does."""

    async def read(self) -> "Written":
        """Return what was written."""


class Written(NamedTuple):
    """What an application has written: how many in all, and the id of each, those of a group in the order of their commits.

    `unannounced` are rows for which no event of their own was received, if the books count them.
    """

    total: int
    order_ids: Sequence[str]
    unannounced: int | None = None


@dataclass(frozen=True)
class Host:
    """A host: its name, its two programs, and its broker.

    A program is a module with `main()`, or a whole command line. `endpoint` names the endpoint as `module:name`, whose tables
    are created. `wire` makes the broker's side from its URL and the prefix. `beside` is a command that runs next to
    `exactly_once`, such as a relay, and `control_beside` one next to `control`. `victims` are killed in turns: the
    `APPLICATION`, the `WORKERS` that it has started, which it replaces, and what runs `BESIDE`. `control_victims` are those of
    the control, if not the same.
    `books` opens where the application writes, from the places and the prefix; without it, that is a database in PostgreSQL.
    With `is_ordered`, orders of an account must take effect in the order of their numbers.
    """

    name: str
    wire: Callable[[str, str], Wire]
    control: str | Sequence[str] = ""
    exactly_once: str | Sequence[str] = ""
    endpoint: str = ""
    beside: Sequence[str] = ()
    control_beside: Sequence[str] = ()
    victims: Sequence[str] = (APPLICATION,)
    control_victims: Sequence[str] = ()
    books: "Callable[[Places, str], AbstractAsyncContextManager[Books]] | None" = None
    is_ordered: bool = False

    @classmethod
    def of(cls, package: str, wire: Callable[[str, str], Wire]) -> "Host":
        """Return the host of a package with `control.py` and `exactly_once.py`, whose endpoint is called `shop`."""
        name = package.rpartition(".")[2]
        once = f"{package}.exactly_once"
        return cls(name, wire, control=f"{package}.control", exactly_once=once, endpoint=f"{once}:shop")


class Places(NamedTuple):
    """Where a run takes place: a PostgreSQL server, on which it makes a database, and the host's broker."""

    postgresql: str
    broker: str

    @classmethod
    def local(cls, variable: str, broker: str) -> "Places":
        """Return the servers of this machine, or those that the environment names."""
        postgresql = os.environ.get("ONCEONLY_POSTGRESQL", "postgresql://root@127.0.0.1:5432/postgres")
        return cls(postgresql, os.environ.get(variable, broker))


class Counts(NamedTuple):
    """What a run left. Lost and doubled are numbers of ids; `repeated` are events on the wire beyond the first of each order.

    `by_id` is what a receiver has that takes each id once. `misplaced` are ids that took effect behind a later one of their
    account. It is None for a host that has no order. `unannounced` are rows without an event of their own, where it is known.
    """

    program: str
    kills: int
    ids: int
    rows: int
    rows_lost: int
    rows_doubled: int
    events: int
    events_lost: int
    repeated: int
    by_id_doubled: int
    seconds: float
    misplaced: int | None = None
    unannounced: int | None = None

    @property
    def is_exact(self) -> bool:
        """Return whether each id took effect once and in order, for the table and for a receiver that takes each id once."""
        lost = self.rows_lost or self.events_lost or self.unannounced
        return not (lost or self.rows_doubled or self.by_id_doubled or self.misplaced)


class Application:
    """A program of a host, as one process at a time, which is started, killed and started again."""

    def __init__(self, program: str | Sequence[str], environment: Mapping[str, str]) -> None:
        self._is_module = isinstance(program, str)
        self.command = [sys.executable, "-m", "examples.hosts.launch", program] if isinstance(program, str) else list(program)
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._pid = 0
        self._lines: asyncio.Queue[str] = asyncio.Queue()
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start a process. That of a module is forked from one that has imported it; a command is executed."""
        if self._process is None:
            self._process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, **self._environment, "PYTHONUNBUFFERED": "1"},
            )
            self._lines = asyncio.Queue()
            self._reading = asyncio.create_task(self._read_lines(self._process.stdout, self._lines))
        self._pid = self._process.pid
        if self._is_module and self._process.stdin is not None:
            self._process.stdin.write(b"\n")
            while not (line := await self._read()).startswith("pid "):
                if not line:
                    raise RuntimeError(f"it does not start: {' '.join(self.command)}")
            self._pid = int(line.removeprefix("pid "))

    async def reported(self, count: int, among: Collection[str]) -> int:
        """Wait until the process has reported this many of these ids, or has ended; returns how many it has."""
        found = 0
        while found < count:
            if (line := await self._read()) in {"", "ended"}:
                break
            found += line in among
        return found

    async def kill_workers(self) -> None:
        """Kill the processes that the program has started."""
        while not (workers := _children(self._pid)):  # noqa: ASYNC110 - nothing reports that a process was started
            await asyncio.sleep(GLANCE_SECONDS)
        for each in workers:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    async def end(self, number: signal.Signals) -> None:
        """Send the process a signal and wait for its end. One that does not end by SIGTERM is killed."""
        if self._process is None:
            return
        for each in (number, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(self._pid, each)
            with suppress(TimeoutError):
                async with asyncio.timeout(STOPPING_SECONDS):
                    while (await self._read()) not in {"", "ended"}:
                        pass
                    break
        if not self._is_module:
            await self._process.wait()
            self._process = None

    async def close(self) -> None:
        """End what is left."""
        if not self._is_module and self._process is not None and self._process.returncode is None:
            await self.end(signal.SIGTERM)
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()  # the launcher reads no further line, and ends
            await process.wait()

    async def _read(self) -> str:
        """Return the next line that is not empty. Empty at the end."""
        if self._reading is None or (self._reading.done() and self._lines.empty()):
            return ""
        return await self._lines.get()

    @staticmethod
    async def _read_lines(output: asyncio.StreamReader | None, lines: asyncio.Queue[str]) -> None:
        """Read all the time, so that a program that prints much is not held up."""
        while output is not None and (line := await output.readline()):
            if text := line.decode().strip():
                lines.put_nowait(text)
        lines.put_nowait("")


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def run(host: Host, places: Places, *, is_control: bool, ids: int = 300, kills: int = 8, seed: int = 1) -> Counts:
    """Run one of a host's programs with N kills. Returns the numbers."""
    since = time.monotonic()
    prefix = f"hosts-{uuid4().hex[:8]}-"
    program = host.control if is_control else host.exactly_once
    wire = host.wire(places.broker, prefix)
    wanted = [f"order-{number}" for number in range(ids)]
    async with (host.books or opened_tables)(places, prefix) as books:
        environment = {"HOSTS_STORE": books.url, "HOSTS_BROKER": places.broker, "HOSTS_PREFIX": prefix}
        if not is_control:
            await books.prepare(host, environment)
        application = Application(program, environment)
        beside = Application(host.control_beside if is_control else host.beside, environment)
        try:
            await wire.prepare()
            if beside.command:
                await beside.start()
            *portions, last = _portions(with_copies(wanted), kills + 1)
            chosen = (host.control_victims or host.victims) if is_control else host.victims
            victims = [each for each in chosen if each != BESIDE or beside.command]
            await _work(application, wire, portions, seed, victims=victims, beside=beside)
            await wire.feed(last)
            await _settle(application, wire, set() if is_control else set(wanted))
            counts = await _count("control" if is_control else "exactly once", wanted, kills, wire, await books.read(), since)
            return counts if host.is_ordered else counts._replace(misplaced=None)
        finally:
            await application.close()
            await beside.close()
            await wire.clean()


def with_copies(ids: Sequence[str]) -> list[str]:
    """Return the ids, each fifth of them twice: a few at once, others later."""
    sent = list(ids)
    for place, id_ in enumerate(ids[::5]):
        sent.insert(min(len(sent), sent.index(id_) + 1 + 7 * (place % 3)), id_)
    return sent


def _portions(sent: Sequence[str], count: int) -> list[Sequence[str]]:
    """Divide what is sent: each process gets a portion of its own, so it has new messages to report until it is killed."""
    ends = [len(sent) * number // count for number in range(count + 1)]
    return [sent[begin:end] for begin, end in pairwise(ends)]


async def _work(
    application: Application,
    wire: Wire,
    portions: Sequence[Sequence[str]],
    seed: int,
    *,
    victims: Sequence[str],
    beside: Application,
) -> None:
    """Feed each portion to a process, and kill a victim at work."""
    rng = random.Random(seed)  # noqa: S311 - when a process dies is no secret
    known: set[str] = set()
    for killed, portion in enumerate(portions):
        new = set(portion) - known
        known.update(portion)
        await wire.feed(portion)
        await application.start()
        reports = rng.randint(max(1, len(new) // 2), len(new))
        if await application.reported(reports, new) < reports:
            raise RuntimeError(f"the program ended without a signal, after {killed} kills: {' '.join(application.command)}")
        await asyncio.sleep(rng.uniform(0, LONGEST_MOMENT))
        victim = victims[killed % len(victims)]
        if victim == WORKERS:
            await application.kill_workers()
        elif victim == BESIDE:
            await beside.end(signal.SIGKILL)
            await beside.start()
        else:
            await application.end(signal.SIGKILL)


async def _settle(application: Application, wire: Wire, wanted: set[str]) -> None:
    """Let the last process work until nothing waits and the events of these ids are there, and end it."""
    await application.start()
    until = time.monotonic() + SETTLING_SECONDS
    while time.monotonic() < until:
        if not await wire.waiting() and wanted <= {event.order_id for event in await wire.events()}:
            break
        await asyncio.sleep(GLANCE_SECONDS)
    await application.end(signal.SIGTERM)


async def _count(  # noqa: PLR0917 - what a run is made of
    program: str, ids: Sequence[str], kills: int, wire: Wire, written: Written, since: float
) -> Counts:
    rows = Counter(written.order_ids)
    events = await wire.events()
    published = Counter(event.order_id for event in events)
    taken = Counter(order_id for _, order_id in {(event.id or uuid4().hex, event.order_id) for event in events})
    return Counts(
        program=program,
        kills=kills,
        ids=len(ids),
        rows=written.total,
        rows_lost=sum(not rows[each] for each in ids),
        rows_doubled=sum(count > 1 for count in rows.values()),
        events=len(events),
        events_lost=sum(not published[each] for each in ids),
        repeated=len(events) - len(published),
        by_id_doubled=sum(count > 1 for count in taken.values()),
        seconds=round(time.monotonic() - since, 1),
        misplaced=misplaced(written.order_ids),
        unannounced=written.unannounced,
    )


def misplaced(order_ids: Sequence[str]) -> int:
    """Count the ids that are there for the first time behind a later one of their account."""
    latest: dict[str, int] = {}
    found = 0
    for each in dict.fromkeys(order_ids):
        account, number = account_of(each), number_of(each)
        found += number < latest.get(account, -1)
        latest[account] = max(number, latest.get(account, -1))
    return found


class Tables(NamedTuple):
    """A database in PostgreSQL, with a row for each time that an order was placed."""

    engine: AsyncEngine

    @property
    def url(self) -> str:
        """The URL with its password."""
        return self.engine.url.render_as_string(hide_password=False)

    async def prepare(self, host: Host, environment: Mapping[str, str]) -> None:
        """Create the tables of the endpoint."""
        await created_tables(host.endpoint, environment)

    async def read(self) -> Written:
        """Return the rows by their numbers."""
        async with self.engine.connect() as connection:
            rows = (await connection.execute(select(Order.order_id).order_by(Order.number))).scalars().all()
        return Written(len(rows), rows)


@asynccontextmanager
async def opened_tables(places: Places, _prefix: str) -> AsyncIterator[Tables]:
    """Make a database of this run."""
    async with opened_database(places.postgresql) as engine:
        yield Tables(engine)


@asynccontextmanager
async def opened_database(server: str, name: str = "") -> AsyncIterator[AsyncEngine]:
    """Make a database of this run on a PostgreSQL server, with the application's tables; drop it at the end."""
    url = make_url(server).set(drivername="postgresql+asyncpg")
    name = name or f"onceonly_hosts_{uuid4().hex[:8]}"
    operator = create_async_engine(url, isolation_level="AUTOCOMMIT")
    engine = create_async_engine(url.set(database=name))
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


async def created_tables(endpoint: str, environment: Mapping[str, str]) -> None:
    """Create the endpoint's tables, as a deployment does."""
    command = (sys.executable, "-m", "onceonly", "schema", "create", endpoint)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {output.decode()}")


def table_of(host: Host, runs: Sequence[Counts]) -> Table:
    """Return the numbers of several runs as a table, with a column for each."""
    table = Table(title=host.name)
    table.add_column("")
    for each in runs:
        table.add_column(each.program, justify="right")
    for name in Counts._fields[1:]:
        cells = [getattr(each, name) for each in runs]
        if cells != [None] * len(cells):
            table.add_row(_NAMES.get(name, name.replace("_", " ")), *map(str, cells))
    return table


_NAMES = {
    "repeated": "events repeated on the wire",
    "by_id_doubled": "events doubled for a receiver that knows ids",
    "unannounced": "rows without an event of their own",
}


def main(host: Host, places: Places, *, ids: int = 300, kills: int = 8) -> None:
    """Run both programs of a host and print the table."""

    async def both() -> list[Counts]:
        return [await run(host, places, is_control=is_control, ids=ids, kills=kills) for is_control in (True, False)]

    Console().print(table_of(host, asyncio.run(both())))
