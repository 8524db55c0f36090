"""Responders beside a message that has the process to itself: a death is never that message's when a responder was at work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from onceonly import Endpoint, Reject
from onceonly.endpoint.host import host_of
from onceonly.model.message import Message, Send
from onceonly.runtime.environment import LIVE
from onceonly.runtime.processes.counters import Column, CounterRow, SharedCounters
from onceonly.runtime.worker import responders
from onceonly.runtime.worker.isolated_runs import gate
from tests.endpoint.asgi_client import FAR, Got, ask

SOON = 10.0
"""Seconds after which a test has failed that waits for something."""


@dataclass
class Charge:
    """What is asked for."""

    name: str


@dataclass
class Order:
    """A message."""

    id: str


@dataclass
class Payments:
    """A service whose responder works until it is let go."""

    let_go: asyncio.Event = field(default_factory=asyncio.Event)
    at_work: asyncio.Event = field(default_factory=asyncio.Event)
    runs: list[str] = field(default_factory=list)
    working: int = 0
    endpoint: Endpoint = field(init=False)

    def __post_init__(self) -> None:
        """Make the endpoint."""
        place = uuid4().hex
        self.endpoint = Endpoint(
            "payments", store=f"memory://{place}", transport=f"memory://{place}", janitor_interval=timedelta(hours=1)
        )
        self.app = self.endpoint.http_app()

        @self.endpoint.responder
        async def charge(asked: Charge) -> None:
            self.runs.append(asked.name)
            self.at_work.set()
            self.working += 1
            await self.let_go.wait()
            self.working -= 1
            if asked.name == "poor":
                raise Reject("no money")
            if asked.name == "bug":
                raise ValueError("a bug")

    async def put(self, name: str = "a") -> None:
        """Have a request stored."""
        sent: dict[str, Any] = {"onceonly_operation": "Charge", "onceonly_deadline": LIVE.clock.now() + FAR}
        assert (await ask(self.app, "PUT", f"/x/{name}", f'{{"name":"{name}"}}'.encode(), **sent)).status == 204

    async def post(self, name: str = "a") -> Got:
        """Have it executed."""
        return await ask(self.app, "POST", f"/x/{name}")


@pytest.fixture
async def payments() -> AsyncIterator[Payments]:
    """Open it, without a worker."""
    made = Payments()
    async with made.endpoint.opened():
        yield made


@asynccontextmanager
async def alone() -> AsyncIterator[None]:
    """Have the process to oneself."""
    async with asyncio.timeout(SOON):
        await gate().clear()
    try:
        yield
    finally:
        gate().reopen()


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_no_execution_begins_while_a_message_runs_alone(payments: Payments) -> None:
    """It is answered as soon as that has ended."""
    payments.let_go.set()
    await payments.put()
    async with alone():
        posting = asyncio.create_task(payments.post())
        await turns()
        assert (payments.runs, posting.done()) == ([], False)
    assert (await posting).status == 204
    assert payments.runs == ["a"]


async def test_a_message_that_is_to_run_alone_waits_for_executions(payments: Payments) -> None:
    """Those that have begun."""
    await payments.put()
    posting = asyncio.create_task(payments.post())
    await payments.at_work.wait()
    clearing = asyncio.create_task(gate().clear())
    await turns()
    assert not clearing.done()
    payments.let_go.set()
    async with asyncio.timeout(SOON):
        assert (await posting).status == 204
        await clearing
    gate().reopen()


async def test_a_caller_is_answered_in_time_however_long_a_message_runs_alone(
    payments: Payments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told to ask again; nothing was executed. What needs no responder is served as ever."""
    monkeypatch.setattr(responders, "WAIT_SECONDS", 0.01)
    payments.let_go.set()
    async with alone():
        await payments.put()
        got = await payments.post()
        assert (got.status, got.is_protocols, payments.runs) == (503, True, [])
    assert (await payments.post()).status == 204


@pytest.mark.parametrize(("name", "status"), [("a", 204), ("poor", 422), ("bug", 500), ("missing", 410)])
async def test_an_execution_leaves_however_it_ends(payments: Payments, name: str, status: int) -> None:
    """The second time as well, when it has been answered already."""
    payments.let_go.set()
    if name != "missing":
        await payments.put(name)
    for _ in range(2):
        assert (await payments.post(name)).status == status
        async with alone():
            pass


async def test_a_caller_that_is_cancelled_leaves(payments: Payments) -> None:
    """While it waits, and while its responder is at work."""
    await payments.put()
    async with alone():
        waiting = asyncio.create_task(payments.post())
        await turns()
        waiting.cancel()
        await asyncio.wait({waiting})
    working = asyncio.create_task(payments.post())
    await payments.at_work.wait()
    working.cancel()
    await asyncio.wait({working})
    async with alone():
        pass


async def test_no_responder_is_at_work_beside_a_message_that_runs_alone() -> None:
    """With a real worker: the message waits for the one, and the other waits for the message."""
    payments = Payments()
    seen: list[int] = []
    later: asyncio.Queue[asyncio.Task[Got]] = asyncio.Queue()

    @payments.endpoint.handler
    async def note(order: Order) -> None:
        assert order.id == "suspect"
        seen.append(payments.working)
        posting = asyncio.create_task(payments.post("b"))
        await turns()
        seen.append(len(payments.runs))
        later.put_nowait(posting)

    async with payments.endpoint.running():
        await payments.put("a")
        await payments.put("b")
        first = asyncio.create_task(payments.post("a"))
        await payments.at_work.wait()
        ports = host_of(payments.endpoint).bound_ports()
        assert ports is not None
        message = Message(id="suspect", source="test", type="Order", body=b'{"id": "suspect"}')
        await ports.transport.send([Send(message=message, to="payments", alone=True)])
        await turns()
        assert seen == []
        payments.let_go.set()
        async with asyncio.timeout(SOON):
            await first
            assert (await (await later.get())).status == 204
    assert seen == [0, 1]
    assert payments.runs == ["a", "b"]


async def test_a_death_while_a_responder_is_at_work_is_not_that_of_a_handler_beside_it(tmp_path: Path) -> None:
    """The supervisor finds two marks, and counts none; of a responder alone it finds one that is no message's."""
    payments = Payments()
    with SharedCounters.create(tmp_path / "board", 2) as counters:
        row, dead = counters.row(0), counters.row(1)
        async with host_of(payments.endpoint).running(counters=row):
            await payments.put()
            posting = asyncio.create_task(payments.post())
            await payments.at_work.wait()
            assert row.get(Column.RUNNING) == 1
            copy(row, dead)
            dead.enter(b"0123456789abcdef", 0)  # a handler
            assert not dead.died(seen=True)
            assert not dead.explains()
            payments.let_go.set()
            assert (await posting).status == 204
            assert [row.get(column) for column in (Column.RUNNING, Column.LOW, Column.HIGH)] == [0, 0, 0]


def copy(row: CounterRow, to: CounterRow) -> None:
    """Mark the same in another row."""
    for column in Column:
        to.set(column, row.get(column))
