"""The janitor: one at a time, whatever dies. It deletes what is old, sends what is pending, and reports failures."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentJournals
from onceonly.model.errors import CommitFailed, WrongEventLoop
from onceonly.model.health import Trouble
from onceonly.model.maintenance_journal import OVERDUE_MS, MaintenanceJournal, TaskRun
from onceonly.model.message import Send
from onceonly.ports.maintenance import Maintenance
from onceonly.ports.transport import Topology
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop
from onceonly.runtime.maintenance.tasks import PAGE
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.worker.worker import Worker
from tests.log_events import event_in, events
from tests.runtime.harness import FAST, SHOP, SINK, StopWhen
from tests.runtime.maintenance.harness import INTERVAL, NOW, WEEK, WIDTH, JanitorHarness, OtherLeader, message
from tests.runtime.relay.harness import StandingTimer


async def test_a_bucket_is_rotated_as_soon_as_all_of_it_may_be_forgotten() -> None:
    """And what it held is forgotten, not before."""
    harness = JanitorHarness()
    await harness.handle("m", instant=NOW)
    harness.clock.advance(WEEK + WIDTH - 6)
    await harness.round()
    assert await harness.is_known("m", NOW)
    harness.clock.advance(1)
    before = len(harness.ring.rotated)
    journal = await harness.round()
    assert len(harness.ring.rotated) == before + 1
    assert journal.tasks["recycling slots"].count == 1
    assert not await harness.is_known("m", NOW)
    assert journal.late == ()


async def test_claims_without_an_instant_go_page_by_page_when_they_have_expired() -> None:
    """All of those that are old, in one round."""
    harness = JanitorHarness()
    await harness.handle(*(f"m{number}" for number in range(2 * PAGE + 1)))
    harness.clock.advance(WEEK)
    await harness.handle("young")
    await harness.round()
    assert harness.ring.removed == 0
    harness.clock.advance(1)
    journal = await harness.round()
    assert journal.tasks["removing expired claims"].count == 2 * PAGE + 1
    assert await harness.is_known("young")


@pytest.mark.parametrize("place", ["journals", "ring"])
async def test_a_connection_of_another_event_loop_ends_the_janitor(place: str, caplog: pytest.LogCaptureFixture) -> None:
    """No retry helps, so it is raised and logged once, in a round and in one of its tasks."""
    harness = JanitorHarness()

    async def fail(*_: object, **__: object) -> None:
        raise WrongEventLoop("the database engine has connections of another event loop")

    if place == "ring":
        harness.ring.looked = fail
        ports = harness.ports()
    else:
        journals = DocumentJournals(MemoryDocuments(Live()), SHOP)
        journals.read = fail  # type: ignore[method-assign] # what it reads does not matter
        ports = harness.ports(journals=journals)
    with pytest.raises(WrongEventLoop):
        async with asyncio.timeout(20):
            await harness.janitor(ports).run(asyncio.Event())
    assert events(caplog.records) == ["janitor failed"]


async def test_a_record_that_stands_in_the_way_is_sent_first() -> None:
    """In the same round, so its bucket is rotated in time."""
    harness = JanitorHarness()
    await harness.simulated.transport.declare([Topology(endpoint=SINK, events=("done",))])
    await harness.handle("m", instant=NOW, is_pending=True)
    harness.clock.advance(WEEK + WIDTH)
    journal = await harness.round()
    assert harness.simulated.announced() == [message("m", NOW).id]
    assert (journal.tasks["sending old records"].count, journal.tasks["recycling slots"].count) == (1, 13)


async def test_a_bucket_that_a_refused_record_keeps_is_told_once_it_is_late(caplog: pytest.LogCaptureFixture) -> None:
    """Degraded while there are buckets to spare; messages are held up when there are none left."""
    harness = JanitorHarness()
    await harness.handle("m", instant=NOW, is_pending=True)
    harness.store.take = no_records  # type: ignore[method-assign] # as if the broker refused it for ever
    harness.clock.advance(WEEK + WIDTH)
    assert (await harness.round()).late == ()
    harness.clock.advance(WIDTH // 2)
    (late,) = (await harness.round()).late
    assert (late.late, late.stops) == (WIDTH // 2 + 5, False)
    assert late.reason.startswith("1 record with unsent messages")
    harness.clock.advance(3 * WIDTH)
    assert any(bucket.stops for bucket in (await harness.round()).late)
    assert [event_in(each) for each in caplog.records if each.levelno == logging.WARNING] == [
        "time bucket late",
        "ALARM: time bucket late, messages delayed",
    ]


async def no_records(*_: Any, **__: Any) -> tuple[()]:
    """Find none."""
    return ()


async def test_a_bucket_that_is_always_read_is_emptied_row_by_row_in_the_end() -> None:
    """Only when half of the time to spare is used up."""
    harness = JanitorHarness()
    await harness.round()
    harness.clock.advance(WIDTH)
    harness.ring.busy, harness.ring.rotated = 1000, []
    assert (await harness.round()).tasks["recycling slots"].count == 0
    assert [by_rows for _, by_rows in harness.ring.rotated] == [False]
    harness.clock.advance(WIDTH - 6)
    await harness.round()
    assert not any(by_rows for _, by_rows in harness.ring.rotated)
    harness.clock.advance(1)
    assert (await harness.round()).tasks["recycling slots"].count == 1
    assert [by_rows for _, by_rows in harness.ring.rotated].count(True) == 1


async def test_two_janitors_at_once_do_not_overlap() -> None:
    """The second one leaves it to the first, and does not wait."""
    harness, inside = JanitorHarness(), 0
    most = 0

    async def looked() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        for _ in range(20):
            await asyncio.sleep(0)
        inside -= 1

    harness.ring.looked = looked
    one, other = await asyncio.gather(harness.janitor().clean_up(), harness.janitor().clean_up())
    assert (one is None) != (other is None)
    assert most == 1


async def test_what_one_has_done_another_does_not_do_again_before_it_is_due() -> None:
    """They share a journal: many processes look, and one of them works in each interval."""
    harness = JanitorHarness()
    janitors = [harness.janitor() for _ in range(5)]
    for _ in range(20):
        for janitor in janitors:
            await janitor._run_round()
        harness.clock.advance(round(INTERVAL * 1000 / 2))
    assert harness.ring.looks == 2 * 10  # one to rotate and one to judge, in each of ten intervals


async def test_another_takes_over_when_the_leader_dies() -> None:
    """In the middle of its work, without a word."""
    harness, began = JanitorHarness(), asyncio.Event()

    async def hangs() -> None:
        began.set()
        await asyncio.Event().wait()

    harness.ring.looked = hangs
    dying = asyncio.create_task(harness.janitor().clean_up())
    await began.wait()
    assert await harness.janitor().clean_up() is None
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    harness.ring.looked = not_at_all
    assert await harness.janitor().clean_up() is not None


async def not_at_all() -> None:
    """Do nothing."""


async def test_who_may_not_lead_knows_all_the_same_how_the_janitor_is() -> None:
    """`janitor=False`: it reads, and never does anything."""
    harness = JanitorHarness()
    watching, reads = harness.janitor(harness.ports(leads=False, journals=(counted := CountedJournals(harness)))), 3
    counted.until, counted.stop = reads, harness.stop
    async with asyncio.timeout(20):
        await watching.run(harness.stop)
    assert counted.reads == reads
    assert harness.ring.looks == 0


class CountedJournals:
    """Journals that stop a janitor after some reads."""

    def __init__(self, harness: JanitorHarness) -> None:
        self._inner = harness.journals
        self.reads, self.until, self.stop = 0, 1, asyncio.Event()
        self.write, self.longest_retention = self._inner.write, self._inner.longest_retention

    async def read(self) -> MaintenanceJournal | None:
        """Count."""
        self.reads += 1
        if self.reads >= self.until:
            self.stop.set()
        return await self._inner.read()


async def test_a_chore_that_fails_is_noted_and_keeps_no_other_from_being_done(caplog: pytest.LogCaptureFixture) -> None:
    """It is told when it begins and when it ends."""
    caplog.set_level(logging.INFO, "onceonly.janitor")
    harness = JanitorHarness()
    await harness.handle("old")
    harness.clock.advance(WEEK + 1)
    harness.ring.failures = 1
    journal = await harness.round()
    failed = journal.tasks["recycling slots"]
    assert (failed.failing_since, failed.reason) == (harness.clock.now(), "CommitFailed: the place is away")
    assert journal.tasks["removing expired claims"].count == 1
    assert list(journal.troubles(harness.clock.now())) == [
        Trouble(
            part="janitor", reason="recycling slots: CommitFailed: the place is away", since=harness.clock.now(), stops=False
        )
    ]
    since = harness.clock.now()
    harness.clock.advance(1000)
    harness.ring.failures = 1
    assert (await harness.round()).tasks["recycling slots"].failing_since == since
    assert not list((await harness.round()).troubles(harness.clock.now()))
    told = [event_in(each) for each in caplog.records if vars(each).get("task") == "recycling slots"]
    assert told == ["janitor task failing", "janitor task recovered"]


async def test_a_bucket_that_cannot_be_rotated_keeps_no_other_from_it() -> None:
    """It is told as a failure, and as late once it is, with the reason."""
    harness = JanitorHarness()
    await harness.round()
    harness.clock.advance(WEEK + WIDTH)
    harness.ring.forbidden, harness.ring.rotated = {10}, []
    journal = await harness.round()
    assert len(harness.ring.rotated) == 13
    assert journal.tasks["recycling slots"].reason == "CommitFailed: permission denied"
    (late,) = journal.late
    assert (late.number, late.reason) == (*harness.ring.forbidden, "permission denied")


async def test_a_bug_in_a_chore_is_told_with_its_traceback_every_time(caplog: pytest.LogCaptureFixture) -> None:
    """And ends no janitor."""
    harness = JanitorHarness()

    async def is_wrong() -> None:
        raise ZeroDivisionError

    harness.ring.looked = is_wrong
    await harness.round()
    assert (await harness.round()).tasks["recycling slots"].reason.startswith("ZeroDivisionError")
    assert [each.exc_info is not None for each in caplog.records if each.levelno == logging.ERROR] == [True, True]


async def test_a_journal_that_cannot_be_read_ends_no_janitor(caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, and so is its end."""
    caplog.set_level(logging.INFO, "onceonly.janitor")
    harness = JanitorHarness()
    journals = FailingJournals(harness, times=3)
    await harness.run(harness.janitor(harness.ports(journals=journals)), until=lambda: True)
    told = events(caplog.records)
    assert told[:2] == ["janitor cannot run, retrying with backoff", "janitor recovered"]


class FailingJournals(CountedJournals):
    """Journals that cannot be read so often."""

    def __init__(self, harness: JanitorHarness, *, times: int) -> None:
        super().__init__(harness)
        self._times, self.until = times, 10**9

    async def read(self) -> MaintenanceJournal | None:
        """Read, or fail."""
        self._times -= 1
        if self._times >= 0:
            raise CommitFailed("the place is away")
        return await super().read()


async def test_a_message_that_waits_for_its_bucket_has_the_janitor_come_soon() -> None:
    """Not in a minute; and however many ask, not more often than once a second."""
    harness = JanitorHarness()
    await harness.round()
    looks = harness.ring.looks
    janitor = harness.janitor()
    asked: list[float] = []

    async def looked() -> None:
        asked.append(harness.timer.seconds())
        janitor.ask()
        if len(asked) >= 8:
            harness.stop.set()

    harness.ring.looked = looked
    janitor.ask()
    async with asyncio.timeout(20):
        await janitor.run(harness.stop)
    assert asked == [0, 0, 1, 1, 2, 2, 3, 3]  # one to rotate and one to judge
    assert harness.ring.looks == looks + 8


async def test_a_worker_whose_message_waits_for_its_bucket_asks() -> None:
    """The message is put off meanwhile, and handled once somebody was there."""
    harness = JanitorHarness()
    await harness.simulated.open()
    await harness.handle("before", instant=NOW)
    harness.clock.advance(WEEK + 4 * WIDTH)
    sent = message("m", harness.clock.now())
    await harness.simulated.transport.send([Send(message=sent, to=SHOP)])

    def ask() -> None:
        harness.stop.set()

    ports = harness.ports()
    async with asyncio.timeout(20):
        await Worker(ports, FAST, environment=harness.simulated.environment, ask=ask).run(harness.stop)
    assert harness.simulated.handlers.started == []
    await harness.round()
    harness.clock.advance(10_000)
    stop = asyncio.Event()
    handled = StopWhen(stop, lambda: bool(harness.simulated.handlers.started) and harness.simulated.idle())
    async with asyncio.timeout(20):
        await Worker(observed(ports, handled), FAST, environment=harness.simulated.environment).run(stop)
    assert harness.simulated.handlers.started == [sent.id]


async def test_when_somebody_else_leads_nothing_is_done_and_nothing_is_waited_for() -> None:
    """Until that one is gone."""
    harness, other = JanitorHarness(), OtherLeader()
    janitor = harness.janitor(harness.ports(leader=other))
    assert await janitor.clean_up() is None
    assert harness.ring.looks == 0
    other.is_free = True
    assert await janitor.clean_up() is not None


async def test_a_stop_ends_its_rest_at_once() -> None:
    """However long the rest would be."""
    harness = JanitorHarness()
    harness.timer.sleep = forever  # type: ignore[method-assign] # time stands still
    await harness.run(harness.janitor(), until=lambda: True)


async def forever(_seconds: float) -> None:
    """Sleep for ever."""
    await asyncio.Event().wait()


def test_nothing_to_look_after_needs_no_janitor() -> None:
    """A counter alone is nobody's work."""
    assert not Maintenance().has_tasks
    assert Maintenance(keys=object()).has_tasks  # type: ignore[arg-type] # looked at for being there


def test_a_janitor_that_has_not_come_for_long_is_told() -> None:
    """After three intervals, and five minutes at least; a clock that was ahead hides nothing."""
    journal = MaintenanceJournal(at=NOW, interval=60_000)
    assert not list(journal.troubles(NOW + OVERDUE_MS))
    (trouble,) = journal.troubles(NOW + OVERDUE_MS + 1)
    assert (trouble.part, trouble.since, trouble.stops) == ("janitor", NOW, False)
    assert "due every 1 min" in trouble.reason
    ahead = MaintenanceJournal(at=NOW, interval=60_000, tasks={"any": TaskRun(at=NOW)})
    assert [ahead.is_due("any", 60.0, now) for now in (NOW - 1, NOW, NOW + 59_999, NOW + 60_000)] == [True, False, False, True]


@pytest.mark.parametrize("since", [{"journal": NOW, "process": 0}, {"journal": 0, "process": NOW}])
def test_a_janitor_is_not_overdue_before_there_was_one(since: dict[str, int]) -> None:
    """Neither right after a long stop, nor where the process that asks has just begun."""
    journal = MaintenanceJournal(at=NOW - WEEK, interval=60_000, since=since["journal"])
    asked = since["process"]
    assert (journal.overdue(NOW, since=asked), journal.overdue(NOW + OVERDUE_MS, since=asked)) == (0, 0)
    assert journal.overdue(NOW + OVERDUE_MS + 1, since=asked) == OVERDUE_MS + 1


class NotedJournals:
    """Journals that show whether they were written."""

    def __init__(self, inner: DocumentJournals) -> None:
        self._inner = inner
        self.read, self.longest_retention = inner.read, inner.longest_retention
        self.is_written = False

    async def write(self, journal: MaintenanceJournal) -> None:
        """Write."""
        await self._inner.write(journal)
        self.is_written = True


class FirstPause(StandingTimer):
    """A timer that tells when somebody sleeps."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        """Tell, and sleep until cancelled."""
        self.begun.set()
        await super().sleep(seconds)


class LatestMoment:
    """Chance that puts everything off for as long as it may."""

    def fraction(self) -> float:
        """Return nearly one."""
        return 0.999


async def waiting(harness: JanitorHarness, journal: MaintenanceJournal, **maintenance: object) -> NotedJournals:
    """Start a janitor, and stop it while it waits for its first round."""
    await harness.journals.write(journal)
    journals, timer = NotedJournals(harness.journals), FirstPause()
    environment = Environment(clock=harness.clock, random=LatestMoment(), timer=timer)
    janitor = MaintenanceLoop(harness.ports(journals=journals, **maintenance), grace=0, environment=environment)
    running = asyncio.create_task(janitor.run(harness.stop))
    async with asyncio.timeout(20):
        await timer.begun.wait()
        harness.stop.set()
        await running
    return journals


async def test_a_janitor_that_starts_after_a_long_stop_is_not_overdue() -> None:
    """Nor does `onceonly status` report it. It is overdue when it does not come in time after that."""
    harness = JanitorHarness()
    old = MaintenanceJournal(at=NOW - WEEK, interval=round(INTERVAL * 1000), by="an earlier process")
    assert old.overdue(harness.clock.now())
    await waiting(harness, old)
    found = await harness.journals.read()
    assert found == replace(old, since=harness.clock.now())
    assert not found.overdue(harness.clock.now())
    harness.clock.advance(OVERDUE_MS + 1)
    assert found.overdue(harness.clock.now())
    assert (await harness.round()).since == 0


@pytest.mark.parametrize(
    ("age", "maintenance"), [(OVERDUE_MS, {}), (WEEK, {"leads": False}), (WEEK, {"leader": OtherLeader()})]
)
async def test_a_janitor_takes_over_only_what_nobody_looks_after(age: int, maintenance: dict[str, object]) -> None:
    """Not one that comes in time, nor where it is not to lead, nor while another process does a round."""
    harness = JanitorHarness()
    journals = await waiting(harness, MaintenanceJournal(at=NOW - age, interval=round(INTERVAL * 1000)), **maintenance)
    assert not journals.is_written
