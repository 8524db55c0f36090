"""What the adversarial tests share: a place with an endpoint in processes of its own, foreign clients, audits by plain SQL.

Producers and the sink know nothing of the library: they speak AMQP by aiormq, or raw frames, or insert and read rows.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from urllib.request import urlopen
from uuid import uuid4

import aiormq
import nats
from nats.js.errors import NotFoundError
from pamqp import commands as spec
from redis.asyncio import Redis
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from onceonly.adapters.nats.names import NatsNames
from onceonly.assembly import temporary_transport
from onceonly.ports.transport import Topology
from tests import ROOT
from tests.adversary.program import tables
from tests.adversary.raw_amqp import RawProducer, connected
from tests.servers.available import free_port

GENEROUS = 90.0
"""Seconds for what takes a fraction of one: only what never happens is later."""
GOOD = 50
GLANCE = 0.02
SHOP = "tests.adversary.program:shop"
Headers = Sequence[tuple[str, str]]


class Sunk(NamedTuple):
    """One message that the sink took: its identity, and the name of the row it announces."""

    source: str
    id: str
    name: str


@dataclass
class Place:
    """One endpoint with its database, its queue, and a sink for what it publishes."""

    store: str
    transport: str
    prefix: str
    folder: Path
    sql: AsyncEngine
    queue: "Queue"
    program: str = SHOP
    settings: dict[str, str] = field(default_factory=dict)
    workers: "list[Worker]" = field(default_factory=list)
    sent: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the endpoint's processes."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src"))),
            "ADVERSARY_STORE": self.store,
            "ADVERSARY_TRANSPORT": self.transport,
            "ADVERSARY_EFFECTS": f"{self.prefix}effects",
            **self.settings,
        }

    def start(self, *options: str, environment: Mapping[str, str] | None = None, inside: Sequence[str] = ()) -> "Worker":
        """Start `onceonly run`, by a command that runs another one `inside` something."""
        worker = Worker(self, options, environment or {}, inside)
        self.workers.append(worker)
        return worker

    async def good(self, count: int = GOOD, kind: str = "Order") -> None:
        """Send messages that nothing is wrong with."""
        ids = [f"good-{self.sent + number}" for number in range(count)]
        self.sent += count
        await self.queue.send_many([(((*cloud_event(id_, kind=kind),)), b'{"n": 1}') for id_ in ids])

    async def handled(self) -> int:
        """Count the rows of handlers whose work was committed."""
        return int(await self.value(f"SELECT count(*) FROM {self.prefix}effects"))

    async def dead(self) -> list[str]:
        """Read the reasons of the dead letters, in their order."""
        found = await self.rows(f"SELECT reason FROM {self.prefix}dead_letters ORDER BY position")
        return [as_text(reason) for (reason,) in found]

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Ask the database."""
        async with self.sql.connect() as connection:
            return [tuple(row) for row in (await connection.execute(text(query))).all()]

    async def value(self, query: str) -> Any:
        """Ask the database for one value."""
        ((value,),) = await self.rows(query)
        return value

    async def execute(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        async with self.sql.connect() as connection:
            for statement in statements:
                await connection.execute(text(statement))

    async def until(self, reached: Callable[[], Awaitable[bool]], what: str, *, patience: float = GENEROUS) -> float:
        """Wait for something; returns the seconds that it took. Fails with the workers' log when it never comes."""
        since = time.monotonic()
        while not await reached():
            assert time.monotonic() - since < patience, f"not within {patience:g} s: {what}\n{self.said()[-6000:]}"
            await asyncio.sleep(GLANCE)
        return time.monotonic() - since

    def said(self) -> str:
        """Read what the workers logged."""
        return "\n".join(worker.log.read_text(errors="replace") for worker in self.workers)

    async def audit(self, *, handled: int | None = None, dead: int | None = None) -> None:
        """Compare rows, announcements, dead letters and what is left. Everything must be at rest."""
        try:
            await self.until(self._is_at_rest, "queues empty, no record left, everything announced")
        except AssertionError as error:
            raise AssertionError(f"{await self._unrest()}\n{error}") from None
        assert await self.left_wrong() == []
        if handled is not None:
            assert await self.handled() == handled
        if dead is not None:
            assert len(await self.dead()) == dead, await self.dead()

    async def left_wrong(self) -> list[str]:
        """List what is wrong once everything is at rest: each handled message has one row and one announcement."""
        rows = Counter(as_text(name) for (name,) in await self.rows(f"SELECT name FROM {self.prefix}effects"))
        announced = Counter(each.name for each in {(each.source, each.id): each for each in self.queue.sunk}.values())
        return [
            *(f"handled {count} times: {name}" for name, count in rows.items() if count > 1),
            *(f"announced {count} times under different ids: {name}" for name, count in announced.items() if count > 1),
            *(f"handled, never announced: {name}" for name in rows.keys() - announced.keys()),
            *(f"announced, never handled: {name}" for name in announced.keys() - rows.keys()),
        ]

    async def _is_at_rest(self) -> bool:
        if await self.queue.waiting() or await self.value(f"SELECT count(*) FROM {self.prefix}records"):
            return False
        await self.queue.drain()
        handled = await self.handled()
        return len({each.name for each in self.queue.sunk}) >= handled

    async def _unrest(self) -> str:
        """Describe what keeps everything from being at rest."""
        records = await self.value(f"SELECT count(*) FROM {self.prefix}records")
        waiting, handled, wrong = await self.queue.waiting(), await self.handled(), await self.left_wrong()
        return f"waiting {waiting}, records {records}, handled {handled}, wrong {len(wrong)}: {wrong[:5]}"

    async def renew(self) -> None:
        """Replace the workers, and empty the queue: what happened so far is over."""
        options = [worker.options for worker in self.workers[-1:]]
        await self.close()
        await self.queue.purge()
        for each in options:
            await self.start(*each).ready()

    async def close(self) -> None:
        """End the workers."""
        for worker in self.workers:
            await asyncio.to_thread(worker.end)


class Worker:
    """`onceonly run` with children, all of them in a process group of their own."""

    def __init__(
        self, place: Place, options: Sequence[str], environment: Mapping[str, str], inside: Sequence[str] = ()
    ) -> None:
        self.options = tuple(options)
        self.log = place.folder / f"log-{len(place.workers)}"
        self.port = free_port()
        command = [*inside, sys.executable, "-m", "onceonly", "run", place.program, "--log-format", "json"]
        command += ["--health", f"127.0.0.1:{self.port}", *options]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=place.folder,
                env={**place.environment, **environment},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def children(self) -> list[int]:
        """List the processes that handle messages, those that are alive."""
        found: dict[int, int] = {}
        for line in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if entry.get("message") in {"process started", "process replaced"} and "pid" in entry:
                    found[entry["child"]] = entry["pid"]
        return [pid for pid in found.values() if is_alive(pid)]

    def health(self, page: str = "ready") -> int:
        """Ask for /live or /ready; returns the status, 0 when nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/{page}", timeout=5) as answer:
                return int(answer.status)
        except OSError as error:
            return int(getattr(error, "code", 0))

    async def ready(self, patience: float = GENEROUS) -> None:
        """Wait until /ready is 200."""
        end = time.monotonic() + patience
        while await asyncio.to_thread(self.health) != 200:
            assert self.process.poll() is None, self.log.read_text(errors="replace")
            assert time.monotonic() < end, self.log.read_text(errors="replace")[-6000:]
            await asyncio.sleep(0.05)

    def stop(self) -> int:
        """Ask it to stop; returns its exit code."""
        self.process.terminate()
        return self.process.wait(60)

    def end(self) -> None:
        """Kill all of it."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Queue:
    """The queue of the endpoint, and the sink, as programs without the library see them."""

    largest = 2**31
    """The bytes of a body that the server takes from anybody."""

    def __init__(self) -> None:
        self.sunk: list[Sunk] = []

    async def send(self, headers: Headers, body: bytes) -> None:
        """Send one message."""
        await self.send_many([(headers, body)])

    async def send_many(self, messages: Sequence[tuple[Headers, bytes]]) -> None:
        """Send messages."""
        raise NotImplementedError

    async def waiting(self) -> int:
        """Count what the endpoint has not settled yet."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Let the sink take what is there."""
        raise NotImplementedError

    async def purge(self) -> None:
        """Remove what the endpoint has not settled."""
        raise NotImplementedError


class RabbitQueue(Queue):
    """RabbitMQ, by aiormq and by raw frames."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self._url, self.name, self._sink = url.partition("?")[0], f"{prefix}shop", f"{prefix}sink"
        self._exchange = f"{prefix}onceonly:event:Done"
        self._stack = AsyncExitStack()
        self.channel: Any = None
        self._asking: Any = None
        self.raw: RawProducer

    async def open(self) -> None:
        """Connect, and bind the sink."""
        self._connection = await aiormq.connect(self._url)
        self.channel = await self._connection.channel()
        self._asking = await self._connection.channel(publisher_confirms=False)
        await self.reconnect_raw()
        await self._asking.exchange_declare(self._exchange, exchange_type="fanout", durable=True)
        await self._asking.queue_declare(self._sink, durable=True)
        await self._asking.queue_bind(self._sink, self._exchange)
        await self._asking.basic_consume(self._sink, self._take, no_ack=True)

    async def reconnect_raw(self) -> None:
        """Open a new connection for raw frames: the server may have closed the one before."""
        await self._stack.aclose()
        self.raw = await self._stack.enter_async_context(connected(self._url))

    async def close(self) -> None:
        """Remove the sink, and disconnect."""
        await self._asking.queue_delete(self._sink)
        await self._asking.exchange_delete(self._exchange)
        await self._stack.aclose()
        await self._connection.close()

    async def send_many(self, messages: Sequence[tuple[Headers, bytes]]) -> None:
        """Publish with confirms."""
        await asyncio.gather(
            *(
                self.channel.basic_publish(
                    body,
                    routing_key=self.name,
                    mandatory=True,
                    properties=spec.Basic.Properties(headers=dict(headers), delivery_mode=2),
                )
                for headers, body in messages
            )
        )

    async def waiting(self) -> int:
        """Count what waits in the queue; what is held shows by what it leaves undone."""
        found = await self._asking.queue_declare(self.name, passive=True)
        return int(found.message_count or 0)

    async def purge(self) -> None:
        """Empty the queue, once the broker has taken back what dead processes held."""
        while (await self._asking.queue_declare(self.name, passive=True)).consumer_count:  # noqa: ASYNC110 - it polls a broker
            await asyncio.sleep(GLANCE)
        await asyncio.sleep(0.2)
        await self._asking.queue_purge(self.name)

    async def drain(self) -> None:
        """Wait one round trip: the consumer takes everything by itself."""
        await self._asking.queue_declare(self._sink, passive=True)

    async def _take(self, message: Any) -> None:
        headers = message.header.properties.headers
        self.sunk.append(Sunk(headers["ce-source"], headers["ce-id"], json.loads(message.body)["name"]))


class RedisQueue(Queue):
    """Redis Streams, by a plain client."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self._client: Any = Redis.from_url(url)
        self._start = f"{{{prefix}}}"
        self.name, self._sink = f"{self._start}stream:shop", f"{self._start}stream:sink"

    async def open(self) -> None:
        """Subscribe the sink."""
        await self._client.xgroup_create(self._sink, "sink", id="0", mkstream=True)
        await self._client.sadd(f"{self._start}subscribers:Done", "sink")

    async def close(self) -> None:
        """Remove the sink, and disconnect."""
        await self._client.delete(self._sink, f"{self._start}subscribers:Done")
        await self._client.aclose()

    async def send_many(self, messages: Sequence[tuple[Headers, bytes]]) -> None:
        """Add entries."""
        async with self._client.pipeline(transaction=False) as pipe:
            for headers, body in messages:
                fields = [part.encode("utf-8", "surrogateescape") for pair in headers for part in pair]
                pipe.execute_command("XADD", self.name, "*", *fields, "data", body)
            await pipe.execute()

    async def waiting(self) -> int:
        """Count the entries that are not settled, and those that are not due."""
        return int(await self._client.xlen(self.name)) + int(await self._client.zcard(f"{self._start}delayed:shop"))

    async def purge(self) -> None:
        """Delete the entries."""
        await self._client.xtrim(self.name, maxlen=0)
        await self._client.delete(f"{self._start}delayed:shop")

    async def drain(self) -> None:
        """Take the sink's entries."""
        for id_, fields in await self._client.xrange(self._sink):
            source, name = fields[b"ce-source"].decode(), fields[b"ce-id"].decode()
            self.sunk.append(Sunk(source, name, json.loads(fields[b"data"])["name"]))
            await self._client.xdel(self._sink, id_)


class NatsQueue(Queue):
    """NATS JetStream, by the plain driver."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__()
        self._url, self._names = url, NatsNames(prefix)
        self.name = self._names.queue_subject("shop")
        self._client: Any = None
        self._reader: Any = None

    async def open(self) -> None:
        """Make a stream for the sink, and publish its subscription."""
        self._client = await nats.connect(self._url)
        self.largest = self._client.max_payload
        subject, stream = self._names.queue_subject("sink"), self._client.jetstream()
        await stream.add_stream(name=self._names.queue("sink"), subjects=[subject])
        await stream.publish(self._names.subscription("Done", "sink"), b"")
        self._reader = await stream.pull_subscribe(subject, durable="sink")

    async def close(self) -> None:
        """Remove the sink, and disconnect."""
        await self._client.jetstream().delete_stream(self._names.queue("sink"))
        await self._client.close()

    async def send_many(self, messages: Sequence[tuple[Headers, bytes]]) -> None:
        """Publish, with the attributes percent-encoded."""
        stream = self._client.jetstream()
        await asyncio.gather(
            *(stream.publish(self.name, body, headers=dict(_in_lines(headers)) or None) for headers, body in messages)
        )

    async def waiting(self) -> int:
        """Count the messages that are not settled, and those that are not due."""
        stream = self._client.jetstream()
        found = 0
        for name in (self._names.queue("shop"), self._names.delayed):
            with suppress(NotFoundError):
                found += (await stream.stream_info(name)).state.messages
        return found

    async def purge(self) -> None:
        """Delete the messages."""
        stream = self._client.jetstream()
        for name in (self._names.queue("shop"), self._names.delayed):
            with suppress(NotFoundError):
                await stream.purge_stream(name)

    async def drain(self) -> None:
        """Take the sink's messages."""
        with suppress(TimeoutError):  # the client raises its own, which is one, and asyncio's where its last second runs out
            while True:
                for message in await self._reader.fetch(500, timeout=0.1):
                    named = message.headers
                    source, name = unquote(named["ce-source"]), unquote(named["ce-id"])
                    self.sunk.append(Sunk(source, name, json.loads(message.data)["name"]))
                    await message.ack()


def _in_lines(headers: Headers) -> Iterator[tuple[str, str]]:
    for name, value in headers:
        yield name, quote(value, safe="", errors="surrogateescape") if name.startswith("ce-") else value


class SqlQueue(Queue):
    """The queue in a SQL database, by rows."""

    def __init__(self, sql: AsyncEngine, prefix: str) -> None:
        super().__init__()
        self._sql, self._prefix = sql, prefix

    async def open(self) -> None:
        """Subscribe the sink."""
        async with self._sql.connect() as connection:
            await connection.execute(text(f"INSERT INTO {self._prefix}queues (name) VALUES ('sink')"))
            row = f"INSERT INTO {self._prefix}subscriptions (event, queue) VALUES ('Done', 'sink')"
            await connection.execute(text(row))

    async def close(self) -> None:
        """Leave everything to the end of the database."""

    async def send_many(self, messages: Sequence[tuple[Headers, bytes]]) -> None:
        """Insert rows, whose headers are a JSON list of pairs."""
        await self.insert([(json.dumps([list(pair) for pair in headers]), body) for headers, body in messages])

    async def insert(self, rows: Sequence[tuple[str, bytes]]) -> None:
        """Insert rows with headers as they are given."""
        columns = "queue, visible_at, leases, receipt, headers, body"
        statement = f"INSERT INTO {self._prefix}messages ({columns}) VALUES ('shop', 0, 0, '', :headers, :body)"
        async with self._sql.connect() as connection:
            await connection.execute(text(statement), [{"headers": headers, "body": body} for headers, body in rows])

    async def waiting(self) -> int:
        """Count the rows that are not settled."""
        return await self._count("shop")

    async def purge(self) -> None:
        """Delete the rows."""
        async with self._sql.connect() as connection:
            await connection.execute(text(f"DELETE FROM {self._prefix}messages WHERE queue = 'shop'"))

    async def drain(self) -> None:
        """Take the sink's rows."""
        async with self._sql.connect() as connection:
            query = f"SELECT seq, headers, body FROM {self._prefix}messages WHERE queue = 'sink'"
            rows = (await connection.execute(text(query))).all()
            for _, headers, body in rows:
                named = dict(json.loads(headers))
                self.sunk.append(Sunk(named["ce-source"], named["ce-id"], json.loads(bytes(body))["name"]))
            for start in range(0, len(rows), 500):
                numbers = ", ".join(str(row[0]) for row in rows[start : start + 500])
                await connection.execute(text(f"DELETE FROM {self._prefix}messages WHERE seq IN ({numbers})"))

    async def _count(self, queue: str) -> int:
        async with self._sql.connect() as connection:
            query = f"SELECT count(*) FROM {self._prefix}messages WHERE queue = '{queue}'"
            return int((await connection.execute(text(query))).scalar_one())


@asynccontextmanager
async def opened_place(
    store: str, transport: str = "", *, program: str = SHOP, settings: Mapping[str, str] | None = None
) -> AsyncIterator[Place]:
    """Make a place on a database. The transport is RabbitMQ, Redis or NATS, or without a URL the same database's queue."""
    prefix = f"t{uuid4().hex[:8]}_"
    named = f"{store}?prefix={prefix}"
    queue_at = f"{transport}?prefix={prefix}" if transport else named
    drivername = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}[make_url(store).drivername]
    sql = create_async_engine(make_url(store).set(drivername=drivername), isolation_level="AUTOCOMMIT")
    kinds = {"amqp": RabbitQueue, "redis": RedisQueue, "nats": NatsQueue}
    queue: Any = kinds[transport.partition(":")[0]](transport, prefix) if transport else SqlQueue(sql, prefix)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="onceonly-adversary-")))
        stack.push_async_callback(sql.dispose)
        place = Place(named, queue_at, prefix, folder, sql, queue, program, dict(settings or {}))
        await asyncio.to_thread(place_command, place, "schema", "create", program)
        async with sql.begin() as connection:
            await connection.run_sync(tables(f"{prefix}effects")[0].create_all)
        if transport:
            topology = Topology(endpoint="shop", events=("Done",))
            await stack.enter_async_context(temporary_transport(queue_at, [topology]))
        await asyncio.to_thread(place_command, place, "topology", "create", program)
        await queue.open()
        stack.push_async_callback(queue.close)
        stack.push_async_callback(place.close)
        yield place


def place_command(place: Place, *words: str) -> str:
    """Run a command of the command line about this place; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "onceonly", *words],
        cwd=place.folder,
        env=place.environment,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode()


def cloud_event(id_: str, *, source: str = "foreign", kind: str = "Order", **more: str) -> Headers:
    """Return the headers of a CloudEvent in binary mode."""
    known = {"specversion": "1.0", "id": id_, "source": source, "type": kind, **more}
    return [(f"ce-{name}", value) for name, value in known.items()]


def as_text(value: object) -> str:
    """Read a text column that the database may keep as bytes."""
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray | memoryview) else str(value)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that is dead and not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
