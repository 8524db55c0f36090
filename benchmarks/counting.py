"""What a message costs on the wire, counted exactly: the protocols of PostgreSQL, MariaDB and AMQP, read by a proxy.

The same counter serves every library and driver. A statement is an Execute or a simple Query, BEGIN and COMMIT among them; a
database round trip is a Sync, a Flush or a simple Query. Commits are PostgreSQL's own count, `pg_stat_database.xact_commit`.
SQLite has no wire: there the worker counts what its engines execute and commit.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import msgspec
from msgspec import Struct

from benchmarks.crew import crew
from benchmarks.measuring import check, through, work
from benchmarks.rows import MARIADB, SQLITE, BenchmarkRow
from benchmarks.scenario import order_ids
from benchmarks.stages import Backend
from benchmarks.wire import Ears, proxied

SSL_REQUESTS = (b"\x04\xd2\x16\x2f", b"\x04\xd2\x16\x30")  # also for GSSAPI
SSL_REQUEST_LENGTH, HEADER_LENGTH, AMQP_HEADER = 8, 5, 8
FRAME_HEADER, FRAME_END, METHOD = 7, 1, 1
PACKET_HEADER, QUERY = 4, 3
TRIPS = (b"Q", b"S", b"H")
STATEMENTS = (b"Q", b"E")
_CLIENT = {(60, 40): "publishes", (60, 80): "acks"}
_SERVER = {(60, 80): "confirms"}


class Costs(Struct, frozen=True, kw_only=True):
    """For one message: SQL statements, database round trips, commits; and AMQP's publishes, confirms and acknowledgements."""

    statements: float
    trips: float
    commits: float
    publishes: float
    confirms: float
    acks: float


class PostgreSQLEars(Ears):
    """Counts statements and round trips."""

    def __init__(self, counted: Counter[str]) -> None:
        """Count into this counter."""
        self._counted = counted
        self._rest = b""
        self._started = False

    def answer(self, data: bytes) -> bytes | None:
        """Refuse encryption, which could not be read."""
        return b"N" if len(data) == SSL_REQUEST_LENGTH and data[4:] in SSL_REQUESTS else None

    def client(self, data: bytes) -> None:
        """Read whole messages: after the first, each has a type and a length."""
        self._rest += data
        while True:
            kind = 1 if self._started else 0
            if len(self._rest) < kind + 4:
                return
            length = kind + int.from_bytes(self._rest[kind : kind + 4], "big")
            if len(self._rest) < length:
                return
            first, self._rest = self._rest[:1], self._rest[length:]
            if self._started:
                self._counted["statements"] += first in STATEMENTS
                self._counted["trips"] += first in TRIPS
            self._started = True


class MariaDBEars(Ears):
    """Counts statements and round trips, which are one where statements are sent as text."""

    def __init__(self, counted: Counter[str]) -> None:
        """Count into this counter."""
        self._counted = counted
        self._rest = b""

    def client(self, data: bytes) -> None:
        """Read whole packets: a length of three bytes and a number, which is 0 where a command begins."""
        self._rest += data
        while len(self._rest) >= PACKET_HEADER:
            length = PACKET_HEADER + int.from_bytes(self._rest[:3], "little")
            if len(self._rest) < length:
                return
            if self._rest[3] == 0:
                self._counted["trips"] += 1
                self._counted["statements"] += self._rest[PACKET_HEADER] == QUERY
            self._rest = self._rest[length:]


class AMQPEars(Ears):
    """Counts publishes, confirms and acknowledgements, by their frames."""

    def __init__(self, counted: Counter[str]) -> None:
        """Count into this counter."""
        self._counted = counted
        self._said, self._heard = b"", b""
        self._started = False

    def client(self, data: bytes) -> None:
        """Read the client's frames, after the protocol's name."""
        self._said += data
        if not self._started and len(self._said) >= AMQP_HEADER:
            self._said, self._started = self._said[AMQP_HEADER:], True
        if self._started:
            self._said = self._read(self._said, _CLIENT)

    def server(self, data: bytes) -> None:
        """Read the server's frames."""
        self._heard = self._read(self._heard + data, _SERVER)

    def _read(self, data: bytes, names: dict[tuple[int, int], str]) -> bytes:
        start = 0
        while len(data) - start >= FRAME_HEADER:
            length = FRAME_HEADER + int.from_bytes(data[start + 3 : start + 7], "big") + FRAME_END
            if len(data) - start < length:
                break
            if data[start] == METHOD:
                method = (
                    int.from_bytes(data[start + 7 : start + 9], "big"),
                    int.from_bytes(data[start + 9 : start + 11], "big"),
                )
                if method in names:
                    self._counted[names[method]] += 1
            start += length
        return data[start:]


@asynccontextmanager
async def _counting(url: str, listen: Callable[[], Ears]) -> AsyncIterator[str]:
    """Put a counting proxy before a server; nothing where a row has none."""
    if not url:
        yield ""
        return
    async with proxied(url, listen=listen) as through_it:
        yield through_it


async def count_costs(stage: Backend, row: BenchmarkRow, count: int, concurrency: int, *, processes: int = 1) -> Costs:
    """Run a row once through proxies that count; its speed means nothing. Raises RunFailed."""
    tag, counted = uuid4().hex[:8], Counter[str]()
    await stage.fill(row, order_ids(tag, count))
    before = await stage.commits()
    job = msgspec.structs.replace(stage.job(row, concurrency), counting=row.backend == SQLITE)
    async with AsyncExitStack() as stack:
        listen = MariaDBEars if row.backend == MARIADB else PostgreSQLEars
        database = await stack.enter_async_context(_counting(job.database, lambda: listen(counted)))
        broker = await stack.enter_async_context(_counting(job.broker, lambda: AMQPEars(counted)))
        workers = await stack.enter_async_context(crew(through(job, database=database, broker=broker), processes))
        await workers.ready()
        _, usages = await work(lambda: stage.arrived(row), workers, count, begun=counted.clear)
    counted["statements"] += sum(usage.statements for usage in usages)
    commits = await stage.commits() - before + sum(usage.commits for usage in usages)
    check(row, await stage.totals(row, tag), count)
    names = ("statements", "trips", "publishes", "confirms", "acks")
    return Costs(commits=commits / count, **{name: counted[name] / count for name in names})
