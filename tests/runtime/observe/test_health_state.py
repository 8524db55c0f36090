"""The vitals: what the calls of a process say about its store and its transport, and nothing that they do not say."""

import asyncio
from pathlib import Path

import pytest

from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OutcomeUnknown, QueueMissing, SetupError
from onceonly.model.health import EndpointHealth, Trouble
from onceonly.model.journal import Done, Journal
from onceonly.runtime.observe.health_state import FAILURE_FADES_MS, Vitals, keep_written, read_vitals, write_vitals
from onceonly.runtime.observe.observer import Observers, Point, PortCall
from onceonly.testing.clock import ManualClock
from tests.runtime.harness import SimulatedEndpoint, StopWhen


async def called(vitals: Vitals, point: Point, error: BaseException | None = None, result: object = None) -> None:
    """Have a call of the shop end."""

    async def call() -> None:
        async with vitals.around(PortCall(point, "shop", result=result)):
            if error is not None:
                raise error

    await asyncio.gather(call(), return_exceptions=True)


def troubles(vitals: Vitals) -> list[str]:
    """Give what is in trouble."""
    return [trouble.part for health in vitals.endpoints() for trouble in health.troubles]


async def test_a_worker_that_has_received_works() -> None:
    """Told by a real one, in memory."""
    simulated, vitals, stop = await SimulatedEndpoint().open("a"), Vitals(clock=ManualClock()), asyncio.Event()
    assert vitals.endpoints() == ()
    await simulated.worker(observer=Observers(StopWhen(stop, simulated.idle), vitals)).run(stop)
    assert vitals.endpoints() == (EndpointHealth(endpoint="shop", works=True),)


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
        (Point.MAKE, "blobs or other services"),
        (Point.RESPONSE, "blobs or other services"),
        (Point.JOURNAL, "store"),
        (Point.NOTE, "janitor"),
    ],
)
async def test_a_call_that_fails_is_a_trouble_until_it_works_again(point: Point, part: str) -> None:
    """Since it began."""
    clock = ManualClock()
    vitals = Vitals(clock=clock)
    began = clock.now()
    await called(vitals, point, OutcomeUnknown("no answer"))
    clock.advance(5000)
    await called(vitals, point, CommitFailed("refused"))
    ((found,),) = (health.troubles for health in vitals.endpoints())
    assert (found.part, found.reason, found.since) == (part, f"{point} fails: OutcomeUnknown: no answer", began)
    await called(vitals, point)
    assert troubles(vitals) == []


@pytest.mark.parametrize(("point", "stops"), [(Point.MAKE, False), (Point.RESPONSE, False), (Point.REGISTER, True)])
async def test_another_service_that_is_away_keeps_only_what_needs_it_waiting(point: Point, stops: bool) -> None:  # noqa: FBT001 - pytest's
    """So the endpoint goes on, and nobody is to be restarted."""
    vitals = Vitals()
    await called(vitals, point, OutcomeUnknown("no answer"))
    assert [trouble.stops for health in vitals.endpoints() for trouble in health.troubles] == [stops]


@pytest.mark.parametrize("error", [CommitFailed("away"), QueueMissing("gone"), RuntimeError("a bug"), OSError("cut off")])
async def test_an_outage_a_lost_queue_and_a_bug_are_troubles(error: Exception) -> None:
    """Nobody handles anything then."""
    vitals = Vitals()
    await called(vitals, Point.RECEIVE, error)
    assert troubles(vitals) == ["transport"]


@pytest.mark.parametrize(
    "error", [ConflictError("lost"), CommitRefused("a constraint"), SetupError("wrong"), asyncio.CancelledError()]
)
async def test_a_lost_race_and_a_messages_own_failure_are_none(error: BaseException) -> None:
    """Nor is a stop."""
    vitals = Vitals()
    await called(vitals, Point.COMMIT, error)
    assert troubles(vitals) == []


async def test_reading_does_not_make_up_for_commits_that_fail() -> None:
    """A full disk can be read."""
    vitals = Vitals(clock=ManualClock())
    await called(vitals, Point.COMMIT, CommitFailed("disk full"))
    await called(vitals, Point.UNDISPATCHED)
    assert troubles(vitals) == ["store"]


async def test_what_failed_once_and_was_not_tried_again_fades_when_others_of_its_kind_work() -> None:
    """After a minute; another part's success says nothing."""
    clock = ManualClock()
    vitals = Vitals(clock=clock)
    await called(vitals, Point.FIND, CommitFailed("away"))
    clock.advance(FAILURE_FADES_MS + 1)
    await called(vitals, Point.RECEIVE)
    assert troubles(vitals) == ["store"]
    await called(vitals, Point.BEGIN)
    assert troubles(vitals) == []


async def test_a_store_that_is_not_searched_is_believed_while_messages_are_received() -> None:
    """Nothing calls it without a message, and the message that failed here may have been handled elsewhere."""
    clock = ManualClock()
    vitals = Vitals(clock=clock)
    await called(vitals, Point.BEGIN, CommitFailed("away"))
    clock.advance(FAILURE_FADES_MS)
    await called(vitals, Point.BEGIN, CommitFailed("still away"))
    clock.advance(FAILURE_FADES_MS)
    await called(vitals, Point.RECEIVE)
    assert troubles(vitals) == ["store"]
    clock.advance(1)
    await called(vitals, Point.RECEIVE)
    assert troubles(vitals) == []


async def test_what_the_journal_says_is_known_here_as_well() -> None:
    """Whichever process led; it counts for nothing until it is read."""
    clock = ManualClock()
    vitals = Vitals(clock=clock)
    failing = Done(at=clock.now(), failing_since=7, reason="CommitFailed: no")
    journal = Journal(at=clock.now(), interval=60_000, chores={"recycling slots": failing})
    await called(vitals, Point.JOURNAL, result=None)
    assert troubles(vitals) == []
    await called(vitals, Point.JOURNAL, result=journal)
    ((found,),) = (health.troubles for health in vitals.endpoints())
    assert found == Trouble(part="janitor", reason="rotation slots: CommitFailed: no", since=7, stops=False)


async def test_the_parent_reads_what_a_process_writes(tmp_path: Path) -> None:
    """And nothing where it has not written, or something else is there."""
    path = tmp_path / "vitals-0"
    assert read_vitals(path) == ()
    vitals = Vitals(clock=ManualClock())
    await called(vitals, Point.RECEIVE)
    assert write_vitals(vitals, path) == read_vitals(path) == (EndpointHealth(endpoint="shop", works=True),)
    path.write_bytes(b"half")
    assert read_vitals(path) == ()


async def test_changes_are_written_by_themselves(tmp_path: Path) -> None:
    """Soon."""
    path, vitals = tmp_path / "vitals-0", Vitals()
    writing = asyncio.create_task(keep_written(vitals, path, every=0.001))
    await called(vitals, Point.RECEIVE, CommitFailed("away"))
    async with asyncio.timeout(10):
        while not read_vitals(path):  # noqa: ASYNC110 - a file tells nobody that it changed
            await asyncio.sleep(0.001)
    writing.cancel()
    assert [trouble.part for health in read_vitals(path) for trouble in health.troubles] == ["transport"]
