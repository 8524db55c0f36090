"""`python -m benchmarks.idle`: what idle processes cost a SQL queue, and how soon one of them handles a lone message.

Starts `onceonly run` processes on a new database and counts its transactions in PostgreSQL's statistics or MariaDB's: those of
the first seconds, in which a process opens what it needs and does its clean-up tasks once, and those of the time after that. A
count that begins with the start has both, and is several times higher.

Then it sends single messages with pauses in between, and measures until the handler starts: from the call of `send`, which
commits the message, and from its return.
"""

import asyncio
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import uuid4

import msgspec
import typer
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from onceonly import Endpoint, message
from onceonly.assembly import open_transport
from onceonly.model.message import Message, Send

ENDPOINT = "idle"
STARTED_SECONDS = 60.0
SETTLED_SECONDS = 15.0
"""For how long transactions are counted as those of the start, once a first message is handled."""
PAUSE_SECONDS = 0.7
"""Between two messages: longer than the short pauses of a receiver that has just been busy."""
ARRIVAL_SECONDS = 30.0
URL, PORT = "ONCEONLY_IDLE_URL", "ONCEONLY_IDLE_PORT"
PROGRAM = "benchmarks.idle:idle"
_ONCEONLY = (sys.executable, "-m", "onceonly")

_COUNTED = {
    "postgresql": "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = :name",
    "mysql": (
        "SELECT SUM(CAST(variable_value AS SIGNED)) FROM information_schema.global_status"
        " WHERE variable_name IN ('COM_COMMIT', 'COM_ROLLBACK') AND :name <> ''"
    ),
}
"""MariaDB counts those of all databases: let nothing else run."""
_ADMIN = {"postgresql": "postgres", "mysql": "mysql"}
_DRIVERS = {"postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@message("idle.ping")
class Ping(msgspec.Struct):
    """A message, by its number."""

    number: int


class IdleResults(msgspec.Struct, frozen=True, kw_only=True):
    """Transactions per second and process while nothing happens, and the milliseconds until a lone message is handled.

    `starting` is how many transactions a process had before, from its start on.
    """

    processes: int
    starting: float
    transactions: float
    from_call: "Quantiles"
    from_commit: "Quantiles"


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    """Of milliseconds."""

    p50: float
    p99: float
    longest: float

    @classmethod
    def of(cls, seconds: list[float]) -> "Quantiles":
        """Sort, and take the nearest rank."""
        times = sorted(1000 * each for each in seconds)
        return cls(
            p50=round(statistics.median(times), 2),
            p99=round(times[round(0.99 * (len(times) - 1))], 2),
            longest=round(times[-1], 2),
        )


if URL in os.environ:  # in a process that this module has started
    idle = Endpoint(ENDPOINT, store=os.environ[URL], transport=os.environ[URL])
    _out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    @idle.handler
    async def handle(ping: Ping) -> None:
        """Report the arrival."""
        _out.sendto(str(ping.number).encode(), ("127.0.0.1", int(os.environ[PORT])))


class Arrivals(asyncio.DatagramProtocol):
    """The times at which handlers report."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[tuple[int, float]] = asyncio.Queue()

    def datagram_received(self, data: bytes, _sender: object) -> None:
        """Note the time."""
        self.came.put_nowait((int(data), time.perf_counter()))


@app.command()
def main(
    *,
    server: Annotated[str, typer.Option(help="A server; the database in the URL is not used.")] = "postgresql://root@127.0.0.1",
    processes: Annotated[int, typer.Option(min=1)] = 2,
    seconds: Annotated[float, typer.Option(min=1, help="How long to count transactions.")] = 60.0,
    messages: Annotated[int, typer.Option(min=10)] = 60,
) -> None:
    """Measure, and print JSON."""
    print(msgspec.json.format(msgspec.json.encode(asyncio.run(measure(server, processes, seconds, messages)))).decode())


async def measure(server: str, processes: int, seconds: float, messages: int) -> IdleResults:
    """Start processes on a new database, and measure them."""
    kind = make_url(server).get_backend_name().replace("mariadb", "mysql")
    name = f"onceonly_idle_{uuid4().hex[:8]}"
    admin = make_url(server).set(drivername=_DRIVERS[kind], database=_ADMIN[kind])
    engine = create_async_engine(admin, isolation_level="AUTOCOMMIT")
    url = make_url(server).set(database=name).render_as_string(hide_password=False)
    try:
        async with engine.connect() as connection:
            await connection.execute(text(f"CREATE DATABASE {name}"))
            try:
                await _create_tables(url)
                before = await _count(connection, kind, name)
                async with running(url, processes) as arrivals:
                    await asyncio.sleep(SETTLED_SECONDS)
                    settled = await _count(connection, kind, name)
                    await asyncio.sleep(seconds)
                    transactions = (await _count(connection, kind, name) - settled) / seconds / processes
                    times = await _send_each(url, arrivals, messages)
            finally:
                await connection.execute(text(f"DROP DATABASE {name}"))
    finally:
        await engine.dispose()
    return IdleResults(
        processes=processes,
        starting=round((settled - before) / processes, 1),
        transactions=round(transactions, 2),
        from_call=Quantiles.of([started - called for called, _, started in times]),
        from_commit=Quantiles.of([started - committed for _, committed, started in times]),
    )


@asynccontextmanager
async def running(url: str, processes: int) -> AsyncIterator[Arrivals]:
    """Run idle processes; gives what their handlers report."""
    loop = asyncio.get_running_loop()
    listening, arrivals = await loop.create_datagram_endpoint(Arrivals, local_addr=("127.0.0.1", 0))
    environment = {**os.environ, URL: url, PORT: str(listening.get_extra_info("sockname")[1])}
    started = [await asyncio.create_subprocess_exec(*_ONCEONLY, "run", PROGRAM, env=environment) for _ in range(processes)]
    try:
        await _first(url, arrivals)
        yield arrivals
    finally:
        for each in started:
            each.terminate()
        await asyncio.gather(*(each.wait() for each in started))
        listening.close()


async def _create_tables(url: str) -> None:
    environment = {**os.environ, URL: url, PORT: "0"}
    created = await asyncio.create_subprocess_exec(*_ONCEONLY, "schema", "create", PROGRAM, env=environment, stdout=2)
    if await created.wait():
        sys.exit("the tables cannot be created")


async def _first(url: str, arrivals: Arrivals) -> None:
    """Wait until a message is handled: the processes are up."""
    async with open_transport(url, ENDPOINT) as transport, asyncio.timeout(STARTED_SECONDS):
        while True:
            answers = await transport.send([_ping(-1)])
            if answers[0].name == "TAKEN":
                break
            await asyncio.sleep(0.1)  # the queue is declared by the first process
        await arrivals.came.get()


async def _count(connection: AsyncConnection, kind: str, name: str) -> int:
    return int((await connection.execute(text(_COUNTED[kind]), {"name": name})).scalar_one())


async def _send_each(url: str, arrivals: Arrivals, messages: int) -> list[tuple[float, float, float]]:
    """Return for each message when `send` was called, when it returned, and when the handler started."""
    times = []
    async with open_transport(url, ENDPOINT) as transport:
        for number in range(messages):
            await asyncio.sleep(PAUSE_SECONDS)
            called = time.perf_counter()
            await transport.send([_ping(number)])
            committed = time.perf_counter()
            async with asyncio.timeout(ARRIVAL_SECONDS):
                while (arrival := await arrivals.came.get())[0] != number:
                    pass
            times.append((called, committed, arrival[1]))
    return times


def _ping(number: int) -> Send:
    body = msgspec.json.encode(Ping(number))
    return Send(message=Message(id=uuid4().hex, source="benchmark", type="idle.ping", body=body), to=ENDPOINT)


if __name__ == "__main__":
    app()
