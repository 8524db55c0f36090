"""What each driver costs on each kind of store: requests and statements, counted and compared with the table in the docs."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from onceonly import Context, ControlMessages, Endpoint
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.relay import relay
from onceonly.assembly.documents import create
from onceonly.endpoint.host import host_of
from onceonly.model.message import Delivery, Message, Send
from onceonly.ports.bundle import Ports
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.observe.crash import ProcessCrash
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly_conformance.clock import ManualClock
from tests import ROOT
from tests.endpoint.harness import FixedRandomSource
from tests.servers.api_calls import api_calls

PAGE = ROOT / "docs" / "how-to" / "relay.md"
SYSTEMS = ("SQL", "Redis", "DynamoDB", "MongoDB", "Cosmos DB")
LEAST = "the pattern, at least"
EXPECTED: Mapping[str, tuple[int, ...]] = {
    "a handler that sends one message": (3, 7, 3, 3, 3, 3),
    "*incoming message*: again, after a crash": (2, 6, 2, 2, 2, 2),
    "*relay*: a look that finds nothing": (1, 3, 1, 8, 1, 1),
    "*relay*: a look that finds one record, and sends it": (3, 11, 5, 12, 5, 5),
    "a transaction that sends one message": (2, 7, 2, 2, 2, 2),
    "*control message*: its transaction is over": (1, 4, 1, 1, 1, 1),
    "*control message*: after a crash": (2, 7, 2, 2, 2, 2),
}
"""What the pattern needs on any store, by its description, and what was counted on each system."""
CONTROL = ControlMessages(delays=(timedelta(seconds=40), timedelta(seconds=50)), max_commit=timedelta(seconds=60))
LEASE_MS = 10_000
SLOW = ("dynamodb", "mongodb", "cosmos")


@dataclass
class Note:
    """What is handled."""

    text: str


@dataclass
class Noted:
    """What is sent."""

    text: str


class Count:
    """How much was asked of the store."""

    def __init__(self) -> None:
        self.calls = 0


class DieAfterCommit:
    """An observer that ends what is done after each commit, as the death of the process does."""

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Let the commit happen."""
        yield
        if call.point is Point.COMMIT:
            raise ProcessCrash("after-commit")


class Desk:
    """An endpoint that is open in two processes. One of them dies after each commit."""

    def __init__(self, store: str, count: Count) -> None:
        self.count, self.clock = count, ManualClock(LIVE.clock.now())
        self.environment = Environment(clock=self.clock, random=FixedRandomSource())
        self.transport = f"memory://{uuid4().hex}"
        self.lives, self.dies = self._endpoint(store), self._endpoint(store)
        self.ports: Ports
        self.dying: Ports

    def _endpoint(self, store: str) -> Endpoint:
        desk = Endpoint("desk", store=store, transport=self.transport, control=CONTROL, relay_after=1.0, janitor=False)

        @desk.handler
        async def note(message: Note, context: Context) -> None:
            context.send(Noted(message.text), to="sink")

        return desk

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Desk"]:
        """Open it twice, and a queue."""
        async with host_of(self.lives).opened(environment=self.environment) as self.ports:
            await self.ports.transport.declare([Topology(endpoint="desk", commands=("Note",)), Topology(endpoint="sink")])
            async with host_of(self.dies).opened(environment=self.environment, observer=DieAfterCommit()) as self.dying:
                yield self

    async def received(self, name: str) -> list[Delivery]:
        """Send a message to the endpoint, and receive it."""
        message = Message(id=name, source="web", type="Note", body=b'{"text": "x"}')
        await self.ports.transport.send([Send(message=message, to="desk")])
        return [*await self.ports.transport.receive(10, 0)]

    async def handle(self, name: str) -> int:
        """Count what a message costs."""
        deliveries = await self.received(name)
        return await self.counted(lambda: deliver(deliveries, self.ports))

    async def handle_again(self, name: str) -> int:
        """Count what the incoming message costs that comes again after its process died."""
        deliveries = await self.received(name)
        with pytest.raises(ProcessCrash):
            await deliver(deliveries, self.dying)
        return await self.counted(lambda: deliver(deliveries, self.ports))

    async def look_in_vain(self, _: str) -> int:
        """Count what a look of a relay costs that finds nothing."""
        return await self.counted(self._look)

    async def relay(self, name: str) -> int:
        """Count what a look of a relay costs that finds one record and sends it."""
        deliveries = await self.received(name)
        with pytest.raises(ProcessCrash):
            await deliver(deliveries, self.dying)
        calls = await self.counted(self._look)
        await deliver(deliveries, self.ports)
        return calls

    async def transact(self, _: str) -> int:
        """Count what a transaction costs that sends one message."""
        calls = await self.counted(lambda: self._transact(self.lives))
        await self._control()
        return calls

    async def control(self, _: str) -> int:
        """Count what a control message costs whose transaction is over."""
        await self._transact(self.lives)
        return await self._control()

    async def control_after_a_crash(self, _: str) -> int:
        """Count what a control message costs that finishes what a dead process has committed."""
        with pytest.raises(ProcessCrash):
            await self._transact(self.dies)
        return await self._control()

    async def counted(self, step: Callable[[], Awaitable[object]]) -> int:
        """Count what a step asks of the store."""
        before = self.count.calls
        await step()
        return self.count.calls - before

    async def _look(self) -> None:
        assert self.ports.pending is not None
        records = await self.ports.pending.take(self.clock.now() + 1, 100, lease=LEASE_MS)
        if records:
            await relay(records, self.ports)

    async def _transact(self, endpoint: Endpoint) -> None:
        async with endpoint.transaction() as tx:
            tx.send(Noted("x"), to="sink")

    async def _control(self) -> int:
        self.clock.advance(41_000)
        deliveries = await self.ports.transport.receive(10, 0)
        assert len(deliveries) == 1
        calls = await self.counted(lambda: deliver(deliveries, self.ports))
        self.clock.advance(100_000)
        assert not await self.ports.transport.receive(10, 0), "the control message comes again"
        return calls


STEPS: Mapping[str, Callable[[Desk, str], Awaitable[int]]] = {
    "a handler that sends one message": Desk.handle,
    "*incoming message*: again, after a crash": Desk.handle_again,
    "*relay*: a look that finds nothing": Desk.look_in_vain,
    "*relay*: a look that finds one record, and sends it": Desk.relay,
    "a transaction that sends one message": Desk.transact,
    "*control message*: its transaction is over": Desk.control,
    "*control message*: after a crash": Desk.control_after_a_crash,
}


@contextmanager
def statements() -> Iterator[Count]:
    """Count the statements of all databases, BEGIN and COMMIT among them."""
    count = Count()

    def hear(*_: object) -> None:
        count.calls += 1

    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, hear)
    try:
        yield count
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(Engine, name, hear)


@contextmanager
def requests(system: str) -> Iterator[Count]:
    """Count the requests to a document service."""
    with api_calls(system) as calls:

        class Requests(Count):
            @property
            def calls(self) -> int:  # type: ignore[override]
                return len(calls)

            @calls.setter
            def calls(self, _: int) -> None:
                """Leave the log as it is."""

        yield Requests()


async def costs(store: str, count: Count) -> list[int]:
    """Take each step twice, and count the second one. The first may ask how the place is set up."""
    async with Desk(store, count).opened() as desk:
        found = []
        for number, step in enumerate(STEPS.values()):
            await step(desk, f"first-{number}")
            found.append(await step(desk, f"second-{number}"))
        return found


@pytest.fixture(params=["sqlite", "redis", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
async def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Create a place of each kind of store. Returns its system and its URL."""
    name = f"t{uuid4().hex[:12]}"
    match request.param:
        case "sqlite":
            return "SQL", f"sqlite:///{tmp_path}/{name}.db"
        case "redis":
            system, store = "Redis", request.getfixturevalue("redis_url")
        case "dynamodb":
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            endpoint = request.getfixturevalue("ministack_endpoint")
            system, store = "DynamoDB", f"dynamodb://eu-central-1/{name}?endpoint={endpoint}"
        case "mongodb":
            system, store = "MongoDB", f"{request.getfixturevalue('mongodb_server')}/onceonly?collection={name}"
        case _:
            system, store = "Cosmos DB", f"{request.getfixturevalue('cosmos_account')}/onceonly/{name}?emulator=true"
    await create(store)
    return system, store


async def test_each_driver_costs_what_the_page_says(place: tuple[str, str]) -> None:
    """Every number of a column."""
    system, store = place
    with statements() if system == "SQL" else requests(store.partition(":")[0]) as count:
        counted = await costs(store, count)
    column = 1 + SYSTEMS.index(system)
    assert dict(zip(STEPS, counted, strict=True)) == {step: row[column] for step, row in EXPECTED.items()}
    assert all(here >= row[0] for here, row in zip(counted, EXPECTED.values(), strict=True))


def test_the_page_has_these_numbers() -> None:
    """So the table cannot become false."""
    assert list(EXPECTED) == list(STEPS)
    head = f"| | {' | '.join((LEAST, *SYSTEMS))} |\n|---|{'---|' * (1 + len(SYSTEMS))}\n"
    rows = "".join(f"| {step} | {' | '.join(map(str, row))} |\n" for step, row in EXPECTED.items())
    assert head + rows in PAGE.read_text(encoding="utf-8")
