"""The servers that tests use where they answer: a missing one is a loud skip, and with CI=true a failure.

Every test session makes a database of its own on a server, and drops it at the end. Where a server is, the environment says:
ONCEONLY_POSTGRESQL, ONCEONLY_MARIADB, ONCEONLY_RABBITMQ, ONCEONLY_REDIS and ONCEONLY_NATS are URLs. With
ONCEONLY_QUICK=1, as in `make test-quick`, a test is skipped when it asks for a server, an emulator or a browser, or starts a
program.
"""

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from redis import Redis
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from examples.shop_demo.rabbitmq import free_port
from tests.servers.probes import LIMIT, is_silent


class Server(NamedTuple):
    """A server, by its name, the variable that says where it is, and where it is otherwise."""

    name: str
    variable: str
    default: str

    @property
    def url(self) -> str:
        """Return its URL; skips the test in a quick run."""
        want(self.name)
        return os.environ.get(self.variable, self.default)

    def answers(self) -> bool:
        """Tell whether something listens there."""
        place = urlsplit(self.url)
        try:
            socket.create_connection((place.hostname or "127.0.0.1", place.port or 0), timeout=2).close()
        except OSError:
            return False
        return True


POSTGRESQL = Server("PostgreSQL", "ONCEONLY_POSTGRESQL", "postgresql://root@127.0.0.1:5432/postgres")
MARIADB = Server("MariaDB", "ONCEONLY_MARIADB", "mysql://root@127.0.0.1:3306/test")
RABBITMQ = Server("RabbitMQ", "ONCEONLY_RABBITMQ", "amqp://guest:guest@127.0.0.1:5672/")
REDIS = Server("Redis", "ONCEONLY_REDIS", "redis://127.0.0.1:6379")
NATS = Server("NATS", "ONCEONLY_NATS", "nats://127.0.0.1:4222")

SERVERS = (POSTGRESQL, MARIADB, RABBITMQ, REDIS, NATS)

POSTGRESQL_PROGRAMS = "ONCEONLY_POSTGRESQL_PROGRAMS"
"""The variable that names the directory of PostgreSQL's own programs; otherwise they are Debian's, or on the path."""

MISSING: set[Server] = set()
"""What this session looked for and did not find; the summary line names it."""

MEASURED: list[str] = []
"""What this session measured and does not judge; a few lines at its end."""


HANGING: list[str] = []
"""What to say of servers that accept connections and do nothing; with CI=true it ends the session."""

_WORKING: dict[str, Server] = {}
"""The servers that have answered this process, by their URLs."""


def need(server: Server) -> str:
    """Return a server's URL; skips the test, or fails it with CI=true, when it does not answer.

    Its first use in a process is a round trip, so that one that hangs is found once and not by every test.
    """
    url = server.url
    if server in MISSING or not server.answers():
        raise gone(
            server, f"{server.name} does not answer at {urlsplit(url).hostname}: run `make servers`, or set {server.variable}"
        )
    if url not in _WORKING:
        if is_silent(url):
            raise gone(server, note_hanging(server))
        _WORKING[url] = server
    return url


def want(name: str) -> None:
    """Skip the test in a quick run. All that gives a server, an emulator or a browser to tests calls this first."""
    if is_quick():
        pytest.skip(f"needs {name}, and this is a quick run")


def is_quick() -> bool:
    """Tell whether this is a quick run, which does without servers."""
    return os.environ.get("ONCEONLY_QUICK", "") not in {"", "0"}


def note_hanging(server: Server) -> str:
    """Note that a server hangs; gives the words for it."""
    place = urlsplit(server.url)
    words = (
        f"{server.name} accepts connections at {place.hostname}:{place.port}, and does not answer within {LIMIT:g} s:"
        f" restart it, or set {server.variable}"
    )
    HANGING.append(words)
    return words


def look_for_hanging() -> None:
    """Note those of the servers in use that hang by now; twice in a row, as tests may be hard on them."""
    for url, server in tuple(_WORKING.items()):
        if server.answers() and is_silent(url, times=2):
            del _WORKING[url]
            note_hanging(server)


def gone(server: Server, reason: str) -> BaseException:
    """Return what skips a test for want of a server, loudly; with CI=true it fails the test."""
    MISSING.add(server)
    return pytest.fail.Exception(reason) if is_ci() else pytest.skip.Exception(reason)


def missing_lines(missing: Collection[Server]) -> list[str]:
    """Return the last lines about what is missing, and what `make servers` would add."""
    lines = []
    for server in sorted(missing):
        problem = "does not answer" if "://" in server.default else "is not installed"
        lines.append(f"!!! NOT TESTED: {server.name} {problem}, see {server.variable}")
    if addable := [server.name for server in SERVERS if server in missing and server.variable not in os.environ]:
        lines.append(f"!!! `make servers` installs and starts {', '.join(addable)} (Debian or Ubuntu, as root)")
    return lines


def is_ci() -> bool:
    """Tell whether nothing may be missing here."""
    return os.environ.get("CI", "").lower() in {"true", "1"}


@contextmanager
def postgresql_database() -> Iterator[str]:
    """Make a database on the PostgreSQL server, and drop it; gives its URL, with the default driver."""
    server = make_url(need(POSTGRESQL))
    name = f"onceonly_test_{uuid4().hex[:12]}"
    run_apart(on_postgresql(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        run_apart(on_postgresql(f"DROP DATABASE {name} WITH (FORCE)"))


async def on_postgresql(*statements: str, url: str = "") -> None:
    """Run statements past the library, each in its own transaction."""
    place = make_url(url or POSTGRESQL.url).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(place, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            for statement in statements:
                await connection.execute(text(statement))
    finally:
        await engine.dispose()


def run_apart(work: Coroutine[None, None, None]) -> None:
    """Run a coroutine to its end in a thread, because an asynchronous test or fixture may be what asks for the database."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, work).result()


@contextmanager
def mariadb_database() -> Iterator[str]:
    """Make a database on the MariaDB server, and drop it; gives its URL."""
    server = make_url(need(MARIADB))
    name = f"onceonly_test_{uuid4().hex[:12]}"
    run_apart(on_mariadb(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        run_apart(on_mariadb(f"DROP DATABASE {name}"))


async def on_mariadb(*statements: str, url: str = "") -> None:
    """Run statements past the library, each in its own transaction."""
    place = make_url(url or MARIADB.url).set(drivername="mysql+asyncmy", query={})
    engine = create_async_engine(place, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            for statement in statements:
                await connection.exec_driver_sql(statement)
    finally:
        await engine.dispose()


@contextmanager
def redis_place() -> Iterator[str]:
    """Make a place behind a prefix of its own on the Redis server, and empty it; gives its URL."""
    prefix = f"onceonly-test-{uuid4().hex}:"
    with Redis.from_url(need(REDIS)) as client:
        try:
            yield f"{REDIS.url}/0?prefix={prefix}"
        finally:
            for key in client.scan_iter(match=f"{prefix}*", count=1000):
                client.delete(key)


class OwnPostgresql:
    """A PostgreSQL server of this test's own, made from the installed binaries; it may be stopped and started at will."""

    def __init__(self, binaries: Path, folder: Path, primary: "OwnPostgresql | None" = None) -> None:
        self._binaries = binaries
        self._data = folder / "data"
        self._log = folder / "log"
        self.port = free_port()
        self.url = f"postgresql://onceonly@127.0.0.1:{self.port}/postgres"
        if primary is None:
            self._run("initdb", "--pgdata", self._data, "--username", "onceonly", "--auth", "trust", "--no-sync")
        else:
            copy = ("--checkpoint", "fast", "--no-sync", "--write-recovery-conf", "--dbname", primary.url)
            self._run("pg_basebackup", "--pgdata", self._data, *copy)

    def start(self, *settings: str, standby: bool = False, listening: str = "127.0.0.1", trusting: str = "") -> None:
        """Start it with these settings, `name=value`, and wait until it answers.

        It listens at these addresses, also for clients of another network that is trusted.
        """
        if trusting:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {trusting} trust\n")
        if standby:
            signal = self._data / "standby.signal"
            signal.touch()
            shutil.chown(signal, *_owner())
        named = ("unix_socket_directories=", "shared_buffers=16MB", f"listen_addresses={listening}", *settings)
        options = " ".join([f"-p {self.port}", *(f"-c {each}" for each in named)])
        self._run("pg_ctl", "--pgdata", self._data, "--log", self._log, "--wait", "--options", options, "start")

    def promote(self) -> None:
        """Make a standby the primary, and wait until it is."""
        self._run("pg_ctl", "--pgdata", self._data, "--wait", "promote")

    def stop(self, how: str = "fast") -> None:
        """Stop it: `fast` ends its connections, `immediate` is a crash."""
        self._run("pg_ctl", "--pgdata", self._data, "--wait", "--mode", how, "stop")

    def _run(self, program: str, *arguments: object) -> None:
        command = [str(self._binaries / program), *map(str, arguments)]
        user = "postgres" if os.geteuid() == 0 else None  # it refuses to run as root
        subprocess.run(command, check=True, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=self._data.parent)


@contextmanager
def own_postgresql(replicated: OwnPostgresql | None = None) -> Iterator[OwnPostgresql]:
    """Make a server that is not started yet, and remove it at the end; a loud skip where there are no binaries.

    Started as a standby, one with `replicated` follows that server, whose commits of now it has.
    """
    want(POSTGRESQL.name)
    named = os.environ.get(POSTGRESQL_PROGRAMS)
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = Path(named, "initdb") if named else installed[-1] if installed else shutil.which("initdb")
    if found is None:
        raise gone(POSTGRESQL, "PostgreSQL's own programs, initdb and pg_ctl, are not installed")
    with TemporaryDirectory(prefix="onceonly-postgresql-", ignore_cleanup_errors=True) as name:
        shutil.chown(name, *_owner())
        server = OwnPostgresql(Path(found).parent, Path(name), replicated)
        try:
            yield server
        finally:
            with suppress(subprocess.CalledProcessError):
                server.stop("immediate")


def _owner() -> tuple[str | int, str | int]:
    return ("postgres", "postgres") if os.geteuid() == 0 else (os.geteuid(), os.getegid())
