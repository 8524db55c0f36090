"""A running worker reports its process, and no error of a report disturbs it."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from onceonly.model.errors import CommitFailed
from onceonly.model.health import REPORT_SECONDS, ProcessReport, ProcessState
from onceonly.model.minutes import MINUTE_MS, NO_WORK, WorkHistory
from onceonly.ports.maintenance import Backlog, PresenceState
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.presence import NO_REPORTS, LiveTypes, ReportedWorker, TypesElsewhere
from onceonly.runtime.worker.worker import Worker
from tests.runtime.harness import FAST, SHOP, FixedRandomSource, SimulatedEndpoint
from tests.runtime.relay.harness import PassingTimer


class WatchedPresence:
    """Keeps reports. The first `failing` calls fail, and `hangs` never answers."""

    def __init__(self, failing: int = 0, *, hangs: bool = False) -> None:
        self.reports: list[ProcessReport] = []
        self.removed: list[str] = []
        self.left = NO_WORK
        self.failing, self.hangs = failing, hangs
        self.called, self.reported = asyncio.Event(), asyncio.Event()

    async def report(self, report: ProcessReport) -> bool:
        """Take it in, or fail."""
        self.called.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.failing:
            self.failing -= 1
            raise CommitFailed("the store is away")
        self.reports.append(report)
        self.reported.set()
        return False

    async def remove(self, process: str, work: WorkHistory = NO_WORK) -> None:
        """Note it."""
        self.removed.append(process)
        self.left = work

    async def remove_unseen(self, seconds: float) -> int:
        """Remove nothing."""
        return 0

    async def read_all(self) -> PresenceState:
        """Return what `read` does."""
        return PresenceState(await self.read())

    async def read(self) -> Sequence[ProcessState]:
        """Return every process that has reported, or fail."""
        if self.failing:
            self.failing -= 1
            raise CommitFailed("the store is away")
        return tuple(ProcessState(report=each, age=0.0) for each in {each.process: each for each in self.reports}.values())


class CountingTimer(PassingTimer):
    """A timer that passes, and notes for how long it was asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Note it."""
        self.asked.append(seconds)
        await super().sleep(seconds)


def reported(simulated: SimulatedEndpoint, presence: WatchedPresence, timer: PassingTimer) -> tuple[ReportedWorker, Worker]:
    """Return a worker that reports."""
    worker = simulated.worker(FAST)
    environment = Environment(clock=simulated.clock, random=FixedRandomSource(), timer=timer)
    return ReportedWorker(worker, worker, presence, endpoint=SHOP, environment=environment), worker


async def test_a_worker_reports_what_it_has_counted_and_is_removed_at_its_end() -> None:
    """The numbers are those of the worker itself."""
    simulated, presence, stop, timer = await SimulatedEndpoint().open(), WatchedPresence(), asyncio.Event(), CountingTimer()
    await simulated.send("a", "b")
    runner, worker = reported(simulated, presence, timer)
    running = asyncio.create_task(runner.run(stop))
    async with asyncio.timeout(20):
        while (
            not presence.reports
            or presence.reports[-1].counters["handled"] < worker.report.handled
            or not worker.report.handled
        ):
            presence.reported.clear()
            await presence.reported.wait()
        assert not presence.removed
        stop.set()
        await running
    assert worker.report.handled == presence.reports[-1].counters["handled"] == 2
    assert {each.process for each in presence.reports} == {runner.process}
    assert presence.removed == [runner.process]
    assert REPORT_SECONDS in timer.asked


async def test_an_outage_is_logged_once_and_reports_continue(caplog: pytest.LogCaptureFixture) -> None:
    """The worker handles its messages meanwhile."""
    simulated, presence, stop = await SimulatedEndpoint().open(), WatchedPresence(3), asyncio.Event()
    runner, _ = reported(simulated, presence, PassingTimer())
    with caplog.at_level(logging.WARNING, "onceonly.presence"):
        running = asyncio.create_task(runner.run(stop))
        async with asyncio.timeout(20):
            await presence.reported.wait()
            stop.set()
            await running
    logged = [line.getMessage() for line in caplog.records if line.name == "onceonly.presence"]
    assert len(logged) == 1
    assert logged[0].startswith("process not reported, will be retried")


async def test_a_store_that_does_not_answer_delays_no_message() -> None:
    """A stop waits for it for 2 seconds, in which nothing else waits."""
    simulated, presence, stop = await SimulatedEndpoint().open(), WatchedPresence(hangs=True), asyncio.Event()
    await simulated.send("a")
    runner, worker = reported(simulated, presence, PassingTimer())
    running = asyncio.create_task(runner.run(stop))
    async with asyncio.timeout(20):
        await presence.called.wait()
        while not worker.report.handled:  # noqa: ASYNC110 - a worker has no event for it
            await asyncio.sleep(0)
        stop.set()
        await running
    assert worker.report.handled == 1
    assert not presence.reports


async def test_the_types_of_the_others_are_read_when_a_message_needs_them() -> None:
    """Not those of the process itself. Before and after the worker runs, none are known."""
    simulated, presence, stop = await SimulatedEndpoint().open(), WatchedPresence(), asyncio.Event()
    runner, _ = reported(simulated, presence, PassingTimer())
    elsewhere = TypesElsewhere()
    runner.with_types(("Order",), elsewhere)
    assert elsewhere.look() == LiveTypes(problem=NO_REPORTS)
    running = asyncio.create_task(runner.run(stop))
    async with asyncio.timeout(10):
        await presence.reported.wait()
    assert presence.reports[-1].types == ("Order",)
    presence.reports.append(ProcessReport(process="other", host="web-2", pid=7, version="1", types=("Paid",)))
    live = await until_known(elsewhere)
    assert live.takers("Paid") == ("other",)
    assert (live.takers("Order"), live.problem) == ((), "")
    stop.set()
    await running
    assert elsewhere.look() == LiveTypes(problem=NO_REPORTS)


async def test_processes_that_cannot_be_read_are_unknown() -> None:
    """With the reason."""
    simulated, presence, stop = await SimulatedEndpoint().open(), WatchedPresence(1000), asyncio.Event()
    runner, _ = reported(simulated, presence, PassingTimer())
    elsewhere = TypesElsewhere()
    running = asyncio.create_task(runner.with_types(("Order",), elsewhere).run(stop))
    live = await until_known(elsewhere)
    assert live == LiveTypes((), "the processes cannot be read (CommitFailed: the store is away)")
    stop.set()
    await running


async def until_known(elsewhere: TypesElsewhere) -> LiveTypes:
    """Return what is read when it is asked for."""
    for _ in range(1000):
        if (found := elsewhere.look()) is not None and found.problem != NO_REPORTS:
            return found
        await asyncio.sleep(0)
    raise AssertionError("it was not read")


async def test_a_worker_reports_what_it_did_by_the_minute() -> None:
    """Also what it did after its last report: that is handed over when its row is removed."""
    simulated, presence, stop = await SimulatedEndpoint().open(), WatchedPresence(), asyncio.Event()
    await simulated.send("a", "b")
    runner, worker = reported(simulated, presence, PassingTimer())
    running = asyncio.create_task(runner.run(stop))
    async with asyncio.timeout(20):
        while worker.report.handled < 2:  # noqa: ASYNC110 - a worker has no event for it
            await asyncio.sleep(0)
        stop.set()
        await running
    assert sum(span.handled for span in presence.left.minutes.values()) == 2
    assert sum(sum(span.runs.values()) for span in presence.left.quarters.values()) == 2


@pytest.mark.parametrize("fails", [False, True])
async def test_a_worker_reports_what_waits(fails: bool) -> None:  # noqa: FBT001
    """It asks its broker once a minute. An error disturbs no report, and the number is unknown."""
    simulated, presence, stop, asked = await SimulatedEndpoint().open(), WatchedPresence(), asyncio.Event(), []

    async def backlog() -> Backlog:
        asked.append(simulated.clock.now())
        if fails:
            raise CommitFailed("the broker is away")
        return Backlog(waiting=17, oldest=2_000)

    runner, worker = reported(simulated, presence, PassingTimer())
    worker.backlog = backlog  # type: ignore[method-assign]
    running = asyncio.create_task(runner.run(stop))
    async with asyncio.timeout(20):
        while len(presence.reports) < 3:
            presence.reported.clear()
            await presence.reported.wait()
        stop.set()
        await running
    (span,) = presence.reports[-1].work.minutes.values()
    assert (span.waiting, span.oldest) == ((None, None) if fails else (17, 2_000))
    assert len(asked) == len({now // MINUTE_MS for now in asked})
