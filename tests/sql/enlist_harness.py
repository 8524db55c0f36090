"""What the tests of `enlist` share on every database: an endpoint, sessions of the user's own, and a queue that listens."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, create_engine, event, select
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from onceonly import Endpoint, WorkerSettings
from onceonly.assembly import open_store, open_transport
from onceonly.endpoint.host import host_of
from onceonly.model.record import Record
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.environment import LIVE, Environment, SystemClock
from onceonly.runtime.observe.observer import Observer, Observers, Point, PortCall
from tests import ROOT
from tests.sql.harness import Order

DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}
LATER = 1 << 52
HOUR = 3_600_000
PATIENCE = 20.0


@dataclass
class OrderPlaced:
    """An event."""

    order_id: str


@dataclass
class PlaceOrder:
    """A command that nobody sends here; an endpoint that runs has a handler."""

    order_id: str


class HoursAhead:
    """A clock for which everything stored now was stored long ago."""

    def __init__(self, hours: int) -> None:
        self._hours = hours

    def now(self) -> int:
        """Return the time in so many hours."""
        return SystemClock().now() + self._hours * HOUR


AHEAD, FAR_AHEAD = Environment(clock=HoursAhead(1)), Environment(clock=HoursAhead(2))


class Watch:
    """Lets a test wait until a port call has returned so often."""

    def __init__(self) -> None:
        self.calls: Counter[Point] = Counter()
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count the call once it has returned."""
        yield
        async with self._changed:
            self.calls[call.point] += 1
            self._changed.notify_all()

    async def until(self, point: Point, count: int = 1) -> None:
        """Return when it has."""
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(lambda: self.calls[point] >= count)


class Shop:
    """The endpoint `shop` on a database, and the sink of what it publishes."""

    def __init__(self, store: str, transport: str, sink: Transport) -> None:
        self.store, self.transport, self.sink = store, transport, sink
        self.endpoint = self.another()
        self.watch = Watch()
        self.engine = engine_of(store)
        self.sessions = async_sessionmaker(self.engine)

    def another(self, **settings: Any) -> Endpoint:
        """Make the endpoint as another process has it."""
        return endpoint(self.store, self.transport, **settings)

    def running(self, *also: Observer, environment: Environment = LIVE) -> AbstractAsyncContextManager[None]:
        """Run the endpoint."""
        return host_of(self.endpoint).running(observer=Observers(self.watch, *also), environment=environment)

    async def place(self, *orders: str) -> None:
        """Place orders as a user's program does, in one transaction."""
        async with self.sessions.begin() as session:
            self.add(session, *orders)

    def add(self, session: AsyncSession | Session, *orders: str) -> None:
        """Add orders, and publish each."""
        outgoing = self.endpoint.enlist(session)
        for order in orders:
            session.add(Order(id=order))
            outgoing.publish(OrderPlaced(order))

    async def arrived(self, count: int) -> list[tuple[str, str]]:
        """Wait until this many messages arrived; gives their bodies and ids, sorted."""
        found: list[tuple[str, str]] = []
        async with asyncio.timeout(PATIENCE):
            while len(found) < count:
                taken = await self.sink.receive(100, 1.0)
                found += [(delivery.body.decode(), dict(delivery.headers)["ce-id"]) for delivery in taken]
                await self.sink.ack(taken)
        return sorted(found)

    async def bodies(self, count: int) -> list[str]:
        """Wait for messages; gives the orders they are about."""
        return [body.split('"')[3] for body, _ in await self.arrived(count)]

    async def nothing_waits(self) -> bool:
        """Tell whether the sink is empty."""
        return await self.sink.receive(1, 0) == ()

    async def orders(self) -> list[str]:
        """Read the committed orders."""
        async with self.sessions() as session:
            return list(await session.scalars(select(Order.id).order_by(Order.id)))

    async def records(self) -> tuple[Record, ...]:
        """Read the committed records."""
        async with open_store(self.endpoint.settings) as opened:
            assert opened.pending is not None
            return await opened.pending.undispatched(LATER, 1000)

    async def killed_after_commit(self, *orders: str) -> int:
        """Let a process of its own place orders, and kill itself when it has committed; gives how it ended."""
        command = (sys.executable, "-m", "tests.sql.enlist_process", self.store, self.transport, *orders)
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        return await process.wait()


def endpoint(store: str, transport: str, **settings: Any) -> Endpoint:
    """Make the endpoint `shop`."""
    shop = Endpoint("shop", store=store, transport=transport, **{"worker": WorkerSettings(wait=0.05)} | settings)

    @shop.handler
    async def ignore(order: PlaceOrder) -> None:
        """Do nothing."""

    return shop


@asynccontextmanager
async def opened_shop(store: str, *, transport: str = "", environment: Environment = LIVE) -> AsyncIterator[Shop]:
    """Open a shop on a database that has all tables; the queue is in memory unless it is named."""
    named = transport or f"memory://{uuid4().hex}"
    async with open_transport(named, "sink", environment=environment) as sink:
        await sink.declare([Topology(endpoint="sink", events=("OrderPlaced",))])
        shop = Shop(store, named, sink)
        try:
            yield shop
        finally:
            await shop.engine.dispose()


def engine_of(store: str) -> AsyncEngine:
    """Make a user's own engine for the database of a store."""
    url = make_url(store).set(query={})
    engine = create_async_engine(url.set(drivername=DRIVERS.get(url.drivername, url.drivername)))
    if url.get_backend_name() == "sqlite":  # so that savepoints work, as SQLAlchemy's page on SQLite says
        event.listen(engine.sync_engine, "connect", no_implicit_begin)
        event.listen(engine.sync_engine, "begin", begin)
    return engine


def synchronous(url: str) -> "sessionmaker[Session]":
    """Make a user's own factory of synchronous sessions."""
    return sessionmaker(create_engine(url))


def no_implicit_begin(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def begin(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")
