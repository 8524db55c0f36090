"""An endpoint that nobody maintains is named before its claims stop, by processes without a janitor, and by `schema check`."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceonly import Endpoint, History, Retry
from onceonly.assembly import open_store
from onceonly.assembly.transactions import outside, watch_of
from onceonly.endpoint.host import host_of
from onceonly.model.errors import CommitFailed
from onceonly.model.maintenance_journal import OVERDUE_MS, LateBucket, MaintenanceJournal, unmaintained_reason
from onceonly.model.ring import TIME_BUCKETS
from onceonly.ports.bundle import Ports
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.maintenance.tasks import late_buckets
from onceonly.runtime.maintenance.unmaintained import MaintenanceWatch
from onceonly_conformance.clock import ManualClock
from tests.endpoint.harness import FixedRandomSource
from tests.log_events import event_in

RETENTION = timedelta(minutes=6)
RETENTION_MS = round(RETENTION.total_seconds() * 1000)
STEP_MS = 5000
EVENTS = ("endpoint is not maintained", "endpoint is maintained again")
LATE = LateBucket(number=3, late=1, reason="no process ran the task")
STOPPED = LateBucket(number=4, late=1, reason="no process ran the task", stops=True)


def shop_in(folder: Path, **settings: Any) -> Endpoint:
    """Make an endpoint that keeps claims for minutes."""
    short = {"retry": Retry(immediate=0, delayed=0), "timeout": 1.0, "manual_retry": timedelta(seconds=1)}
    short |= {"max_commit": timedelta(seconds=1), "deduplication": History(RETENTION)}
    place = f"sqlite:///{folder}/shop.db"
    shop = Endpoint(**{"name": "shop", "store": place, "transport": "memory://unmaintained"} | short | settings)

    @shop.handler(type="Order")
    async def place_order(body: dict[str, object]) -> None:
        """Handle nothing here."""

    return shop


class Web:
    """A web process: it has transactions, and runs nothing else."""

    def __init__(self, shop: Endpoint) -> None:
        self.clock = ManualClock()
        self.environment = Environment(clock=self.clock, random=FixedRandomSource())
        self.settings = shop.settings
        self.watch = watch_of(shop.settings, self.environment)

    async def request(self) -> None:
        """Do what a request does."""
        async with outside(self.settings, environment=self.environment, watch=self.watch):
            pass

    async def stopped(self) -> bool:
        """Return whether messages wait for a bucket by now."""
        async with open_store(self.settings, environment=self.environment) as parts:
            assert parts.ring is not None
            return any(bucket.stops for bucket in await late_buckets(parts.ring))


@asynccontextmanager
async def janitor(shop: Endpoint, web: Web) -> AsyncIterator[tuple[MaintenanceLoop, Ports]]:
    """Open the endpoint in another process."""
    async with host_of(shop).opened(environment=web.environment) as ports:
        yield MaintenanceLoop(ports, grace=1.0, environment=web.environment), ports


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged about maintenance."""
    return [event_in(record) for record in caplog.records if event_in(record) in EVENTS]


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.slow
async def test_a_web_process_names_the_endpoint_before_its_claims_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, has_begun: bool
) -> None:
    """Whether a janitor ever ran or not. Once, over twice the retention."""
    shop = shop_in(tmp_path)
    web = Web(shop)
    await web.request()
    if has_begun:
        async with janitor(shop, web) as (loop, _):
            await loop.clean_up()
    for _ in range(2 * RETENTION_MS // STEP_MS):
        web.clock.advance(STEP_MS)
        was_stopped = await web.stopped()
        is_new = not logged(caplog)
        await web.request()
        if is_new and logged(caplog):
            assert not was_stopped
    assert logged(caplog) == ["endpoint is not maintained"]
    (record,) = (record for record in caplog.records if event_in(record) in EVENTS)
    assert vars(record)["endpoint"] == "shop"
    assert "no process has run its janitor" in vars(record)["reason"]
    assert await web.stopped()  # the control: they do stop


async def test_it_is_logged_when_somebody_maintains_it_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """And nothing is logged as long as a janitor comes in time."""
    caplog.set_level(logging.INFO, "onceonly.janitor")
    shop = shop_in(tmp_path)
    web = Web(shop)
    await web.request()
    async with janitor(shop, web) as (loop, _):
        for _ in range(RETENTION_MS // 15_000):
            await loop.clean_up()
            web.clock.advance(15_000)
            await web.request()
        assert logged(caplog) == []
        web.clock.advance(RETENTION_MS)
        await web.request()
        await loop.clean_up()
        web.clock.advance(15_000)
        await web.request()
    assert logged(caplog) == [*EVENTS]


async def test_a_process_that_leaves_it_to_others_names_the_endpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A worker with `janitor=False` reads the journal anyway."""
    shop = shop_in(tmp_path, janitor=False)
    web = Web(shop)
    async with janitor(shop, web) as (loop, _):
        await loop._run_round()
        assert logged(caplog) == []
        web.clock.advance(RETENTION_MS // 4)
        await loop._run_round()
        await loop._run_round()
    assert logged(caplog) == ["endpoint is not maintained"]


async def test_a_store_that_does_not_answer_fails_no_transaction() -> None:
    """Nor is it asked again at once."""
    clock, asked = ManualClock(), []

    class Away:
        async def read(self) -> None:
            asked.append(clock.now())
            raise CommitFailed("away")

    watch, away = MaintenanceWatch("shop", retention=0, clock=clock), Away()
    for _ in range(3):
        await watch.look(away, None)  # type: ignore[arg-type]  # it only reads
    assert len(asked) == 1
    clock.advance(60_000)
    await watch.look(away, None)  # type: ignore[arg-type]  # the same
    assert len(asked) == 2


def test_what_counts_as_not_maintained() -> None:
    """A new endpoint does not, until a bucket is late; one whose janitor comes in time does not, whatever is late."""
    now = 10 * OVERDUE_MS
    fresh = MaintenanceJournal(at=now, interval=60_000)
    old = MaintenanceJournal(at=now - OVERDUE_MS - 1, interval=60_000)
    assert unmaintained_reason(None, (), now) == ""
    assert unmaintained_reason(fresh, (STOPPED,), now) == ""
    assert "expired claims and keys are not deleted" in unmaintained_reason(old, (), now)
    assert "messages will wait for 1 time bucket" in unmaintained_reason(None, (LATE,), now)
    assert "messages wait for 2 time buckets" in unmaintained_reason(old, (LATE, STOPPED), now)


def test_it_is_overdue_sooner_where_time_buckets_are_short() -> None:
    """After one bucket, or three rounds; never later than where they are long."""
    journal = MaintenanceJournal(at=0, interval=10_000, retention=TIME_BUCKETS * 40_000)
    assert (journal.overdue(40_000), journal.overdue(40_001)) == (0, 40_001)
    rare = MaintenanceJournal(at=0, interval=30_000, retention=TIME_BUCKETS * 40_000)
    assert (rare.overdue(90_000), rare.overdue(90_001)) == (0, 90_001)
    week = MaintenanceJournal(at=0, interval=60_000, retention=7 * 86_400_000)
    assert (week.overdue(OVERDUE_MS), week.overdue(OVERDUE_MS + 1)) == (0, OVERDUE_MS + 1)
