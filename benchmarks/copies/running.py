"""Send orders, each twice in a row, to processes that are killed, and count the events that they put on the wire."""

import asyncio
import os
import random
import sys
from asyncio.subprocess import Process
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from msgspec import Struct

from benchmarks.copies.program import CONTROL
from onceonly.assembly import open_database, open_transport, schemas, temporary_transport
from onceonly.model.message import Message, Send
from onceonly.ports.transport import Topology, Transport
from onceonly.sql.schema import create, drop

QUEUES = {"worker": "shop", "sending": "intake"}
"""Where the orders are sent to, by the way in which they are handled."""
TOPOLOGIES = [Topology(endpoint=name, commands=("Place", "Placed")) for name in ("shop", "intake", "billing")]
DELAY_SECONDS = 0.2
"""Each SIGKILL is sent at a random instant within this time after a count of events is reached."""
QUIET_SECONDS = 12.0
"""Seconds without an event after which no more are expected. A relay takes what is older than 10 seconds."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to measure. `rate` is in orders a second; 0 sends all of them before the processes start."""

    way: str
    store: str
    transport: str
    orders: int = 300
    kills: int = 0
    processes: int = 1
    rate: float = 0.0
    quiet: float = QUIET_SECONDS
    control: bool = False
    """Whether to run the processes as control runs."""


class Measured(Struct, frozen=True, kw_only=True):
    """How many events a receiver got, and how many by id."""

    events: int
    distinct: int
    kills: int

    @property
    def repeated(self) -> int:
        return self.events - self.distinct

    def __str__(self) -> str:
        each = f", {self.repeated / self.kills:.1f} a kill" if self.kills else ""
        return f"{self.distinct} ids, {self.kills} kills: {self.events} events, {self.repeated} repeated{each}"


class Wire:
    """What a receiver gets: the number of events by id."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.found: Counter[str] = Counter()
        self._more = asyncio.Event()

    async def read(self) -> None:
        """Receive until cancelled."""
        while True:
            received = await self.transport.receive(100, 1.0)
            self.found.update(dict(delivery.headers)["ce-id"] for delivery in received)
            await self.transport.ack(received)
            self._more.set()

    async def until(self, distinct: int) -> None:
        """Wait for events with so many ids."""
        while len(self.found) < distinct:
            self._more.clear()
            await self._more.wait()

    async def until_quiet(self, seconds: float) -> None:
        """Wait until no event has come for this long."""
        before = -1
        while self.found.total() > before:
            before = self.found.total()
            await asyncio.sleep(seconds)


async def measure(plan: Plan) -> Measured:
    """Run it once. The tables and queues must be free; they are removed at the end."""
    async with temporary_transport(plan.transport, TOPOLOGIES), open_database(plan.store) as database:
        for schema in schemas("store"):
            await create(database, schema)
        try:
            async with open_transport(plan.transport, "billing") as wire:
                await wire.declare(TOPOLOGIES)
                return await _measured(plan, Wire(wire))
        finally:
            await drop(database, *schemas("store"))


async def _measured(plan: Plan, wire: Wire) -> Measured:
    async with asyncio.TaskGroup() as tasks:
        reading, sending = tasks.create_task(wire.read()), tasks.create_task(_send(plan, wire.transport))
        if not plan.rate:
            await sending
        async with _processes(plan) as processes:
            for kill in range(1, plan.kills + 1):
                await wire.until(plan.orders * kill // (plan.kills + 1))
                await asyncio.sleep(random.uniform(0, DELAY_SECONDS))  # noqa: S311 - any instant, not only after a send
                oldest = processes.pop(0)
                oldest.kill()
                await oldest.wait()
                processes.append(await _start(plan))
            await wire.until(plan.orders)
            await wire.until_quiet(plan.quiet)
        reading.cancel()
    return Measured(events=wire.found.total(), distinct=len(wire.found), kills=plan.kills)


async def _send(plan: Plan, transport: Transport) -> None:
    """Send each order twice in a row, as a producer does that has lost a confirmation."""
    for number in range(plan.orders):
        body = f'{{"order": "order-{number}"}}'.encode()
        order = Message(id=f"order-{number}", source="web", type="Place", body=body)
        await transport.send([Send(message=order, to=QUEUES[plan.way])] * 2)
        await asyncio.sleep(1 / plan.rate if plan.rate else 0)


@asynccontextmanager
async def _processes(plan: Plan) -> AsyncIterator[list[Process]]:
    processes = [await _start(plan) for _ in range(plan.processes)]
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            await each.wait()


async def _start(plan: Plan) -> Process:
    command = (sys.executable, "-m", "benchmarks.copies.program", plan.way, plan.store, plan.transport)
    return await asyncio.create_subprocess_exec(*command, env={**os.environ, CONTROL: "1" if plan.control else ""})
