"""The relay: what is committed is sent, whoever committed it; what is refused stays, and stands in nobody's way."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from onceonly.algorithms.relay import relay
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.model.identity import Identity, outgoing_id
from onceonly.model.record import Record
from onceonly.ports.transport import Topology
from onceonly.runtime.observe.crash import CrashAt, Crashed
from onceonly.runtime.observe.observed import observed
from onceonly.runtime.observe.observer import Call, Observers, Point, Tally
from onceonly.runtime.processes.notifier import Doorbell
from onceonly.runtime.relay.relay import LEASE_SECONDS, PAGE
from tests.runtime.harness import SHOP, HastyTimer, StopWhen
from tests.runtime.relay.harness import FailsAt, Post, StandingTimer, UnsureTransport, record_of

# The algorithm


async def test_only_records_whose_every_effect_was_taken_are_forgotten() -> None:
    """One that the broker refuses a part of stays whole, and goes out whole again."""
    post = await Post().open()
    taken, partly = await post.commit("taken", "partly")
    (more,) = record_of(partly, to="nobody").effects
    records = [record_of(taken), Record(partly, (*record_of(partly).effects, more))]
    relayed = await relay(records, post.house.ports)
    assert (relayed.finished, relayed.refused, relayed.unsure) == ((records[0],), (records[1],), ())
    assert post.left() == ["partly"]
    assert len(post.wire()) == 2


@pytest.mark.parametrize("point", [Point.DISPATCH, Point.RETIRE, Point.FORGET])
@pytest.mark.parametrize("applied", [True, False])
async def test_a_failed_call_is_not_made_again_in_place(point: Point, applied: bool) -> None:  # noqa: FBT001 - pytest's
    """The record is found again, and everything that was sent has the same id."""
    post = await Post().open()
    (identity,) = await post.commit("a")
    failing = FailsAt(point, OutcomeUnknown("lost"), after=applied)
    with pytest.raises(OutcomeUnknown):
        await relay([record_of(identity)], observed(post.house.ports, Observers(post.tally, failing)))
    assert post.tally.calls.get(point, 0) == 1
    await post.run()
    assert set(post.wire()) == {outgoing_id(SHOP, identity, 0)}
    assert post.left() == []


@pytest.mark.parametrize("point", ["find", "take", "dispatch", "retire", "forget"])
@pytest.mark.parametrize("side", ["before", "after"])
async def test_wherever_a_relay_dies_another_one_finishes(point: str, side: str) -> None:
    """Crash here, at every call: 1 the record is there or done, 2 another relay sends it under the same id."""
    post = await Post().open()
    (identity,) = await post.commit("a")
    post.doorbell = (told := Doorbell())
    dying = post.relay(CrashAt(f"{side}-{point}"))
    running = asyncio.create_task(dying.run(asyncio.Event()))
    if point == "find":
        await asyncio.sleep(0)
        told.ring([identity])
    with pytest.raises(Crashed):
        await running
    if post.left():
        await post.run()
    assert set(post.wire()) == {outgoing_id(SHOP, identity, 0)}


async def test_a_handlers_record_is_finished_and_its_message_only_acknowledged() -> None:
    """Crash here, "after-commit": 1 a worker died, 2 a relay sends, 3 the message comes again, 4 its claim answers "done"."""
    post = await Post().open()
    await post.house.send("m1")
    with pytest.raises(Crashed):
        await post.house.work(also=[CrashAt("after-commit")], until=lambda: False)
    await post.house.bury_the_dead()
    await post.run()
    worker = await post.house.work()
    assert (worker.report.known, worker.report.handled) == (1, 0)
    assert post.house.announced() == ["m1"]
    assert len(post.wire()) == 1


# When it looks


async def test_a_record_that_is_not_old_belongs_to_who_wrote_it() -> None:
    """Its process is most likely about to dispatch it, within `relay_after`, which is over at the third look."""
    post = await Post().open()
    await post.commit("a", old=False)
    await post.run(until=post.looked(2))
    assert (post.left(), post.wire()) == (["a"], [])


async def test_idle_it_asks_once_in_ten_seconds() -> None:
    """The first time at its start."""
    post = await Post().open()
    await post.run(until=post.looked(7))
    assert post.timer.seconds() == pytest.approx(60.0)
    assert post.tally.calls == {Point.TAKE: 7}


async def test_a_backlog_is_worked_off_without_a_pause() -> None:
    """As long as pages are full there is more."""
    post = await Post().open()
    await post.commit(*(f"m{number}" for number in range(2 * PAGE + 1)))
    await post.run()
    assert (post.timer.seconds(), post.tally.calls[Point.TAKE]) == (0.0, 3)
    assert len(post.wire()) == 2 * PAGE + 1


async def test_refused_records_at_the_head_do_not_starve_the_others() -> None:
    """They are passed over page by page, and stay."""
    post = await Post().open()
    await post.commit(*(f"r{number}" for number in range(PAGE + 1)), to="nobody")
    await post.commit("tardy")
    await post.run(until=lambda: "tardy" not in post.left())
    assert len(post.left()) == PAGE + 1
    assert len(post.wire()) == 1
    assert post.timer.seconds() == 0.0


async def test_relays_at_once_share_a_backlog() -> None:
    """Each message goes out once, though each relay looks at all of them."""
    post = await Post().open()
    await post.commit(*(f"m{number}" for number in range(10 * PAGE)))
    tallies = [Tally() for _ in range(3)]
    stop = asyncio.Event()
    relays = [post.relay(tally, StopWhen(stop, post.is_empty)) for tally in tallies]
    await asyncio.gather(*(relay.run(stop) for relay in relays))
    assert len(post.wire()) == len(set(post.wire())) == 10 * PAGE
    assert all(tally.calls[Point.DISPATCH] > 1 for tally in tallies)


async def test_what_a_relay_had_taken_when_it_died_is_sent_when_the_lease_is_over() -> None:
    """Crash here, "before-dispatch": 1 taken, 2 nothing sent, 3 the lease ends, 4 another relay takes it."""
    post = await Post().open()
    (identity,) = await post.commit("a")
    with pytest.raises(Crashed):
        await post.relay(CrashAt("before-dispatch")).run(asyncio.Event())
    await post.run(until=post.looked(2))
    assert post.left() == ["a"]
    await post.run()
    assert post.wire() == [outgoing_id(SHOP, identity, 0)]


async def test_an_outage_does_not_leave_what_was_taken_to_the_end_of_the_lease() -> None:
    """Whoever took it tries again, as soon as the broker is back."""
    post = await Post().open()
    await post.commit("a")
    await post.run(FailsAt(Point.DISPATCH, CommitFailed("away"), CommitFailed("away")))
    assert post.timer.seconds() < LEASE_SECONDS


async def test_what_another_relay_has_just_taken_is_refused_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """It is still there, so nobody says that nothing is refused any more."""
    post = await Post().open()
    await post.commit("r", to="nobody")

    class TakesBefore:
        """An observer by which another relay takes everything before this one's second look and those after it."""

        @asynccontextmanager
        async def around(self, call: Call) -> AsyncIterator[None]:
            """Take."""
            if call.point is Point.TAKE and post.tally.calls.get(Point.TAKE, 0) > 1:
                await post.house.store.take(post.house.clock.now(), PAGE, lease=1)
            yield

    with caplog.at_level(logging.INFO):
        await post.run(TakesBefore(), until=post.looked(4))
    assert told(caplog) == ["relay: the broker refuses what is committed; it is kept, and tried again"]


async def test_what_stays_refused_is_tried_less_and_less_often() -> None:
    """Up to once a minute; each look sends it once more."""
    post = await Post().open()
    await post.commit("r", to="nobody")
    await post.run(until=post.looked(6))
    assert post.timer.seconds() == pytest.approx(20 + 40 + 60 + 60 + 60)


async def test_a_commit_wakes_it_and_only_what_is_committed_is_sent() -> None:
    """What is announced and not there was rolled back, or hangs on an outer transaction."""
    post = await Post(HastyTimer()).open()
    running = asyncio.create_task(post.run())
    identities = await post.commit("a", old=False)
    post.doorbell.ring([*identities, Identity(SHOP, "rolled back")])
    await running
    assert post.wire() == [outgoing_id(SHOP, identities[0], 0)]


async def test_many_commits_are_sent_some_at_a_time() -> None:
    """All that were told, in as many sends as it takes, and without a look."""
    post = await Post(HastyTimer()).open()
    running = asyncio.create_task(post.run())
    identities = await post.commit(*(f"m{number}" for number in range(2 * PAGE + 1)), old=False)
    post.doorbell.ring(identities)
    await running
    assert (len(post.wire()), post.tally.calls[Point.DISPATCH], post.tally.calls[Point.TAKE]) == (2 * PAGE + 1, 3, 1)


async def test_commits_without_end_do_not_keep_it_from_looking() -> None:
    """What another process left is as old as ever."""
    post = await Post().open()

    class RingsAgain:
        """An observer that tells of another commit after every find, and lets the time pass."""

        @asynccontextmanager
        async def around(self, call: Call) -> AsyncIterator[None]:
            """Ring."""
            yield
            if call.point is Point.FIND:
                post.doorbell.ring([Identity(SHOP, "another")])
                await post.timer.sleep(1.0)

    running = asyncio.create_task(post.run(RingsAgain(), until=lambda: bool(post.wire())))
    await asyncio.sleep(0)
    post.doorbell.ring([Identity(SHOP, "one")])
    await post.commit("left behind")
    await running


async def test_a_ring_is_heard_in_the_listeners_own_thread() -> None:
    """Whichever thread rings."""
    bell, heard = Doorbell(), asyncio.get_running_loop().create_future()
    with bell.listen(lambda _: heard.set_result(threading.get_ident())):
        thread = threading.Thread(target=bell.ring, args=([],))
        thread.start()
        assert await heard == threading.get_ident()
        thread.join()


async def test_a_commit_in_another_thread_wakes_it() -> None:
    """As of a synchronous session."""
    post = await Post(HastyTimer()).open()
    identities = await post.commit("a", old=False)
    relay_, stop = post.relay(StopWhen(post.stop, post.is_empty)), post.stop
    running = asyncio.create_task(relay_.run(stop))
    await asyncio.sleep(0)
    thread = threading.Thread(target=post.doorbell.ring, args=(identities,))
    thread.start()
    await running
    thread.join()
    assert post.wire() == [outgoing_id(SHOP, identities[0], 0)]


async def test_a_bell_that_nobody_hears_is_no_error() -> None:
    """Nobody listens, or a loop that is closed; the record is found by looking."""
    bell = Doorbell()
    bell.ring([Identity(SHOP, "a")])
    over = asyncio.new_event_loop()
    over.close()
    bell._listening.append((over, lambda _: None))
    bell.ring([Identity(SHOP, "a")])


async def test_a_stop_sends_what_was_told_just_before() -> None:
    """The last request of an application that shuts down."""
    post, looked = await Post(HastyTimer()).open(), asyncio.Event()
    identities = await post.commit("a", old=False)
    running = asyncio.create_task(post.relay(StopWhen(looked, post.looked(1))).run(post.stop))
    await looked.wait()
    post.doorbell.ring(identities)
    post.stop.set()
    await running
    assert post.left() == []


async def test_a_stop_does_not_wait_for_ever() -> None:
    """What hangs is cut off after the grace time, as by a crash: the record stays."""
    post = await Post().open()
    await post.commit("a")

    class Hangs:
        """An observer that never lets a send begin."""

        @asynccontextmanager
        async def around(self, call: Call) -> AsyncIterator[None]:
            """Hang."""
            if call.point is Point.DISPATCH:
                post.stop.set()
                await asyncio.Event().wait()
            yield

    hanging = post.relay(Hangs())
    hanging._grace = 0.0
    await hanging.run(post.stop)
    assert post.left() == ["a"]


# What it says


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Give what the relay said, in order."""
    return [record.getMessage() for record in caplog.records if record.name == "onceonly.relay"]


@pytest.mark.parametrize("point", [Point.TAKE, Point.DISPATCH, Point.FORGET])
async def test_an_outage_is_said_once_and_waited_out_with_growing_delays(
    point: Point, caplog: pytest.LogCaptureFixture
) -> None:
    """Store or broker; then everything goes on."""
    post = await Post().open()
    await post.commit("a")
    with caplog.at_level(logging.INFO):
        await post.run(FailsAt(point, *[CommitFailed("away")] * 4), until=lambda: "relay recovered" in told(caplog))
    assert told(caplog) == ["relay cannot dispatch; trying again with growing delays", "relay recovered"]
    assert post.timer.seconds() >= (0.1 + 0.2 + 0.4 + 0.8) / 2
    assert post.left() == []


async def test_what_a_commit_announced_in_an_outage_goes_out_when_it_is_over() -> None:
    """Soon after, and not only when the record is old."""
    post = await Post(HastyTimer()).open()
    identities = await post.commit("a", old=False)
    running = asyncio.create_task(post.run(FailsAt(Point.DISPATCH, *[CommitFailed("away")] * 3)))
    await asyncio.sleep(0)
    post.doorbell.ring(identities)
    await running
    assert set(post.wire()) == {outgoing_id(SHOP, identities[0], 0)}


async def test_a_second_outage_is_waited_out_as_the_first_one_was() -> None:
    """Delays begin short again."""
    timer = HastyTimer()
    post = await Post(timer).open()
    failing = FailsAt(Point.DISPATCH, CommitFailed("away"), CommitFailed("away"), None, CommitFailed("away"))
    running = asyncio.create_task(post.run(failing, until=lambda: len(post.wire()) == 2 and not post.left()))
    for name in ("a", "b"):
        post.doorbell.ring(await post.commit(name, old=False))
        while post.left():  # noqa: ASYNC110 - the store is a value, and tells nobody that it changed
            await asyncio.sleep(0)
    await running
    assert [seconds for seconds in timer.slept if seconds < 1] == [0.05, 0.1, 0.05]


async def test_commits_in_an_outage_do_not_make_it_try_more_often() -> None:
    """They only add to the trouble."""
    post = await Post(StandingTimer()).open()
    running = asyncio.create_task(post.relay(FailsAt(Point.DISPATCH, *[CommitFailed("away")] * 9)).run(post.stop))
    await asyncio.sleep(0)
    for name in "abcde":
        post.doorbell.ring(await post.commit(name, old=False))
        for _ in range(50):
            await asyncio.sleep(0)
    post.stop.set()
    await running
    assert post.tally.calls[Point.FIND] == 1


async def test_what_was_told_and_not_answered_for_sure_is_tried_again() -> None:
    """Soon after, under the same id."""
    post = await Post(HastyTimer()).open()
    transport = UnsureTransport(post.house.transport, times=3)
    relay_ = post.relay(StopWhen(post.stop, post.is_empty), ports=post.house.ports._replace(transport=transport))
    identities = await post.commit("a", old=False)
    running = asyncio.create_task(relay_.run(post.stop))
    await asyncio.sleep(0)
    post.doorbell.ring(identities)
    await running
    assert post.wire() == [outgoing_id(SHOP, identities[0], 0)] * 4


async def test_a_bug_is_said_every_time_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """And the relay lives on."""
    post = await Post().open()
    await post.commit("a")
    await post.run(FailsAt(Point.DISPATCH, KeyError("ours"), KeyError("ours")))
    assert [record.exc_info is not None for record in caplog.records if record.levelno == logging.ERROR] == [True, True]


async def test_refused_records_are_said_once_for_each_change(caplog: pytest.LogCaptureFixture) -> None:
    """With what the broker refuses; and that it does no more."""
    post = await Post().open()
    await post.commit("r1", "r2", to="nobody")
    with caplog.at_level(logging.INFO):
        await post.run(until=post.looked(3))
        assert len(told(caplog)) == 1
        running = post.relay(StopWhen(post.stop, lambda: "relay: nothing is refused any more" in told(caplog)))
        task = asyncio.create_task(running.run(post.stop))
        while len(told(caplog)) < 2:  # noqa: ASYNC110 - a log has no event
            await asyncio.sleep(0)
        await post.house.transport.declare([Topology(endpoint="nobody")])
        await task
    first = next(record for record in caplog.records if record.name == "onceonly.relay")
    assert (first.levelname, vars(first)["count"], vars(first)["reason"]) == ("WARNING", 2, "done to nobody")
    assert told(caplog)[1:] == [told(caplog)[0], "relay: nothing is refused any more"]
    assert post.left() == []
