"""Redeliveries, two relays and control messages at once, all of them killed: each order is billed once.

Whichever driver is first sends a record. The others find it gone. What a kill finds sent and not forgotten is sent again, with
the same id, so the receiver's deduplication decides. The copies on the wire are counted.
"""

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import msgspec
import pytest
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly import Endpoint, History, Off
from onceonly.assembly import open_database, open_store, open_transport, schemas, temporary_transport
from onceonly.assembly.documents import create as create_documents
from onceonly.endpoint.host import host_of
from onceonly.model.message import Message, Send
from onceonly.model.record import Answer
from onceonly.ports.transport import Topology, Transport
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables
from tests.faults.drivers_program import Placed, PlacedOrder, shop_of_environment
from tests.killed_processes import python_process
from tests.servers.available import MEASURED, RABBITMQ, need, postgresql_database

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

MESSAGES, TRANSACTIONS = 60, 60
SENT_AT_ONCE = 6
KILLS = {"client": 4, "worker": 3, "relay": 3}
"""Kills of each process; of each of the two relays."""
POINTS = {
    "client": ("after-commit", "before-forget", "before-commit", "after-dispatch"),
    "worker": ("after-commit", "before-forget", "before-ack"),
    "relay": ("after-dispatch", "before-dispatch", "before-forget"),
}
TIMES = {"client": 10, "worker": 2, "relay": 1}
"""A process is killed when it reaches its point for so many times."""
TOPOLOGIES = [Topology(endpoint="shop", commands=("Place",)), Topology(endpoint="billing", commands=("Placed",))]
metadata = MetaData()
bills = Table("bills", metadata, Column("line", Integer, primary_key=True), Column("order", String(40)))


class Outcome(NamedTuple):
    """What came of a run."""

    placed: Counter[str]
    billed: Counter[str]
    wire: Counter[str]
    """Copies that the receiver got, by id."""
    sent: Counter[str]
    """Events that were sent, by the role of the process."""
    kills: Counter[str]

    def __str__(self) -> str:
        by = ", ".join(f"{role} {count}" for role, count in sorted(self.sent.items()))
        return (
            f"{self.kills.total()} kills, {self.placed.total()} orders, {self.wire.total()} copies of {len(self.wire)} events "
            f"(sent by {by}), {self.billed.total()} bills"
        )


class CopyCount:
    """An observer that counts what the receiver gets."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.orders: set[str] = set()
        self._more = asyncio.Event()

    async def until_all(self, names: Sequence[str]) -> None:
        """Wait until the events of these orders have come."""
        while not self.orders.issuperset(names):
            self._more.clear()
            await self._more.wait()

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count after the call."""
        yield
        if call.point is Point.RECEIVE:
            self.found.update(dict(each.headers)["ce-id"] for each in call.result)
            self.orders.update(msgspec.json.decode(each.body)["order"] for each in call.result)
            self._more.set()


class Shop:
    """The processes of the shop."""

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()

    async def keep(self, role: str) -> None:
        """Run a process, and start another one for each that is killed. Those after the last kill live until the end."""
        for point in (*POINTS[role][: KILLS[role]], ""):
            async with process(role, point, TIMES[role]) as running:
                await self._read(role, running)
                self.kills[role] += await running.wait() == -9

    async def place(self, names: list[str]) -> None:
        """Have clients place these orders, and kill them. One without a key is tried once."""
        left, points = [*names], cycle(POINTS["client"])
        while left:
            times = TIMES["client"] if self.kills["client"] < KILLS["client"] else 10 * len(names)
            async with process("client", next(points), times, *left) as client:
                lines = await self._read("client", client)
                self.kills["client"] += await client.wait() == -9
            begun = {name for word, name in lines if word == "begin" and not name.startswith("keyed")}
            left = [name for name in left if name not in begun | {name for word, name in lines if word == "done"}]

    async def _read(self, role: str, running: Process) -> list[list[str]]:
        assert running.stdout is not None
        lines: list[list[str]] = []
        async for line in running.stdout:
            words = line.decode().split()
            if words[0] == "sent":
                self.sent[role] += int(words[1])
            elif len(words) > 1:
                lines.append(words)
        return lines


def process(role: str, point: str, times: int, *arguments: str) -> AbstractAsyncContextManager[Process]:
    """Run the program, and end it with the block."""
    return python_process("tests.faults.drivers_program", role, point, str(times), *arguments, stdout=PIPE)


@pytest.fixture(params=["redis", *(pytest.param(name, marks=pytest.mark.repeated) for name in ("postgresql", "dynamodb"))])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Make a store of this system, and name it and the queues to the processes."""
    with ExitStack() as stack:
        match request.param:
            case "postgresql":
                store = stack.enter_context(postgresql_database())
            case "redis":
                store = request.getfixturevalue("redis_url")
            case _:
                monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
                monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
                endpoint = request.getfixturevalue("ministack_endpoint")
                store = f"dynamodb://eu-central-1/t{uuid4().hex[:12]}?endpoint={endpoint}"
        monkeypatch.setenv("DRIVERS_STORE", store)
        monkeypatch.setenv("DRIVERS_TRANSPORT", f"{need(RABBITMQ)}?prefix=drivers-{uuid4().hex[:8]}-")
        yield request.param


async def test_three_drivers_bill_each_order_once(system: str, tmp_path: Path) -> None:
    """Each order that was placed is billed once, whichever driver was first. Those with a key and all messages are placed."""
    outcome = await run(tmp_path, deduplication=History())
    MEASURED.append(f"three drivers on {system}: {outcome}")
    assert outcome.kills["client"] == KILLS["client"]
    assert outcome.kills["worker"] == KILLS["worker"]
    assert outcome.kills["relay"] > 0
    assert set(outcome.placed.values()) == {1}
    assert outcome.billed == outcome.placed
    assert len(outcome.wire) == len(outcome.placed)
    assert sum(not name.startswith("plain") for name in outcome.placed) == MESSAGES + TRANSACTIONS // 2


@pytest.mark.repeated
@pytest.mark.parametrize("system", ["postgresql", "redis"], indirect=True)
async def test_without_deduplication_orders_are_billed_twice(system: str, tmp_path: Path) -> None:
    """So the run above can fail: some copies come twice, because processes die between sending and forgetting."""
    outcome = await run(tmp_path, deduplication=Off())
    MEASURED.append(f"without deduplication on {system}: {outcome}")
    assert set(outcome.billed) == set(outcome.placed)
    assert outcome.billed.total() > outcome.placed.total()


async def run(folder: Path, *, deduplication: History | Off) -> Outcome:
    """Place the orders, wait until all is billed and nothing is left, and count."""
    transport, copies, shop = os.environ["DRIVERS_TRANSPORT"], CopyCount(), Shop()
    billing = billing_at(f"sqlite:///{folder}/bills.db", transport, deduplication)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(temporary_transport(transport, TOPOLOGIES))
        await create_shop()
        database = await stack.enter_async_context(open_database(str(billing.settings.store)))
        await create(database, *schemas("store"))
        await create_user_tables(database, metadata)
        queue = await stack.enter_async_context(open_transport(transport, "shop"))
        await queue.declare(TOPOLOGIES)
        await stack.enter_async_context(host_of(billing).running(observer=copies))
        names = [f"{'keyed' if number % 2 else 'plain'}-{number}" for number in range(TRANSACTIONS)]
        finishing = [asyncio.create_task(shop.keep(role)) for role in ("worker", "relay", "relay")]
        try:
            await asyncio.gather(shop.place(names), send_orders(queue, copies))
            placed = await read_placed([*names, *(f"message-{number}" for number in range(MESSAGES))])
            await until_done(queue)
            while set(await read_bills(database)) < set(placed) or (await queue.depth("billing")).held:  # noqa: ASYNC110 - as below
                await asyncio.sleep(0.2)
        finally:
            for task in finishing:
                task.cancel()
            await asyncio.gather(*finishing, return_exceptions=True)
        return Outcome(placed, await read_bills(database), copies.found, shop.sent, shop.kills)


def billing_at(store: str, transport: str, deduplication: History | Off) -> Endpoint:
    """Return the receiver, which adds a row for each event that it handles."""
    billing = Endpoint("billing", store=store, transport=transport, deduplication=deduplication)

    @billing.handler
    async def bill(placed: Placed, connection: AsyncConnection) -> None:
        await connection.execute(insert(bills).values(order=placed.order))

    return billing


async def create_shop() -> None:
    """Create what the store of the shop needs."""
    store = os.environ["DRIVERS_STORE"]
    if not store.startswith("postgresql"):
        await create_documents(store)
        return
    async with open_database(store) as database:
        await create(database, *schemas("store"))


async def send_orders(queue: Transport, copies: "CopyCount") -> None:
    """Send each order twice, a few at a time, so that the worker has some to do each time that it is killed."""
    for start in range(0, MESSAGES, SENT_AT_ONCE):
        names = [f"message-{number}" for number in range(start, start + SENT_AT_ONCE)]
        sends = [Send(message=order_of(name), to="shop") for name in names]
        assert set(await queue.send([*sends, *sends])) == {Answer.TAKEN}
        await copies.until_all(names)


def order_of(name: str) -> Message:
    """Return the message of an order."""
    return Message(id=name, source="web", type="Place", body=msgspec.json.encode({"order": name}))


async def read_placed(names: list[str]) -> Counter[str]:
    """Read how often each order was placed."""
    shop, placed = shop_of_environment(), Counter[str]()
    async with host_of(shop).opened():
        for name in names:
            async with shop.transaction() as tx:
                placed[name] = (await tx.entity(PlacedOrder, name)).times
    return +placed


async def read_bills(database: Database) -> Counter[str]:
    """Count the bills of each order."""
    async with database.reading() as connection:
        return Counter((await connection.scalars(select(bills.c.order))).all())


async def until_done(queue: Transport) -> None:
    """Wait until the shop has nothing in its queue, and nothing unsent in its store."""
    async with open_store(shop_of_environment().settings) as opened:
        assert opened.pending is not None
        while (  # noqa: ASYNC110 - neither has events
            (depth := await queue.depth("shop")).waiting + depth.held + depth.delayed
            or await opened.pending.undispatched(1 << 52, 1)
        ):
            await asyncio.sleep(0.2)
