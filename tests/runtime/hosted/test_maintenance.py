"""Maintenance where only a host runs: a step after a call, bounded in time, when it is due."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from onceonly import Endpoint, History, HostedMessage, Retry
from onceonly.assembly import open_store
from onceonly.config.worker import WorkerSettings
from onceonly.endpoint.host import host_of
from onceonly.hosted.transport import HostedTransport
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.runtime.environment import Environment
from onceonly.runtime.hosted.deliveries import HostedDeliveries, limits_of
from onceonly.runtime.hosted.maintenance import MaintenanceStep
from onceonly.runtime.maintenance.tasks import ROTATION
from onceonly.runtime.observe.observer import Point, PortCall
from tests.endpoint.hosted_harness import Order, order
from tests.runtime.harness import SHOP, FixedRandomSource
from tests.runtime.maintenance.harness import WEEK, WIDTH, JanitorHarness, message
from tests.runtime.relay.harness import PassingTimer

TURNS = 4
"""Messages in the time of a bucket."""


class HostedJanitorHarness(JanitorHarness):
    """An endpoint of the janitor's tests whose messages a host hands over."""

    def __init__(self) -> None:
        """Let the timer move the clock."""
        super().__init__()
        self.timer = PassingTimer(self.clock)

    def hosted(self, *, maintained: bool) -> HostedDeliveries:
        """Make what handles the messages, in a process that has or has not the step."""
        ports = self.ports()
        ports = ports._replace(transport=HostedTransport(ports.transport, SHOP))
        environment = Environment(clock=self.clock, random=FixedRandomSource(), timer=self.timer)
        step = MaintenanceStep(self.janitor(ports, timer=self.timer), environment) if maintained else None
        limits = limits_of(1, 1, 60.0)
        return HostedDeliveries(ports, WorkerSettings(), limits=limits, environment=environment, maintenance=step)

    async def host(self, hosted: HostedDeliveries, seconds: int) -> list[bool]:
        """Hand a fresh message over, again and again for so many seconds. Returns whether each was settled at once."""
        settled = []
        for number in range(seconds * 1000 * TURNS // WIDTH):
            fresh = message(f"{number}", self.clock.now())
            arrived = HostedMessage(fresh.body, {"ce-id": fresh.id, "ce-source": "web", "ce-type": "order"})
            (outcome,) = await hosted.handle([arrived], every=10.0)
            settled.append(outcome.is_settled)
            await self.timer.sleep(WIDTH / 1000 / TURNS)
        return settled


async def test_claims_go_on_for_twice_the_retention() -> None:
    """Only a host runs. Its calls rotate the buckets, and every message is handled when it comes."""
    harness = HostedJanitorHarness()
    await harness.simulated.open()
    settled = await harness.host(harness.hosted(maintained=True), 2 * WEEK // 1000)
    assert all(settled)
    assert len(settled) > TURNS * 8


async def test_without_the_step_claims_stop() -> None:
    """The control run: nobody rotates, so messages wait for their bucket before the retention is over."""
    harness = HostedJanitorHarness()
    await harness.simulated.open()
    settled = await harness.host(harness.hosted(maintained=False), 2 * WEEK // 1000)
    assert not all(settled)


async def test_a_step_rests_and_begins_at_once_when_a_message_waits_for_a_bucket() -> None:
    """It does not look at the journal after each call."""
    harness = HostedJanitorHarness()
    await harness.simulated.open()
    environment = Environment(clock=harness.clock, random=FixedRandomSource(), timer=harness.timer)
    step = MaintenanceStep(harness.janitor(timer=harness.timer), environment)
    await step.run()
    looks = harness.ring.looks
    assert looks > 0
    await step.run()
    assert harness.ring.looks == looks
    step.ask()
    await step.run()
    assert harness.ring.looks > looks


async def test_a_step_never_takes_longer_than_the_host_has() -> None:
    """A task that hangs is cut off and stays due, and it does not keep the others from being done."""
    harness = HostedJanitorHarness()
    ports = harness.ports()

    class HangingRing:
        """A ring whose tables are locked."""

        def __getattr__(self, name: str) -> object:
            return getattr(harness.ring, name)

        async def bucketing(self) -> object:
            await asyncio.Event().wait()

    ports = ports._replace(maintenance=ports.maintenance._replace(ring=HangingRing()))
    environment = Environment(clock=harness.clock, random=FixedRandomSource(), timer=harness.timer)
    step = MaintenanceStep(harness.janitor(ports), environment)
    async with asyncio.timeout(30):
        await step.run(0.4)
    journal = await harness.journals.read()
    assert journal is not None
    assert ROTATION not in journal.tasks
    assert "removing expired claims" in journal.tasks
    async with asyncio.timeout(30):
        await step.run(0.0)  # no time at all: nothing is begun


async def test_the_exit_ends_a_step(tmp_path: Path) -> None:
    """Otherwise it would go on with connections that are closed. Its call returns, and its message is settled."""
    shop, reached, ended = Endpoint("shop", store=f"sqlite:///{tmp_path}/store.db"), asyncio.Event(), []

    @shop.handler
    async def take(_: Order) -> None:
        """Do nothing."""

    class HangingMaintenance:
        """Waits at the first look into the journal."""

        @asynccontextmanager
        async def around(self, call: PortCall) -> AsyncIterator[None]:
            if call.point is Point.JOURNAL:
                try:
                    reached.set()
                    await asyncio.Event().wait()
                finally:
                    ended.append(True)
            yield

    async with asyncio.timeout(30):
        async with host_of(shop).hosted(observer=HangingMaintenance()) as hosted:
            call = asyncio.create_task(hosted.handle([order("a")]))
            await reached.wait()
        assert ended == [True]
        assert (await call)[0].is_settled


@pytest.mark.parametrize("janitor", [True, False])
async def test_a_host_on_sqlite_maintains_unless_it_is_told_not_to(tmp_path: Path, *, janitor: bool) -> None:
    """The first call finds that everything is due."""
    shop = Endpoint(
        "shop",
        store=f"sqlite:///{tmp_path}/store.db",
        deduplication=History(retention=timedelta(hours=1)),
        retry=Retry(immediate=1, delayed=0),
        janitor=janitor,
    )

    @shop.handler
    async def take(_: Order) -> None:
        """Do nothing."""

    async with host_of(shop).hosted() as hosted, open_store(shop.settings) as opened:
        assert (await hosted.handle([order("a")]))[0].is_settled
        assert opened.journals is not None
        journal = await opened.journals.read()
    tasks = {} if journal is None else journal.tasks
    assert (ROTATION in tasks) == janitor
    assert isinstance(journal, MaintenanceJournal) or not janitor
