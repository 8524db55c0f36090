"""Relays on every SQL database: what they ask for when there is nothing to do, and that several share what waits."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert

from onceonly.adapters.memory.transport import BrokerWorld, MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.algorithms.admission import StoreAdmission
from onceonly.algorithms.effects import NoArtifacts
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly.ports.bundle import RelayPorts
from onceonly.ports.environment import Clock
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly.runtime.processes.notifier import Notifier
from onceonly.runtime.relay.relay import LONGEST_IDLE_SECONDS, PAGE, Relay
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.store.leases import FEW
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import tables
from onceonly_conformance.samples import message
from tests.sql.every_database import emptied

SHOP, SINK = "shop", "sink"
LOOKS = 6
LATER = 1 << 52


class Passing:
    """Time passes by sleeping only; after so many sleeps `stop` is set."""

    def __init__(self, stop: asyncio.Event, sleeps: int) -> None:
        self.slept: list[float] = []
        self._stop, self._sleeps = stop, sleeps

    def seconds(self) -> float:
        """Return what has been slept."""
        return sum(self.slept)

    async def sleep(self, seconds: float) -> None:
        """Let it pass."""
        self.slept.append(seconds)
        if len(self.slept) >= self._sleeps:
            self._stop.set()
        await asyncio.sleep(0)


@pytest.fixture
async def database(place: str) -> AsyncIterator[Database]:
    """Open each of them, empty."""
    async with emptied(place) as database:
        yield database


@contextmanager
def asked(database: Database) -> Iterator[list[str]]:
    """Note the statements that SQLAlchemy executes on a database; what begins and ends its transactions is left out."""
    heard: list[str] = []

    def execute(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if not statement.startswith(("SET ", "START ", "BEGIN", "COMMIT", "ROLLBACK", "PRAGMA")):
            heard.append(statement)

    engine: Engine = database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", execute)
    try:
        yield heard
    finally:
        event.remove(engine, "before_cursor_execute", execute)


class StoppedClock:
    """No lease ends, however busy the machine is."""

    def now(self) -> int:
        """Return an instant after that of the records."""
        return LATER


def ports(database: Database, live: Live, *, clock: Clock | None = None) -> RelayPorts:
    """Return a relay's ports: the database, and a broker in memory. `clock` replaces the database's."""
    store = SqlStore(database, SHOP, clock=clock)
    return RelayPorts(SHOP, store, store, StoreAdmission(), NoArtifacts(), MemoryTransport(live, SHOP))


async def leave(database: Database, count: int) -> None:
    """Write records that are old."""
    sent = message("sent")
    rows = [row_of(SHOP, Record(Identity(SHOP, f"m{number}"), (Send(message=sent, to=SINK),)), 1) for number in range(count)]
    async with database.writing() as connection:
        await connection.execute(insert(tables(database.prefix, database.schema).records), rows)


async def test_an_idle_relay_asks_once_in_ten_seconds(database: Database) -> None:
    """One query for each look, and ten seconds at least from one look to the next."""
    await SqlStore(database, SHOP).undispatched(LATER, 1)  # the first use looks at the server
    stop = asyncio.Event()
    timer = Passing(stop, LOOKS)
    relay = Relay(ports(database, Live()), after=10.0, grace=1.0, notifier=Notifier(), environment=Environment(timer=timer))
    with asked(database) as heard:
        await relay.run(stop)
    assert len(heard) == LOOKS, heard
    assert min(timer.slept) >= LONGEST_IDLE_SECONDS


async def test_relays_at_once_send_each_record_once(database: Database) -> None:
    """From connections of their own, until none is left."""
    await leave(database, 6 * PAGE)
    live, stop = Live(), asyncio.Event()
    await MemoryTransport(live, SINK).declare([Topology(endpoint=SINK)])
    waiting = [ports(database, live, clock=StoppedClock()) for _ in range(3)]
    relays = [Relay(each, after=0.001, grace=30.0, notifier=Notifier()) for each in waiting]
    running = [asyncio.create_task(relay.run(stop)) for relay in relays]
    store = SqlStore(database, SHOP)
    async with asyncio.timeout(60):
        while await store.undispatched(LATER, 1):  # noqa: ASYNC110 - a database tells nobody that it changed
            await asyncio.sleep(0)
    stop.set()
    await asyncio.gather(*running)
    world = live.part(MemoryTransport(live, SINK).place)
    assert isinstance(world, BrokerWorld)
    assert len(world.entries) == 6 * PAGE


async def test_a_mark_of_a_clock_that_is_ahead_holds_up_nobody(database: Database) -> None:
    """It counts for a lease from now at most."""
    await leave(database, 1)
    records = tables(database.prefix, database.schema).records
    async with database.writing() as connection:
        await connection.execute(records.update().values(taken_at=LATER))
    assert len(await SqlStore(database, SHOP).take(LATER, 10, lease=10_000)) == 1


FOREIGN = 3000


async def test_records_of_other_endpoints_are_not_read(database: Database) -> None:
    """The index on (endpoint, stored_at) is used, also where an endpoint with a large backlog shares the table."""
    await leave(database, FOREIGN)
    sent: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        if "stored_at" in statement:
            sent.append((statement, parameters))

    store, engine = SqlStore(database, "other"), database.engine.sync_engine
    event.listen(engine, "before_cursor_execute", note)
    assert await store.take(LATER, PAGE, lease=1) == ()
    event.remove(engine, "before_cursor_execute", note)
    ((statement, parameters),) = sent
    verb = "EXPLAIN QUERY PLAN" if database.dialect.embedded else "EXPLAIN"
    async with database.writing() as connection:
        plan = str((await connection.exec_driver_sql(f"{verb} {statement}", parameters)).all())
    assert f"{database.prefix}records_stored_at" in plan


async def test_a_backlog_of_any_size_is_taken_in_one_order(database: Database) -> None:
    """Few records are found by their age, many by their keys: the pages that follow each other are the same."""
    await leave(database, FEW + 2 * PAGE)
    store = SqlStore(database, SHOP)
    pages = [await store.take(LATER, PAGE, lease=1 << 40)]
    while pages[-1]:
        pages.append(await store.take(LATER, PAGE, lease=1 << 40, after=pages[-1][-1].identity))
    keys = [claim_key(SHOP, record.identity) for page in pages for record in page]
    assert keys == sorted(keys)
    assert len(keys) == FEW + 2 * PAGE
    assert {len(page) for page in pages[:-1]} == {PAGE}
