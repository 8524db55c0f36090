"""The relay: what is committed is sent, whoever committed it; what is refused stays, and stands in nobody's way."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest

from onceonly.algorithms.effects import NoArtifacts
from onceonly.algorithms.relay import RelayResult, relay
from onceonly.model.errors import CommitFailed, OutcomeUnknown, WrongEventLoop
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.record import Answer, Record
from onceonly.ports.transport import Topology
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.observed_ports import observed
from onceonly.runtime.observe.observer import Observers, Point, PortCall
from onceonly.runtime.processes.notifier import Notifier, _ListenerEntry
from onceonly.runtime.relay.relay import FEW, LEASE_SECONDS, PAGE, portion
from tests.log_events import event_in, events
from tests.runtime.harness import SHOP, CallTally, HastyTimer, StopWhen
from tests.runtime.relay.harness import FailsAt, RelayHarness, StandingTimer, UnsureTransport, record_of

# The algorithm


async def test_only_records_whose_every_effect_was_taken_are_forgotten() -> None:
    """One that the broker refuses a part of stays whole, and goes out whole again."""
    harness = await RelayHarness().open()
    taken, partly = await harness.commit("taken", "partly")
    (more,) = record_of(partly, to="nobody").effects
    records = [record_of(taken), Record(partly, (*record_of(partly).effects, more))]
    relayed = await relay(records, harness.simulated.ports)
    assert (relayed.finished, relayed.refused, relayed.unknown) == ((records[0],), (records[1],), ())
    assert harness.left() == ["partly"]
    assert len(harness.wire()) == 2


async def test_each_record_is_in_the_part_that_its_answer_names() -> None:
    """Checks have no relay with peers: their stores with requests are documents, which no relay searches."""
    harness = await RelayHarness().open()
    identities = await harness.commit("taken", "away", "unknown")
    records = [record_of(identity) for identity in identities]

    class Calls(NoArtifacts):
        async def call(self, records: Sequence[Record]) -> Mapping[Identity, Answer]:
            return {records[1].identity: Answer.AWAY, records[2].identity: Answer.UNKNOWN}

    relayed = await relay(records, harness.simulated.ports._replace(effects=Calls()))
    assert relayed == RelayResult(finished=(records[0],), away=(records[1],), unknown=(records[2],))
    assert sorted(harness.left()) == ["away", "unknown"]


@pytest.mark.parametrize("point", [Point.DISPATCH, Point.RETIRE, Point.FORGET])
@pytest.mark.parametrize("applied", [True, False])
async def test_a_failed_call_is_not_made_again_in_place(point: Point, applied: bool) -> None:  # noqa: FBT001 - pytest's
    """The record is found again, and everything that was sent has the same id."""
    harness = await RelayHarness().open()
    (identity,) = await harness.commit("a")
    failing = FailsAt(point, OutcomeUnknown("lost"), after=applied)
    with pytest.raises(OutcomeUnknown):
        await relay([record_of(identity)], observed(harness.simulated.ports, Observers(harness.tally, failing)))
    assert harness.tally.calls.get(point, 0) == 1
    await harness.run()
    assert set(harness.wire()) == {outgoing_id(SHOP, identity, 0)}
    assert harness.left() == []


@pytest.mark.parametrize("point", ["find", "take", "dispatch", "retire", "forget"])
@pytest.mark.parametrize("side", ["before", "after"])
async def test_wherever_a_relay_dies_another_one_finishes(point: str, side: str) -> None:
    """Crash here, at every call: 1 the record is there or done, 2 another relay sends it under the same id."""
    harness = await RelayHarness().open()
    (identity,) = await harness.commit("a")
    harness.notifier = (told := Notifier())
    dying = harness.relay(CrashAt(f"{side}-{point}"))
    running = asyncio.create_task(dying.run(asyncio.Event()))
    if point == "find":
        await asyncio.sleep(0)
        told.notify([identity])
    with pytest.raises(ProcessCrash):
        await running
    if harness.left():
        await harness.run()
    assert set(harness.wire()) == {outgoing_id(SHOP, identity, 0)}


async def test_a_handlers_record_is_finished_and_its_message_only_acknowledged() -> None:
    """Crash here, "after-commit": 1 a worker died, 2 a relay sends, 3 the message comes again, 4 its claim answers "done"."""
    harness = await RelayHarness().open()
    await harness.simulated.send("m1")
    with pytest.raises(ProcessCrash):
        await harness.simulated.work(also=[CrashAt("after-commit")], until=lambda: False)
    await harness.simulated.bury_the_dead()
    await harness.run()
    worker = await harness.simulated.work()
    assert (worker.report.known, worker.report.handled) == (1, 0)
    assert harness.simulated.announced() == ["m1"]
    assert len(harness.wire()) == 1


@pytest.mark.parametrize("point", ["find", "take", "retire", "forget"])
async def test_a_connection_of_another_event_loop_ends_the_relay(point: str, caplog: pytest.LogCaptureFixture) -> None:
    """No retry helps, so it is raised and logged once, wherever it shows."""
    harness = await RelayHarness().open()
    (identity,) = await harness.commit("a")
    error = WrongEventLoop("the database engine has connections of another event loop")
    harness.notifier = (told := Notifier())
    running = asyncio.create_task(harness.relay(FailsAt(Point(point), *[error] * 2)).run(asyncio.Event()))
    await asyncio.sleep(0)
    told.notify([identity])
    with pytest.raises(WrongEventLoop):
        async with asyncio.timeout(20):
            await running
    assert events(caplog.records) == ["relay failed"]
    await harness.run()
    assert harness.left() == []


# When it looks


async def test_a_record_that_is_not_old_belongs_to_who_wrote_it() -> None:
    """Its process is most likely about to dispatch it, within `relay_after`, which is over at the third look."""
    harness = await RelayHarness().open()
    await harness.commit("a", old=False)
    await harness.run(until=harness.looked(2))
    assert (harness.left(), harness.wire()) == (["a"], [])


async def test_idle_it_asks_once_in_ten_seconds() -> None:
    """The first time at its start."""
    harness = await RelayHarness().open()
    await harness.run(until=harness.looked(7))
    assert harness.timer.seconds() == pytest.approx(60.0)
    assert harness.tally.calls == {Point.TAKE: 7}


async def test_a_backlog_is_worked_off_without_a_pause() -> None:
    """As long as pages are full there is more."""
    harness = await RelayHarness().open()
    await harness.commit(*(f"m{number}" for number in range(2 * PAGE + 1)))
    await harness.run()
    assert (harness.timer.seconds(), harness.tally.calls[Point.TAKE]) == (0.0, 3)
    assert len(harness.wire()) == 2 * PAGE + 1


async def test_refused_records_at_the_head_do_not_starve_the_others() -> None:
    """They are passed over page by page, and stay."""
    harness = await RelayHarness().open()
    await harness.commit(*(f"r{number}" for number in range(PAGE + 1)), to="nobody")
    await harness.commit("tardy")
    await harness.run(until=lambda: "tardy" not in harness.left())
    assert len(harness.left()) == PAGE + 1
    assert len(harness.wire()) == 1
    assert harness.timer.seconds() == 0.0


async def test_relays_at_once_share_a_backlog() -> None:
    """Each message is sent once, though each relay reads all of them. Time stands still, so no lease ends."""
    harness = await RelayHarness(StandingTimer()).open()
    await harness.commit(*(f"m{number}" for number in range(10 * PAGE)))
    tallies = [CallTally() for _ in range(3)]
    stop = asyncio.Event()
    relays = [harness.relay(tally, StopWhen(stop, harness.is_empty)) for tally in tallies]
    await asyncio.gather(*(relay.run(stop) for relay in relays))
    assert len(harness.wire()) == len(set(harness.wire())) == 10 * PAGE
    assert all(tally.calls[Point.DISPATCH] > 1 for tally in tallies)


async def test_what_a_relay_had_taken_when_it_died_is_sent_when_the_lease_is_over() -> None:
    """Crash here, "before-dispatch": 1 taken, 2 nothing sent, 3 the lease ends, 4 another relay takes it."""
    harness = await RelayHarness().open()
    (identity,) = await harness.commit("a")
    with pytest.raises(ProcessCrash):
        await harness.relay(CrashAt("before-dispatch")).run(asyncio.Event())
    await harness.run(until=harness.looked(2))
    assert harness.left() == ["a"]
    await harness.run()
    assert harness.wire() == [outgoing_id(SHOP, identity, 0)]


async def test_an_outage_does_not_leave_what_was_taken_to_the_end_of_the_lease() -> None:
    """Whoever took it tries again, as soon as the broker is back."""
    harness = await RelayHarness().open()
    await harness.commit("a")
    await harness.run(FailsAt(Point.DISPATCH, CommitFailed("away"), CommitFailed("away")))
    assert harness.timer.seconds() < LEASE_SECONDS


async def test_what_another_relay_has_just_taken_is_refused_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """It is still there, so nobody says that nothing is refused any more."""
    harness = await RelayHarness().open()
    await harness.commit("r", to="nobody")

    class TakesBefore:
        """An observer by which another relay takes everything before this one's second look and those after it."""

        @asynccontextmanager
        async def around(self, call: PortCall) -> AsyncIterator[None]:
            """Take."""
            if call.point is Point.TAKE and harness.tally.calls.get(Point.TAKE, 0) > 1:
                await harness.simulated.store.take(harness.simulated.clock.now(), PAGE, lease=1)
            yield

    with caplog.at_level(logging.INFO):
        await harness.run(TakesBefore(), until=harness.looked(4))
    assert told(caplog) == ["relay: messages rejected by the broker, will be retried"]


async def test_what_stays_refused_is_tried_less_and_less_often() -> None:
    """Up to once a minute; each look sends it once more."""
    harness = await RelayHarness().open()
    await harness.commit("r", to="nobody")
    await harness.run(until=harness.looked(6))
    assert harness.timer.seconds() == pytest.approx(20 + 40 + 60 + 60 + 60)


async def test_a_commit_wakes_it_and_only_what_is_committed_is_sent() -> None:
    """What is announced and not there was rolled back, or hangs on an outer transaction."""
    harness = await RelayHarness(HastyTimer()).open()
    running = asyncio.create_task(harness.run())
    identities = await harness.commit("a", old=False)
    harness.notifier.notify([*identities, Identity(SHOP, "rolled back")])
    await running
    assert harness.wire() == [outgoing_id(SHOP, identities[0], 0)]


async def test_many_commits_are_sent_some_at_a_time() -> None:
    """All that were told, in portions that become smaller with the backlog, and without a look."""
    harness = await RelayHarness(HastyTimer()).open()
    running = asyncio.create_task(harness.run())
    identities = await harness.commit(*(f"m{number}" for number in range(2 * PAGE + 1)), old=False)
    harness.notifier.notify(identities)
    await running
    assert (len(harness.wire()), harness.tally.calls[Point.TAKE]) == (2 * PAGE + 1, 1)
    assert (2 * PAGE + 1) / portion(2 * PAGE + 1) < harness.tally.calls[Point.DISPATCH] <= (2 * PAGE + 1) // FEW + 1


@pytest.mark.slow
async def test_commits_without_end_do_not_keep_it_from_looking() -> None:
    """What another process left is as old as ever."""
    harness = await RelayHarness().open()

    class RingsAgain:
        """An observer that tells of another commit after every find, and lets the time pass."""

        @asynccontextmanager
        async def around(self, call: PortCall) -> AsyncIterator[None]:
            """Ring."""
            yield
            if call.point is Point.FIND:
                harness.notifier.notify([Identity(SHOP, "another")])
                await harness.timer.sleep(1.0)

    running = asyncio.create_task(harness.run(RingsAgain(), until=lambda: bool(harness.wire())))
    await asyncio.sleep(0)
    harness.notifier.notify([Identity(SHOP, "one")])
    await harness.commit("left behind")
    await running


async def test_a_ring_is_heard_in_the_listeners_own_thread() -> None:
    """Whichever thread rings."""
    bell, heard = Notifier(), asyncio.get_running_loop().create_future()
    with bell.listen(lambda _: heard.set_result(threading.get_ident())):
        thread = threading.Thread(target=bell.notify, args=([],))
        thread.start()
        assert await heard == threading.get_ident()
        thread.join()


async def test_a_commit_in_another_thread_wakes_it() -> None:
    """As of a synchronous session."""
    harness = await RelayHarness(HastyTimer()).open()
    identities = await harness.commit("a", old=False)
    relay_, stop = harness.relay(StopWhen(harness.stop, harness.is_empty)), harness.stop
    running = asyncio.create_task(relay_.run(stop))
    await asyncio.sleep(0)
    thread = threading.Thread(target=harness.notifier.notify, args=(identities,))
    thread.start()
    await running
    thread.join()
    assert harness.wire() == [outgoing_id(SHOP, identities[0], 0)]


async def test_a_bell_that_nobody_hears_is_no_error() -> None:
    """Nobody listens, or a loop that is closed; the record is found by looking."""
    bell = Notifier()
    bell.notify([Identity(SHOP, "a")])
    over = asyncio.new_event_loop()
    over.close()
    heard: list[object] = []
    for is_threadsafe in (False, True):
        bell._listening.append(_ListenerEntry(over, heard.append, is_threadsafe))
        bell.notify([Identity(SHOP, "a")])
    assert heard == []


async def test_a_stop_sends_what_was_told_just_before() -> None:
    """The last request of an application that shuts down."""
    harness, looked = await RelayHarness(HastyTimer()).open(), asyncio.Event()
    identities = await harness.commit("a", old=False)
    running = asyncio.create_task(harness.relay(StopWhen(looked, harness.looked(1))).run(harness.stop))
    await looked.wait()
    harness.notifier.notify(identities)
    harness.stop.set()
    await running
    assert harness.left() == []


async def test_a_stop_does_not_wait_for_ever() -> None:
    """What hangs is cut off after the grace time, as by a crash: the record stays."""
    harness = await RelayHarness().open()
    await harness.commit("a")

    class Hangs:
        """An observer that never lets a send begin."""

        @asynccontextmanager
        async def around(self, call: PortCall) -> AsyncIterator[None]:
            """Hang."""
            if call.point is Point.DISPATCH:
                harness.stop.set()
                await asyncio.Event().wait()
            yield

    hanging = harness.relay(Hangs())
    hanging._grace = 0.0
    await hanging.run(harness.stop)
    assert harness.left() == ["a"]


# What it says


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the relay said, in order."""
    return [event_in(record) for record in caplog.records if record.name == "onceonly.relay"]


@pytest.mark.parametrize("point", [Point.TAKE, Point.DISPATCH, Point.FORGET])
async def test_an_outage_is_said_once_and_waited_out_with_growing_delays(
    point: Point, caplog: pytest.LogCaptureFixture
) -> None:
    """Store or broker; then everything goes on."""
    harness = await RelayHarness().open()
    await harness.commit("a")
    with caplog.at_level(logging.INFO):
        await harness.run(FailsAt(point, *[CommitFailed("away")] * 4), until=lambda: "relay recovered" in told(caplog))
    assert told(caplog) == ["relay cannot dispatch, retrying with backoff", "relay recovered"]
    assert harness.timer.seconds() >= (0.1 + 0.2 + 0.4 + 0.8) / 2
    assert harness.left() == []


async def test_what_a_commit_announced_in_an_outage_goes_out_when_it_is_over() -> None:
    """Soon after, and not only when the record is old."""
    harness = await RelayHarness(HastyTimer()).open()
    identities = await harness.commit("a", old=False)
    running = asyncio.create_task(harness.run(FailsAt(Point.DISPATCH, *[CommitFailed("away")] * 3)))
    await asyncio.sleep(0)
    harness.notifier.notify(identities)
    await running
    assert set(harness.wire()) == {outgoing_id(SHOP, identities[0], 0)}


async def test_a_second_outage_is_waited_out_as_the_first_one_was() -> None:
    """Delays begin short again."""
    timer = HastyTimer()
    harness = await RelayHarness(timer).open()
    failing = FailsAt(Point.DISPATCH, CommitFailed("away"), CommitFailed("away"), None, CommitFailed("away"))
    running = asyncio.create_task(harness.run(failing, until=lambda: len(harness.wire()) == 2 and not harness.left()))
    for name in ("a", "b"):
        harness.notifier.notify(await harness.commit(name, old=False))
        while harness.left():  # noqa: ASYNC110 - the store is a value, and tells nobody that it changed
            await asyncio.sleep(0)
    await running
    assert [seconds for seconds in timer.slept if seconds < 1] == [0.05, 0.1, 0.05]


async def test_commits_in_an_outage_do_not_make_it_try_more_often() -> None:
    """They only add to the trouble."""
    harness = await RelayHarness(StandingTimer()).open()
    running = asyncio.create_task(harness.relay(FailsAt(Point.DISPATCH, *[CommitFailed("away")] * 9)).run(harness.stop))
    await asyncio.sleep(0)
    for name in "abcde":
        harness.notifier.notify(await harness.commit(name, old=False))
        for _ in range(50):
            await asyncio.sleep(0)
    harness.stop.set()
    await running
    assert harness.tally.calls[Point.FIND] == 1


async def test_what_was_told_and_not_answered_for_sure_is_tried_again() -> None:
    """Soon after, under the same id."""
    harness = await RelayHarness(HastyTimer()).open()
    transport = UnsureTransport(harness.simulated.transport, times=3)
    relay_ = harness.relay(
        StopWhen(harness.stop, harness.is_empty), ports=harness.simulated.ports._replace(transport=transport)
    )
    identities = await harness.commit("a", old=False)
    running = asyncio.create_task(relay_.run(harness.stop))
    await asyncio.sleep(0)
    harness.notifier.notify(identities)
    await running
    assert harness.wire() == [outgoing_id(SHOP, identities[0], 0)] * 4


async def test_a_bug_is_said_every_time_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """And the relay lives on."""
    harness = await RelayHarness().open()
    await harness.commit("a")
    await harness.run(FailsAt(Point.DISPATCH, KeyError("ours"), KeyError("ours")))
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == [True, True]


async def test_refused_records_are_said_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    """With what the broker refuses; and that it does no more."""
    harness = await RelayHarness().open()
    await harness.commit("r1", "r2", to="nobody")
    sent = [
        effect.message.id for record in await harness.simulated.store.undispatched(1 << 52, 10) for effect in record.effects
    ]
    with caplog.at_level(logging.INFO):
        await harness.run(until=harness.looked(3))
        assert len(told(caplog)) == 1
        running = harness.relay(
            StopWhen(harness.stop, lambda: "relay: messages no longer rejected by the broker" in told(caplog))
        )
        task = asyncio.create_task(running.run(harness.stop))
        while len(told(caplog)) < 2:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0)
        await harness.simulated.transport.declare([Topology(endpoint="nobody")])
        await task
    first = next(record for record in caplog.records if record.name == "onceonly.relay")
    fields = vars(first)
    assert (first.levelname, fields["count"], fields["reason"]) == ("WARNING", 2, "no queue, or too large: done to nobody")
    assert fields["message_ids"] == ", ".join(sent)
    assert told(caplog)[1:] == [told(caplog)[0], "relay: messages no longer rejected by the broker"]
    assert harness.left() == []
