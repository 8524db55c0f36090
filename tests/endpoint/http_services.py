"""Two services: a shop that has payments charged, each in a process of its own, which may kill itself at a port call.

Run as a program it is one of them: `python -m tests.endpoint.http_services SIDE FOLDER PORT [CRASH_POINT]`.
"""

import asyncio
import os
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx
import uvicorn
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly import Context, Endpoint, Reject
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.observer import PortCall
from tests import ROOT

TABLES = {
    "payments": "CREATE TABLE IF NOT EXISTS charges (name TEXT); CREATE TABLE IF NOT EXISTS ledger (name TEXT)",
    "shop": "CREATE TABLE IF NOT EXISTS orders (name TEXT); CREATE TABLE IF NOT EXISTS settled (name TEXT, status INTEGER)",
}
PATIENCE = 60.0
LEASE = "?lease=1"


@dataclass
class Order:
    """Something to be paid."""

    name: str


@dataclass
class PlainOrder:
    """The same, for which the other service is asked by a plain POST: the control run."""

    name: str


@dataclass
class Charge:
    """What the shop asks for."""

    name: str


@dataclass
class Charged:
    """What the shop tells itself afterwards."""

    name: str


@dataclass
class Receipt:
    """What payments tells, and answers."""

    name: str


class KillAt:
    """Ends this process, as `kill -9` does, when it comes to a crash point for the first time."""

    def __init__(self, point: str) -> None:
        self._point = point

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Look at one call."""
        self._reach(f"before-{call.point}", call)
        yield
        self._reach(f"after-{call.point}", call)

    def _reach(self, point: str, call: PortCall) -> None:
        if point == self._point and (call.items or call.point.startswith("request-")):
            os.kill(os.getpid(), signal.SIGKILL)


def payments(folder: Path) -> Endpoint:
    """Make the service that is asked."""
    endpoint = Endpoint(
        "payments", store=f"sqlite:///{folder}/payments.db", transport=f"sqlite:///{folder}/payments-queue.db{LEASE}"
    )

    @endpoint.responder
    async def charge(asked: Charge, session: AsyncSession, context: Context) -> Receipt:
        await session.execute(text("INSERT INTO charges VALUES (:name)"), {"name": asked.name})
        if asked.name.startswith("poor"):
            raise Reject("no money")
        context.publish(Receipt(asked.name))
        return Receipt(asked.name)

    @endpoint.handler
    async def note(receipt: Receipt, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO ledger VALUES (:name)"), {"name": receipt.name})

    return endpoint


def shop(folder: Path, port: int) -> Endpoint:
    """Make the service that asks."""
    url = f"http://127.0.0.1:{port}/onceonly"
    store, transport = f"sqlite:///{folder}/shop.db", f"sqlite:///{folder}/shop-queue.db{LEASE}"
    endpoint = Endpoint("shop", store=store, transport=transport, peers=[url])

    @endpoint.handler
    async def place_order(order: Order, session: AsyncSession, context: Context) -> None:
        await session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": order.name})
        await context.http.post(f"{url}/Charge", Charge(order.name), then=Charged(order.name))

    @endpoint.handler
    async def charged(done: Charged, session: AsyncSession, context: Context) -> None:
        values = {"name": done.name, "status": context.http.response.status}
        await session.execute(text("INSERT INTO settled VALUES (:name, :status)"), values)

    @endpoint.handler
    async def place_plainly(order: PlainOrder, session: AsyncSession) -> None:
        await session.execute(text("INSERT INTO orders VALUES (:name)"), {"name": order.name})
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.post(f"http://127.0.0.1:{port}/plain", content=order.name)
        await session.execute(text("INSERT INTO settled VALUES (:name, 200)"), {"name": order.name})

    return endpoint


class Books(NamedTuple):
    """What is in the tables of both services: how often each name."""

    orders: Counter[str]
    settled: Counter[str]
    charges: Counter[str]
    ledger: Counter[str]
    waiting: int
    """Requests and responses that were not deleted."""


def books(folder: Path) -> Books:
    """Read everything."""
    names = (("shop", "orders"), ("shop", "settled"), ("payments", "charges"), ("payments", "ledger"))
    found = [Counter(name for (name,) in _read(folder, side, f"SELECT name FROM {table}")) for side, table in names]  # noqa: S608
    ((waiting,),) = _read(folder, "payments", "SELECT count(*) FROM onceonly_requests WHERE request IS NOT NULL")
    return Books(*found, waiting)


def prepare(folder: Path) -> None:
    """Make the services' own tables."""
    for side, statements in TABLES.items():
        with closing(sqlite3.connect(folder / f"{side}.db")) as connection:
            connection.executescript(statements)


def _read(folder: Path, side: str, query: str) -> Iterator[tuple[str]]:
    with closing(sqlite3.connect(folder / f"{side}.db", timeout=PATIENCE)) as connection:
        yield from connection.execute(query).fetchall()


async def until(holds: Callable[[], bool], *, patience: float = PATIENCE) -> None:
    """Look at what nobody tells until it holds, for `patience` seconds at most."""
    async with asyncio.timeout(patience):
        while not holds():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


@asynccontextmanager
async def process(side: str, folder: Path, port: int, point: str = "") -> AsyncIterator[Process]:
    """Run one of the services in a process of its own, which says "ready"; kill it at the end."""
    command = (sys.executable, "-m", "tests.endpoint.http_services", side, str(folder), str(port), point)
    started = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
    try:
        assert started.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await started.stdout.readline()
        assert line == b"ready\n" or (point and not line)
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def main(side: str, folder: Path, port: int, point: str) -> None:
    """Be one of the services, until killed."""
    endpoint = payments(folder) if side == "payments" else shop(folder, port)
    async with host_of(endpoint).running(observer=KillAt(point) if point else None):
        if side == "payments":
            await _serve(endpoint, folder, port)
        else:
            _say_ready()
            await asyncio.Event().wait()


async def _serve(endpoint: Endpoint, folder: Path, port: int) -> None:
    app = endpoint.http_app()

    async def both(scope: dict, receive: object, send: object) -> None:  # type: ignore[type-arg]
        if scope["path"] != "/plain":
            await app(scope, receive, send)  # type: ignore[arg-type]
            return
        body = (await receive())["body"].decode()  # type: ignore[operator]
        with closing(sqlite3.connect(folder / "payments.db", timeout=PATIENCE)) as connection, connection:
            connection.execute("INSERT INTO charges VALUES (?)", (body,))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})  # type: ignore[operator]
        await send({"type": "http.response.body", "body": b""})  # type: ignore[operator]

    server = uvicorn.Server(uvicorn.Config(both, host="127.0.0.1", port=port, lifespan="off", log_level="warning"))
    serving = asyncio.create_task(server.serve())
    await until(lambda: server.started)
    _say_ready()
    await serving


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
