"""The vitals: what the calls of a process say about its store and its transport, and nothing that they do not say."""

import asyncio
from pathlib import Path

import pytest

from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OutcomeUnknown, QueueMissing, SetupError
from onceonly.model.health import EndpointHealth, Trouble
from onceonly.model.maintenance_journal import OVERDUE_MS, MaintenanceJournal, TaskRun
from onceonly.runtime.observe.health_state import FAILURE_FADES_MS, HealthObserver, keep_written, read_health, write_health
from onceonly.runtime.observe.observer import Observers, Point, PortCall
from onceonly_conformance.clock import ManualClock
from tests.runtime.harness import SimulatedEndpoint, StopWhen


async def called(
    health_observer: HealthObserver, point: Point, error: BaseException | None = None, result: object = None
) -> None:
    """Have a call of the shop end."""

    async def call() -> None:
        async with health_observer.around(PortCall(point, "shop", result=result)):
            if error is not None:
                raise error

    await asyncio.gather(call(), return_exceptions=True)


def troubles(health_observer: HealthObserver) -> list[str]:
    """Return what is in trouble."""
    return [trouble.part for health in health_observer.endpoints() for trouble in health.troubles]


async def test_a_worker_that_has_received_works() -> None:
    """Told by a real one, in memory."""
    simulated, health_observer, stop = await SimulatedEndpoint().open("a"), HealthObserver(clock=ManualClock()), asyncio.Event()
    assert health_observer.endpoints() == ()
    await simulated.worker(observer=Observers(StopWhen(stop, simulated.idle), health_observer)).run(stop)
    assert health_observer.endpoints() == (EndpointHealth(endpoint="shop", works=True),)


@pytest.mark.parametrize(
    ("point", "part"),
    [
        (Point.RECEIVE, "transport"),
        (Point.COMMIT, "store"),
        (Point.ADMITS, "deduplication"),
        (Point.REGISTER, "store"),
        (Point.TAKE, "store"),
        (Point.RECORD, "store"),
        (Point.REQUEST_OPEN, "store"),
        (Point.CREATE, "blobs or other services"),
        (Point.RESPONSE, "blobs or other services"),
        (Point.JOURNAL, "store"),
        (Point.NOTE, "janitor"),
    ],
)
async def test_a_call_that_fails_is_a_trouble_until_it_works_again(point: Point, part: str) -> None:
    """Since it began."""
    clock = ManualClock()
    health_observer = HealthObserver(clock=clock)
    began = clock.now()
    await called(health_observer, point, OutcomeUnknown("no answer"))
    clock.advance(5000)
    await called(health_observer, point, CommitFailed("refused"))
    ((found,),) = (health.troubles for health in health_observer.endpoints())
    assert (found.part, found.reason, found.since) == (part, f"{point} fails: OutcomeUnknown: no answer", began)
    await called(health_observer, point)
    assert troubles(health_observer) == []


@pytest.mark.parametrize(("point", "stops"), [(Point.CREATE, False), (Point.RESPONSE, False), (Point.REGISTER, True)])
async def test_another_service_that_is_away_keeps_only_what_needs_it_waiting(point: Point, stops: bool) -> None:  # noqa: FBT001 - pytest's
    """So the endpoint goes on, and nobody is to be restarted."""
    health_observer = HealthObserver()
    await called(health_observer, point, OutcomeUnknown("no answer"))
    assert [trouble.stops for health in health_observer.endpoints() for trouble in health.troubles] == [stops]


@pytest.mark.parametrize("error", [CommitFailed("away"), QueueMissing("gone"), RuntimeError("a bug"), OSError("cut off")])
async def test_an_outage_a_lost_queue_and_a_bug_are_troubles(error: Exception) -> None:
    """Nobody handles anything then."""
    health_observer = HealthObserver()
    await called(health_observer, Point.RECEIVE, error)
    assert troubles(health_observer) == ["transport"]


@pytest.mark.parametrize(
    "error", [ConflictError("lost"), CommitRefused("a constraint"), SetupError("wrong"), asyncio.CancelledError()]
)
async def test_a_lost_race_and_a_messages_own_failure_are_none(error: BaseException) -> None:
    """Nor is a stop."""
    health_observer = HealthObserver()
    await called(health_observer, Point.COMMIT, error)
    assert troubles(health_observer) == []


async def test_reading_does_not_make_up_for_commits_that_fail() -> None:
    """A full disk can be read."""
    health_observer = HealthObserver(clock=ManualClock())
    await called(health_observer, Point.COMMIT, CommitFailed("disk full"))
    await called(health_observer, Point.UNDISPATCHED)
    assert troubles(health_observer) == ["store"]


async def test_what_failed_once_and_was_not_tried_again_fades_when_others_of_its_kind_work() -> None:
    """After a minute; another part's success says nothing."""
    clock = ManualClock()
    health_observer = HealthObserver(clock=clock)
    await called(health_observer, Point.FIND, CommitFailed("away"))
    clock.advance(FAILURE_FADES_MS + 1)
    await called(health_observer, Point.RECEIVE)
    assert troubles(health_observer) == ["store"]
    await called(health_observer, Point.BEGIN)
    assert troubles(health_observer) == []


async def test_a_store_that_is_not_searched_is_believed_while_messages_are_received() -> None:
    """Nothing calls it without a message, and the message that failed here may have been handled elsewhere."""
    clock = ManualClock()
    health_observer = HealthObserver(clock=clock)
    await called(health_observer, Point.BEGIN, CommitFailed("away"))
    clock.advance(FAILURE_FADES_MS)
    await called(health_observer, Point.BEGIN, CommitFailed("still away"))
    clock.advance(FAILURE_FADES_MS)
    await called(health_observer, Point.RECEIVE)
    assert troubles(health_observer) == ["store"]
    clock.advance(1)
    await called(health_observer, Point.RECEIVE)
    assert troubles(health_observer) == []


async def test_what_the_journal_says_is_known_here_as_well() -> None:
    """Whichever process led; it counts for nothing until it is read."""
    clock = ManualClock()
    health_observer = HealthObserver(clock=clock)
    failing = TaskRun(at=clock.now(), failing_since=7, reason="CommitFailed: no")
    journal = MaintenanceJournal(at=clock.now(), interval=60_000, tasks={"recycling slots": failing})
    await called(health_observer, Point.JOURNAL, result=None)
    assert troubles(health_observer) == []
    await called(health_observer, Point.JOURNAL, result=journal)
    ((found,),) = (health.troubles for health in health_observer.endpoints())
    assert found == Trouble(part="janitor", reason="recycling slots: CommitFailed: no", since=7, stops=False)


async def test_a_janitor_is_not_overdue_before_this_process_began() -> None:
    """After a long stop the journal is old, and nobody was to be at it. It is overdue when nobody comes from then on."""
    clock = ManualClock()
    clock.advance(10 * OVERDUE_MS)
    health_observer = HealthObserver(clock=clock)
    await called(health_observer, Point.JOURNAL, result=MaintenanceJournal(at=clock.now() - 9 * OVERDUE_MS, interval=60_000))
    assert troubles(health_observer) == []
    clock.advance(OVERDUE_MS)
    assert troubles(health_observer) == []
    clock.advance(1)
    assert troubles(health_observer) == ["janitor"]


async def test_the_parent_reads_what_a_process_writes(tmp_path: Path) -> None:
    """And nothing where it has not written, or something else is there."""
    path = tmp_path / "vitals-0"
    assert read_health(path) == ()
    health_observer = HealthObserver(clock=ManualClock())
    await called(health_observer, Point.RECEIVE)
    assert write_health(health_observer, path) == read_health(path) == (EndpointHealth(endpoint="shop", works=True),)
    path.write_bytes(b"half")
    assert read_health(path) == ()


async def test_changes_are_written_by_themselves(tmp_path: Path) -> None:
    """Soon."""
    path, health_observer = tmp_path / "vitals-0", HealthObserver()
    writing = asyncio.create_task(keep_written(health_observer, path, every=0.001))
    await called(health_observer, Point.RECEIVE, CommitFailed("away"))
    async with asyncio.timeout(10):
        while not read_health(path):  # noqa: ASYNC110 - a file tells nobody that it changed
            await asyncio.sleep(0.001)
    writing.cancel()
    assert [trouble.part for health in read_health(path) for trouble in health.troubles] == ["transport"]
