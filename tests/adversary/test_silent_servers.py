"""Hosts, networks and disks that fail without a word: other workers go on, and everything comes out as zeros."""

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy.engine import make_url

from tests.adversary.fault_runs import Plan, Progress, fault_run
from tests.adversary.harness import Place, Worker, opened_place, place_command
from tests.servers.available import MEASURED, RABBITMQ, need, on_postgresql, own_postgresql
from tests.servers.pgbouncer import pgbouncer
from tests.servers.swallowing import Swallower, swallowing

WITHIN = 180.0
"""Seconds for other workers to take over from one that has vanished; far less is legal, see `longest_silence`."""
SILENT = 20.0
BIG = 64
"""MiB of the small disk; a new database takes about 8."""


@asynccontextmanager
async def opened(postgresql_url: str, driver: str = "asyncpg", *, broker: str = "", lease: int = 5) -> AsyncIterator[Place]:
    """Make a place whose workers use this driver, and a queue in RabbitMQ, or in the database when no broker is given."""
    async with opened_place(postgresql_url, broker) as place:
        place.store = with_driver(place.store, driver)
        place.transport = f"{place.transport}&lease={lease}" if broker else with_driver(place.transport, driver)
        yield place


def with_driver(url: str, driver: str) -> str:
    """Name the driver in a URL."""
    return url.replace("postgresql://", f"postgresql+{driver}://")


def through(place: Place, url: str) -> None:
    """Have the workers reach the database by way of another URL; the audit goes straight to it."""
    way = make_url(url)

    def led(named: str) -> str:
        return make_url(named).set(host=way.host, port=way.port).render_as_string(hide_password=False)

    place.settings["ADVERSARY_STORE"] = led(place.store)
    if place.transport.startswith("postgresql"):
        place.settings["ADVERSARY_TRANSPORT"] = led(place.transport)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("driver", "queue"), [("asyncpg", "rabbitmq"), ("psycopg", "rabbitmq"), ("asyncpg", "sql")])
async def test_pgbouncer_whose_server_connections_are_killed(postgresql_url: str, driver: str, queue: str) -> None:
    """Two processes behind PgBouncer in transaction mode, killed as well; then a janitor behind it does all its tasks."""
    broker = need(RABBITMQ) if queue == "rabbitmq" else ""
    database = make_url(postgresql_url).database

    async def kill(place: Place, progress: Progress) -> None:
        while progress.handled < progress.total:
            await asyncio.sleep(0.5)
            ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN"
            some = f"(SELECT pid FROM pg_stat_activity WHERE datname = '{database}' AND application_name = 'onceonly' LIMIT 2)"
            await place.execute(f"{ended} {some}")

    with pgbouncer(postgresql_url) as pooler:
        async with opened(postgresql_url, driver, broker=broker) as place:
            through(place, pooler)
            plan = Plan(messages=2_000, processes=2, kill_every=2.0)
            await fault_run(place, plan, kill, name=f"PgBouncer, {driver}, {queue}, kills of its sessions")
            done = await asyncio.to_thread(place_command, place, "janitor", place.program)
            assert "done" in done


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("driver", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.soak)])
async def test_a_worker_whose_host_stops_in_a_transaction(postgresql_url: str, driver: str) -> None:
    """It says nothing more and closes nothing, while it holds claims; another one handles everything."""
    async with opened(postgresql_url, driver, broker=need(RABBITMQ)) as place:
        place.settings["ADVERSARY_TIMEOUT"] = "2"
        stopped = place.start("--processes", "2")
        await stopped.ready()
        await place.good(600)
        await stop_in_a_transaction(place, stopped)
        other = place.start("--processes", "2")
        await other.ready()
        since = await place.until(lambda: all_handled(place), "everything is handled", patience=WITHIN)
        MEASURED.append(f"a host stopped in a transaction, {driver}: all handled {since:.0f} s later")
        await place.audit(handled=600, dead=0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("driver", ["asyncpg", pytest.param("psycopg", marks=pytest.mark.soak)])
async def test_a_worker_whose_network_vanishes(driver: str) -> None:
    """Its host is in a network of its own, whose cable is cut: no FIN, no RST, no acknowledgement. The server notices."""
    with own_postgresql() as server, network() as (space, here):
        server.start(listening=f"127.0.0.1,{here}", trusting=f"{here}/30")
        async with opened(server.url, driver) as place:
            ways = {
                name: make_url(url).set(host=here).render_as_string(hide_password=False)
                for name, url in (("ADVERSARY_STORE", place.store), ("ADVERSARY_TRANSPORT", place.transport))
            }
            gone = place.start("--processes", "2", environment=ways, inside=("ip", "netns", "exec", space))
            await place.until(lambda: says(gone, "worker started"), "a worker in the other network has started")
            await place.good(600)
            await until_in_a_transaction(place)
            run("ip", "link", "set", f"{space}a", "down")
            other = place.start("--processes", "2")
            await other.ready()
            since = await place.until(lambda: all_handled(place), "everything is handled", patience=WITHIN)
            MEASURED.append(f"a host without a network, {driver}: all handled {since:.0f} s later")
            await place.audit(handled=600, dead=0)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("driver", "queue"), [("asyncpg", "rabbitmq"), ("psycopg", "sql")])
async def test_a_database_that_is_silent_for_a_while(postgresql_url: str, driver: str, queue: str) -> None:
    """Every connection is swallowed, and new ones as well, for some seconds; those from before stay so."""
    broker = need(RABBITMQ) if queue == "rabbitmq" else ""
    async with swallowing(postgresql_url) as (swallower, way), opened(postgresql_url, driver, broker=broker) as place:
        through(place, way)
        await fault_run(
            place, Plan(messages=2_000, processes=2), Silence(swallower), name=f"silent PostgreSQL, {driver}, {queue}"
        )


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_broker_that_is_silent_for_a_while(postgresql_url: str) -> None:
    """The same between the workers and RabbitMQ."""
    broker = need(RABBITMQ)
    async with swallowing(broker) as (swallower, way), opened(postgresql_url, broker=broker) as place:
        place.settings["ADVERSARY_TRANSPORT"] = place.transport.replace(broker, way)
        await fault_run(place, Plan(messages=2_000, processes=2), Silence(swallower), name="silent RabbitMQ")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("driver", "which"), [("asyncpg", "database"), ("psycopg", "database"), ("asyncpg", "broker")])
async def test_a_stop_while_a_server_is_silent(postgresql_url: str, driver: str, which: str) -> None:
    """It ends by itself, within its grace time and what it has to close."""
    broker = need(RABBITMQ)
    server = postgresql_url if which == "database" else broker
    async with swallowing(server) as (swallower, way), opened(postgresql_url, driver, broker=broker) as place:
        if which == "database":
            through(place, way)
        else:
            place.settings["ADVERSARY_TRANSPORT"] = place.transport.replace(broker, way)
        worker = place.start("--processes", "2")
        await worker.ready()
        await place.good(600)
        await place.until(lambda: some_handled(place), "some are handled")
        swallower.break_connections()
        await swallower.swallowed.wait()
        await asyncio.sleep(1.0)  # all that is under way is in vain by now
        assert await asyncio.to_thread(worker.stop) == 0, place.said()[-6000:]


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_disk_that_is_full() -> None:
    """No table grows on a small disk for a while; nothing is counted against a message."""

    async def fill(place: Place, progress: Progress) -> None:
        await progress.until(0.2)
        filler = disk / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(65536))
        await place.until(lambda: says(place.workers[0], "No space left on device"), "a disk that is full is reported")
        await asyncio.sleep(5.0)
        filler.unlink()

    with own_postgresql() as server, small_disk() as disk:
        server.start()
        await on_postgresql(f"CREATE TABLESPACE small LOCATION '{disk}'", url=server.url)
        await on_postgresql("CREATE DATABASE small TABLESPACE small", url=server.url)
        async with opened(server.url.replace("/postgres", "/small"), broker=need(RABBITMQ)) as place:
            await fault_run(place, Plan(messages=6_000, processes=2), fill, name="a full disk under PostgreSQL")


class Silence:
    """Swallows everything for a while, once a third of the messages are handled."""

    def __init__(self, swallower: Swallower) -> None:
        self._swallower = swallower

    async def __call__(self, place: Place, progress: Progress) -> None:
        """Be silent."""
        await progress.until(0.3)
        self._swallower.break_connections()
        await asyncio.sleep(SILENT)
        self._swallower.keep_connections()


async def all_handled(place: Place) -> bool:
    """Tell whether everything sent is handled."""
    return await place.handled() == place.sent


async def some_handled(place: Place) -> bool:
    """Tell whether anything is handled."""
    return await place.handled() > 0


async def says(worker: Worker, words: str) -> bool:
    """Tell whether a worker has logged this."""
    return words in worker.log.read_text(errors="replace")


async def in_a_transaction(place: Place) -> bool:
    """Tell whether a session has claimed messages and waits for its client."""
    found = await place.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'onceonly'"
        " AND state = 'idle in transaction' AND backend_xid IS NOT NULL"
    )
    return bool(found)


async def until_in_a_transaction(place: Place) -> None:
    """Wait for that."""
    await place.until(lambda: in_a_transaction(place), "a worker is in a transaction")


async def stop_in_a_transaction(place: Place, worker: Worker) -> None:
    """Stop a worker, with all its processes, at a moment when it holds claims."""
    while True:
        await until_in_a_transaction(place)
        os.killpg(worker.process.pid, signal.SIGSTOP)
        await asyncio.sleep(0.3)  # what it has sent is executed by then
        if await in_a_transaction(place):
            return
        os.killpg(worker.process.pid, signal.SIGCONT)


@contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a small file system that belongs to the server's user; skips the test where that is not allowed."""
    with TemporaryDirectory(prefix="onceonly-disk-") as name:
        allowed("mount", "-t", "tmpfs", "-o", f"size={BIG}m", "none", name)
        try:
            place = Path(name) / "tables"
            place.mkdir()
            shutil.chown(place, "postgres", "postgres")
            Path(name).chmod(0o755)
            yield place
        finally:
            run("umount", "--lazy", name)


@contextmanager
def network() -> Iterator[tuple[str, str]]:
    """Make a network of its own, with a cable to here; gives its name, and the address of this end."""
    name, number = f"oo{os.getpid() % 100_000}", os.getpid() % 250
    here, there = f"10.213.{number}.1", f"10.213.{number}.2"
    allowed("ip", "netns", "add", name)
    try:
        allowed("ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b", "netns", name)
        run("ip", "address", "add", f"{here}/30", "dev", f"{name}a")
        run("ip", "link", "set", f"{name}a", "up")
        run("ip", "-n", name, "address", "add", f"{there}/30", "dev", f"{name}b")
        run("ip", "-n", name, "link", "set", f"{name}b", "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        yield name, here
    finally:
        run("ip", "netns", "del", name)


def allowed(*words: str) -> None:
    """Run a command that only some users of some machines may; skips the test where it is refused."""
    if shutil.which(words[0]) is None or subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip(f"{' '.join(words[:3])} is not allowed on this machine")


def run(*words: str) -> None:
    """Run a command."""
    subprocess.run(words, check=True, capture_output=True)
