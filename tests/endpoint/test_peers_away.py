"""A peer that is away for an hour, at each step: nothing is counted, one event says it, and afterwards everything is done."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from onceonly import Context, Endpoint, Peer
from onceonly.algorithms.delivery import deliver
from onceonly.algorithms.settlement import BatchReport
from onceonly.endpoint.host import host_of
from onceonly.ports.bundle import Ports
from onceonly.ports.dead_letters import Filter
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.observe.logs import Logs
from onceonly_conformance.clock import ManualClock
from tests.endpoint.harness import FixedRandomSource
from tests.endpoint.test_requests import served
from tests.log_events import events
from tests.servers.available import free_port

pytestmark = pytest.mark.slow

HOUR_MS, STEP_MS = 3_600_000, 60_000
STEPS = ["PUT", "POST", "GET", "DELETE"]


@dataclass
class AwayOrder:
    """Something to be paid."""

    id: str


@dataclass
class AwayNote:
    """Something that needs no other service."""

    id: str


@dataclass
class AwayCharge:
    """What the shop asks for."""

    id: str


@dataclass
class AwayCharged:
    """What the shop tells itself afterwards."""

    id: str


class Gateway:
    """Stands before the other service, and answers instead of it what it does not let through."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.stops: set[str] = set()
        self.refused: list[str] = []
        self.status, self.is_service = 502, False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as a proxy does whose service is away. The application is a mounted one, which hears nothing of startup."""
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        elif scope["method"] in self.stops:
            self.refused.append(scope["method"])
            headers = [(b"content-length", b"0"), *([(b"onceonly-http", b"1")] if self.is_service else [])]
            await send({"type": "http.response.start", "status": self.status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self.app(scope, receive, send)


class Scene:
    """A shop, the payments that it asks, and what stands between them."""

    def __init__(self) -> None:
        self.port = free_port()
        self.clock = ManualClock()
        self.handled: list[str] = []
        self.charged: list[str] = []
        self.shop, self.payments = self._shop(), self._payments()
        self.gateway = Gateway(self.payments.http_app())
        self.ports: Ports

    def _shop(self) -> Endpoint:
        url = f"http://127.0.0.1:{self.port}/onceonly"
        shop = Endpoint("shop", store="memory://away", transport="memory://away", peers=[Peer(url)])

        @shop.handler
        async def place_order(order: AwayOrder, context: Context) -> None:
            await context.http.post(f"{url}/AwayCharge", AwayCharge(order.id), then=AwayCharged(order.id))

        @shop.handler
        async def charged(done: AwayCharged, context: Context) -> None:
            assert context.http.response.is_success
            self.handled.append(f"charged {done.id}")

        @shop.handler
        async def note(note: AwayNote) -> None:
            self.handled.append(f"note {note.id}")

        return shop

    def _payments(self) -> Endpoint:
        payments = Endpoint("payments", store="memory://payments", transport="memory://payments")

        @payments.responder
        async def charge(asked: AwayCharge) -> None:
            self.charged.append(asked.id)

        return payments

    @property
    def environment(self) -> Environment:
        """Return time that a test moves."""
        return Environment(clock=self.clock, random=FixedRandomSource())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Serve the payments, and open the shop without a worker."""
        asked = host_of(self.payments).opened(environment=self.environment)
        asking = host_of(self.shop).opened(environment=self.environment, observer=Logs())
        async with asked, served(self.gateway, self.port), asking as self.ports:  # type: ignore[arg-type]
            yield

    async def send(self, *messages: object) -> None:
        """Send messages to the shop."""
        async with self.shop.transaction() as tx:
            for message in messages:
                tx.send(message, to="shop")

    async def turn(self) -> BatchReport:
        """Take through what waits, as a worker does."""
        return await deliver(await self.ports.transport.receive(10, 0), self.ports)

    async def pass_an_hour(self) -> BatchReport:
        """Take turns for an hour."""
        report, end = BatchReport(), self.clock.now() + HOUR_MS
        while self.clock.now() < end:
            self.clock.advance(STEP_MS)
            report += await self.turn()
        return report

    async def settle(self) -> None:
        """Take turns until everything is handled."""
        for _ in range(5):
            self.clock.advance(STEP_MS)
            await self.turn()

    async def letters(self) -> int:
        """Count dead letters."""
        return len(await self.ports.dead_letters.page(Filter()))

    async def rows(self) -> int:
        """Count the attempts whose requests may be at the other side."""
        assert self.ports.maintenance.artifacts is not None
        return len(await self.ports.maintenance.artifacts._register.old(self.clock.now() + HOUR_MS, 1000))  # type: ignore[attr-defined]


@pytest.mark.parametrize("step", STEPS)
async def test_an_hour_at_each_step_counts_nothing_and_stops_nobody_else(step: str, caplog: pytest.LogCaptureFixture) -> None:
    """Of a batch with an order and a note, the note is handled at once. The order is charged once, when the peer is back."""
    caplog.set_level(logging.INFO, "onceonly")
    scene = Scene()
    async with scene.open():
        scene.gateway.stops = {step}
        await scene.send(AwayOrder("a"), AwayNote("b"))
        await scene.turn()
        assert "note b" in scene.handled
        report = await scene.pass_an_hour()
        assert (report.failed, report.dead, report.unknown, report.conflicted) == (0, 0, 0, 0)
        assert len(scene.gateway.refused) > 50  # it is asked again and again
        assert await scene.letters() == 0
        told = events(caplog.records)
        assert told == ["peer failing, requests will be retried"], told
        scene.gateway.stops = set()
        await scene.settle()
        assert scene.handled == ["note b", "charged a"]
        assert scene.charged == ["a"]
        assert events(caplog.records).count("peer recovered") == 1


async def test_a_peer_that_stops_answering_is_told_once_whatever_is_asked_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """All steps fail at once, for several messages at several steps."""
    caplog.set_level(logging.INFO, "onceonly")
    scene = Scene()
    async with scene.open():
        for number, step in enumerate(STEPS):
            scene.gateway.stops = {step}
            await scene.send(AwayOrder(str(number)))
            await scene.turn()
            await scene.turn()
        caplog.clear()
        scene.gateway.stops = {*STEPS}
        report = await scene.pass_an_hour()
        assert (report.failed, report.dead, report.unknown) == (0, 0, 0)
        assert set(events(caplog.records)) <= {"peer failing, requests will be retried"}
        scene.gateway.stops = set()
        for _ in range(10):
            await scene.settle()
        assert sorted(scene.charged) == ["0", "1", "2", "3"]
        assert sorted(scene.handled) == ["charged 0", "charged 1", "charged 2", "charged 3"]
        assert await scene.letters() == 0


async def test_the_sweeper_asks_a_peer_that_is_away_once_and_is_not_overdue(caplog: pytest.LogCaptureFixture) -> None:
    """The attempts that came to nothing stay for the next time. Then nothing is left of them."""
    caplog.set_level(logging.INFO, "onceonly")
    scene = Scene()
    async with scene.open():
        scene.gateway.stops = {*STEPS}
        await scene.send(*[AwayOrder(str(number)) for number in range(5)])
        await scene.turn()
        await scene.pass_an_hour()
        assert await scene.rows() > 100
        loop = MaintenanceLoop(scene.ports, grace=1, environment=scene.environment)
        for _ in range(3):
            scene.clock.advance(HOUR_MS)
            scene.gateway.refused.clear()
            journal = await loop.clean_up()
            assert journal is not None
            assert not journal.is_failing()
            assert not journal.overdue(scene.clock.now())
            assert scene.gateway.refused == ["DELETE"]
        assert events(caplog.records).count("peer failing, requests will be retried") == 1
        scene.gateway.stops = set()
        await scene.settle()
        scene.clock.advance(HOUR_MS)
        await loop.clean_up()
        assert await scene.rows() == 0
        assert sorted(scene.charged) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("status", [401, 403, 429, 503])
async def test_a_request_that_is_not_accepted_now_waits(status: int) -> None:
    """A wrong token or a limit of requests is not the message's failure, also where the answer has the protocol's header."""
    scene = Scene()
    scene.gateway.stops, scene.gateway.status, scene.gateway.is_service = {"PUT", "DELETE"}, status, True
    async with scene.open():
        await scene.send(AwayOrder("a"))
        await scene.turn()
        report = await scene.pass_an_hour()
        assert (report.failed, report.dead, await scene.letters()) == (0, 0, 0)
        scene.gateway.stops = set()
        await scene.settle()
        assert scene.handled == ["charged a"]
