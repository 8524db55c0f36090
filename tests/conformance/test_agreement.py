"""The SQL adapters do what the memory adapters do, which the model checker explores, on the same random histories."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onceonly.adapters.memory.transport import BrokerRules
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.ports.transport import Topology, Transport
from onceonly_conformance.samples import effects, message
from onceonly_conformance.store_subject import LATER, WholeStore
from tests.conformance.memory_subjects import LEASE, MemoryStores, MemoryTransports
from tests.conformance.sql_subjects import SqlSubject, make_tables

SEEDS = range(6)
STEPS = 60
SMALL = 4096
ENDPOINTS = ("shop", "billing")


class Brokers(MemoryTransports):
    """A memory broker that takes bodies of the same size as the SQL one."""

    async def transport(self, endpoint: str = "shop") -> Any:
        """Open a transport."""
        transport = await super().transport(endpoint)
        transport.rules = BrokerRules(max_body=SMALL)
        return transport


@asynccontextmanager
async def sql(place: Path) -> AsyncIterator[SqlSubject]:
    """Open a new file."""
    await make_tables(place / "subject.db")
    async with SqlSubject.open(place / "subject.db") as subject:
        yield subject


class Worlds:
    """Two transports side by side. What is known here about leases serves to leave out what brokers may do differently."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)  # noqa: S311 - a history that can be repeated
        self.transports: list[dict[str, Transport]] = []
        self.subjects: list[Any] = []
        self.held: dict[tuple[str, str], tuple[Any, ...]] = {}
        self.old: list[tuple[str, tuple[Any, ...]]] = []
        self.until: dict[tuple[str, str], int] = {}
        self.sent = 0

    async def open(self, *subjects: Any) -> None:
        """Declare the same queues in both."""
        self.subjects = list(subjects)
        for subject in subjects:
            self.transports.append({endpoint: await subject.transport(endpoint) for endpoint in ENDPOINTS})
            topologies = [Topology(endpoint="shop", events=("both", "one")), Topology(endpoint="billing", events=("both",))]
            await self.transports[-1]["shop"].declare(topologies)

    @property
    def now(self) -> int:
        """Return the time, the same in both."""
        first, second = (subject.now() for subject in self.subjects)
        assert first == second
        return int(first)

    async def send(self) -> None:
        """Send some of everything."""
        sends = [self._send() for _ in range(self.rng.randint(1, 4))]
        first, second = [await world["shop"].send(sends) for world in self.transports]
        assert first == second

    def _send(self) -> Send:
        self.sent += 1
        due = self.rng.choice((0, 0, 0, self.now - 5, self.now + 1, self.now + 9_000))
        size = self.rng.choice((0, 1, 1, SMALL, SMALL + 1))
        kind = self.rng.choice(("both", "one", "none"))
        body = Message(id=f"m{self.sent}", source="s", type=kind, body=bytes(size))
        return Send(message=body, to=self.rng.choice(("", *ENDPOINTS, "nobody")), due=due, attempts=self.rng.randint(0, 2))

    async def receive(self) -> None:
        """Take all there is."""
        endpoint = self.rng.choice(ENDPOINTS)
        both = []
        for world in self.transports:
            got = await world[endpoint].receive(1000, 0)
            both.append({dict(delivery.headers)["ce-id"]: delivery for delivery in got})
        first, second = both
        assert {name: seen(each) for name, each in first.items()} == {name: seen(each) for name, each in second.items()}
        for name in first:
            if (endpoint, name) in self.held:
                self.old.append((endpoint, self.held[endpoint, name]))
            self.held[endpoint, name] = (first[name], second[name])
            self.until[endpoint, name] = self.now + int(LEASE * 1000)

    async def settle(self) -> None:
        """Ack, release or extend some of what is held, and some of what another holds by now."""
        call = self.rng.choice(("ack", "release", "extend"))
        endpoint = self.rng.choice(ENDPOINTS)
        mine = [key for key, end in self.until.items() if key[0] == endpoint and end > self.now and self.rng.random() < 0.5]
        late = [pair for of, pair in self.old if of == endpoint and self.rng.random() < 0.3]
        pairs = [*(self.held[key] for key in mine), *late]
        for number, world in enumerate(self.transports):
            await getattr(world[endpoint], call)([pair[number] for pair in pairs])
        for key in mine:
            self.until[key] = self.now + int(LEASE * 1000) if call == "extend" else 0

    async def wait(self) -> None:
        """Let time pass."""
        step = self.rng.choice((1, 1_000, 8_999, 15_000, 30_000))
        for subject in self.subjects:
            await subject.pass_time(step)

    async def count(self) -> None:
        """Count."""
        for endpoint in ENDPOINTS:
            first, second = [await world[endpoint].depth(endpoint) for world in self.transports]
            assert first == second


def seen(delivery: Any) -> tuple[Any, ...]:
    """Return what a receiver sees of a delivery, but for its receipt."""
    return delivery.suspect, delivery.attempts, delivery.queue, delivery.headers, delivery.body


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_queues_do_the_same(tmp_path: Path, seed: int) -> None:
    """Sends of every kind, leases that end, late answers, delays."""
    worlds = Worlds(seed)
    async with sql(tmp_path) as subject:
        await worlds.open(Brokers(), subject)
        for _ in range(STEPS):
            await worlds.rng.choice((worlds.send, worlds.receive, worlds.receive, worlds.settle, worlds.settle, worlds.wait))()
            await worlds.count()
    assert worlds.sent > 10
    assert worlds.old or worlds.held


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_stores_do_the_same(tmp_path: Path, seed: int) -> None:
    """Units that handle, leave out, clash, fail and forget, one after another."""
    rng = random.Random(seed)  # noqa: S311 - a history that can be repeated
    memory = MemoryStores(blocking=True)
    async with sql(tmp_path) as subject:
        stores = {endpoint: (await memory.store(endpoint), await subject.store(endpoint)) for endpoint in ENDPOINTS}
        kinds = set()
        for _ in range(STEPS):
            pair = stores[rng.choice(ENDPOINTS)]
            names = rng.sample(range(12), rng.randint(1, 6))
            asked = [message(f"m{name}", body=b"1" if rng.random() < 0.9 else b"2") for name in names]
            plan = rng.choice(("commit", "commit", "abandon", "forget"))
            decided = {each.identity: effects()[: rng.randint(0, 2)] for each in asked if rng.random() < 0.8}
            first, second = [await act(store, plan, asked, decided) for store in pair]
            assert first == second
            kinds |= {kind for kind, found in zip(("new", "pending", "done", "mismatched"), first[0], strict=False) if found}
            await memory.pass_time(1)
            await subject.pass_time(1)
        assert kinds == {"new", "pending", "done", "mismatched"}


async def act(store: WholeStore, plan: str, asked: list[Message], decided: dict[Any, tuple[Send, ...]]) -> tuple[Any, ...]:
    """Do one thing with a store; gives everything one can see of it."""
    found: tuple[Any, ...] = ()
    if plan == "forget":
        await store.forget([Record(each.identity) for each in asked])
    else:
        unit = await store.begin(asked, isolated=plan == "commit")
        new = unit.found.new
        found = (new, sorted(unit.found.pending, key=identity), unit.found.done, unit.found.mismatched)
        if plan == "commit":
            await unit.commit([Record(each.identity, decided[each.identity]) for each in new if each.identity in decided])
        else:
            unit.abandon()
    waiting = sorted(await store.undispatched(LATER, 1000), key=identity)  # those of one unit are equally old
    return found, waiting, await store.find([each.identity for each in asked])


def identity(record: Record) -> Any:
    """Return what records are sorted by."""
    return record.identity
