"""An endpoint without a worker, with a retention of minutes: a host keeps its claims going, or names it before they stop."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from onceonly import Endpoint
from onceonly.assembly import open_relay, open_store
from onceonly.cli.relay import POLL_SECONDS
from onceonly.endpoint.host import host_of
from onceonly.model.health import HangLimits, Level, ProcessHealth, Pulse, readiness
from onceonly.model.hosted import HostedMessage
from onceonly.model.identity import NAME_BYTES, timed_id
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.maintenance.tasks import late_buckets
from onceonly.runtime.maintenance.unmaintained import read_unmaintained
from onceonly.runtime.observe.health_state import HealthObserver, NoLogs
from onceonly.runtime.observe.observer import Point
from onceonly_conformance.clock import ManualClock
from tests.endpoint.harness import FixedRandomSource
from tests.log_events import event_in
from tests.runtime.maintenance.test_unmaintained import RETENTION_MS, STEP_MS, shop_in
from tests.runtime.relay.harness import StandingTimer

STEPS = 2 * RETENTION_MS // STEP_MS
NAMED = "endpoint is not maintained"
Turn = Callable[[], Awaitable[bool]]
"""Does what the process does in five seconds, and returns whether its report names the endpoint."""


class ClockTimer(StandingTimer):
    """Time is that of the clock, which only the test moves. What sleeps in the background never wakes up."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock

    def seconds(self) -> float:
        """Return the time of the clock."""
        return self._clock.now() / 1000


class Process:
    """A process in simulated time."""

    def __init__(self, shop: Endpoint) -> None:
        self.shop, self.clock = shop, ManualClock()
        self.environment = Environment(clock=self.clock, random=FixedRandomSource(), timer=ClockTimer(self.clock))
        self.health = HealthObserver(NoLogs(), clock=self.clock, first=Point.JOURNAL)

    def message(self, number: int) -> HostedMessage:
        """Make a message whose claim is in the bucket of this moment."""
        id_ = timed_id("web", self.clock.now(), str(number).encode().rjust(NAME_BYTES, b"\0"))
        return HostedMessage(b"{}", {"ce-id": id_, "ce-source": "web", "ce-type": "Order"})

    def is_named(self) -> bool:
        """Return whether `/ready` names the endpoint and the janitor. The endpoint is degraded then, and not failing."""
        pulse = Pulse(process=0, pid=1, runs=True)
        report = readiness(
            [ProcessHealth(pulse=pulse, endpoints=self.health.endpoints())],
            [self.shop.name],
            patience=HangLimits(silent=POLL_SECONDS),
            now=self.clock.now(),
        )
        is_named = any("endpoint shop" in reason and "no process ran the janitor" in reason for reason in report.reasons)
        assert not is_named or report.status is Level.DEGRADED
        return is_named

    async def look(self) -> tuple[bool, bool]:
        """Return whether `schema check` names the endpoint, and whether messages wait for a bucket."""
        async with open_store(self.shop.settings, environment=self.environment) as parts:
            assert parts.ring is not None
            reason = await read_unmaintained(parts.journals, parts.ring, self.clock.now())
            return bool(reason), any(bucket.stops for bucket in await late_buckets(parts.ring))


@asynccontextmanager
async def hosted(process: Process) -> AsyncIterator[Turn]:
    """Hand over a message at each turn."""
    number = 0

    async def turn() -> bool:
        nonlocal number
        number += 1
        await opened.handle([process.message(number)])
        return any("no process has run its janitor" in trouble for trouble in opened.troubles)

    async with host_of(process.shop).hosted(environment=process.environment) as opened:
        yield turn


@asynccontextmanager
async def worker(process: Process) -> AsyncIterator[Turn]:
    """Run the maintenance of a worker."""
    async with host_of(process.shop).opened(environment=process.environment, observer=process.health) as ports:
        loop = MaintenanceLoop(ports, grace=1.0, environment=process.environment)

        async def turn() -> bool:
            await loop._run_round()
            return process.is_named()

        yield turn


@asynccontextmanager
async def relay(process: Process) -> AsyncIterator[Turn]:
    """Run the maintenance of `onceonly relay`."""
    async with open_relay(process.shop.settings, environment=process.environment, observer=process.health) as ports:
        loop = MaintenanceLoop(ports, grace=1.0, environment=process.environment)

        async def turn() -> bool:
            await loop._run_round()
            return process.is_named()

        yield turn


@pytest.mark.parametrize("kind", [hosted, worker, relay])
@pytest.mark.slow
async def test_the_endpoint_is_named_before_its_claims_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Callable[[Process], AsyncIterator[Turn]]
) -> None:
    """With `janitor=False` and nobody who maintains it: in the report, by `schema check`, and once in the log."""
    queue = f"sqlite:///{tmp_path}/queue.db"
    process = Process(shop_in(tmp_path, janitor=False, transport=queue))
    named: dict[str, int] = {}
    stops = STEPS
    async with kind(process) as turn:
        await turn()
        for step in range(STEPS):
            process.clock.advance(STEP_MS)
            is_checked, is_stopped = await process.look()
            stops = min(stops, step) if is_stopped else stops
            is_reported = await turn()
            is_logged = NAMED in [event_in(record) for record in caplog.records]
            for name, has in (("check", is_checked), ("report", is_reported), ("log", is_logged)):
                if has:
                    named.setdefault(name, step)
    assert stops < STEPS  # the control: they do stop
    assert set(named) == {"check", "report", "log"}
    assert max(named.values()) < stops
    assert [event_in(record) for record in caplog.records].count(NAMED) == 1


@pytest.mark.slow
async def test_a_host_alone_keeps_claims_going_for_twice_the_retention(tmp_path: Path) -> None:
    """Every message is settled at its first delivery, and nothing is wrong at any time."""
    process = Process(shop_in(tmp_path, transport=None))
    async with host_of(process.shop).hosted(environment=process.environment) as opened:
        for number in range(STEPS):
            (outcome,) = await opened.handle([process.message(number)])
            assert outcome.is_settled, outcome
            assert opened.troubles == ()
            assert (await process.look()) == (False, False)
            process.clock.advance(STEP_MS)
