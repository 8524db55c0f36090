"""Clients are killed around the commits of their transactions, and no relay runs: control messages finish the rest."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import NamedTuple
from uuid import uuid4

import pytest
from sqlalchemy import select

from benchmarks.copies.running import Wire
from onceonly.assembly import open_database, open_transport, schemas, temporary_transport
from onceonly.ports.transport import Topology
from onceonly.sql.schema import create, create_user_tables
from tests.faults.control_program import Anything, metadata, orders
from tests.servers.available import MEASURED, RABBITMQ, need, postgresql_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ORDERS, KILLS = 100, 10
POINTS = ("after-commit", "before-forget", "after-commit", "before-commit", "after-commit")
TOPOLOGIES = [Topology(endpoint="shop", commands=(Anything.__name__,)), Topology(endpoint="billing", commands=("Placed",))]
QUIET_SECONDS = 12.0
"""Longer than all delays of a control message: if no event has come for so long, none will. The control run waits for that."""


class Counts(NamedTuple):
    """Rows by order, and events by order and by id."""

    rows: Counter[str]
    events: dict[str, str]
    """The order of each event, by the event's id."""
    sent: int
    kills: int


class OrderWire(Wire):
    """What billing gets: the order of each event."""

    def __init__(self, transport: object) -> None:
        super().__init__(transport)  # type: ignore[arg-type]
        self.orders: dict[str, str] = {}

    async def read(self) -> None:
        """Receive until cancelled."""
        while True:
            received = await self.transport.receive(100, 1.0)
            for each in received:
                self.found[dict(each.headers)["ce-id"]] += 1
                self.orders[dict(each.headers)["ce-id"]] = each.body.decode().split('"')[3]
            await self.transport.ack(received)
            self._more.set()


@pytest.fixture
def store() -> Iterator[str]:
    """Return a database."""
    with postgresql_database() as url:
        yield url


@asynccontextmanager
async def process(settings: dict[str, str], *arguments: str) -> AsyncIterator[Process]:
    """Run the program, and end it with the block."""
    command = (sys.executable, "-m", "tests.faults.control_program", *arguments)
    running = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env={**os.environ, **settings})
    try:
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def place(settings: dict[str, str], names: list[str]) -> int:
    """Have clients place these orders, and kill them. An order without a key is placed at most once. Returns the kills."""
    left, kills, points = [*names], 0, cycle(POINTS)
    while left:
        times = ORDERS // (KILLS + 3) if kills < KILLS else 10 * ORDERS
        async with process(settings, "client", next(points), str(times), *left) as client:
            assert client.stdout is not None
            lines = [line.decode().split() async for line in client.stdout]
            kills += await client.wait() == -9
        done = {name for word, name in lines if word == "done"}
        tried = {name for word, name in lines if not name.startswith("keyed")}
        left = [name for name in left if name not in done | tried]
    return kills


async def run(store: str, *, has_controls: bool) -> Counts:
    """Place the orders, wait for the events, and count."""
    transport = f"{need(RABBITMQ)}?prefix=control-{uuid4().hex[:8]}-"
    settings = {"CONTROL_STORE": store, "CONTROL_TRANSPORT": transport, "CONTROL_MESSAGES": str(int(has_controls))}
    names = [f"{'keyed' if number % 2 else 'plain'}-{number}" for number in range(ORDERS)]
    async with temporary_transport(transport, TOPOLOGIES), open_database(store) as database:
        await create(database, *schemas("store"))
        await create_user_tables(database, metadata)
        async with open_transport(transport, "billing") as queue, process(settings, "worker") as worker:
            await queue.declare(TOPOLOGIES)
            wire = OrderWire(queue)
            reading = asyncio.create_task(wire.read())
            assert worker.stdout is not None
            await worker.stdout.readline()
            kills = await place(settings, names)
            async with database.reading() as connection:
                rows = Counter((await connection.scalars(select(orders.c.id))).all())
            if has_controls:
                await wire.until(len(rows))
                while (depth := await queue.depth("shop")).waiting + depth.held + depth.delayed:  # noqa: ASYNC110 - a broker tells nobody
                    await asyncio.sleep(0.2)
            await wire.until_quiet(1.0 if has_controls else QUIET_SECONDS)
            reading.cancel()
    return Counts(rows, wire.orders, wire.found.total(), kills)


async def test_control_messages_send_what_killed_clients_have_committed(store: str) -> None:
    """Each order whose row is there was announced once, and no other. Those with a key are all there."""
    counts = await run(store, has_controls=True)
    MEASURED.append(f"control messages on PostgreSQL: {counts.kills} kills, {len(counts.rows)} rows, {counts.sent} events")
    assert counts.kills == KILLS
    assert set(counts.rows.values()) == {1}
    assert Counter(counts.events.values()) == counts.rows
    assert sum(name.startswith("keyed") for name in counts.rows) == ORDERS // 2


@pytest.mark.repeated
async def test_without_control_messages_and_without_a_relay_events_are_lost(store: str) -> None:
    """So the run above can fail."""
    counts = await run(store, has_controls=False)
    MEASURED.append(f"without them: {counts.kills} kills, {len(counts.rows)} rows, {counts.sent} events")
    assert set(counts.events.values()) < set(counts.rows)
