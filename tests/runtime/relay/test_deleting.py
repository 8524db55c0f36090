"""The relay forgets what commits told it a little after it was sent: many records by one call, while it sends others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity, outgoing_id
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from onceonly.runtime.observe.observer import Observer, Point, PortCall
from onceonly.runtime.relay.relay import FEW, PAGE, portion
from tests.log_events import events
from tests.runtime.harness import SHOP, HastyTimer
from tests.runtime.relay.harness import FailsAt, RelayHarness, StandingTimer


class HeldUp:
    """An observer that holds calls up before they are made, until it lets them go."""

    def __init__(self, point: Point) -> None:
        self.has_come, self.may_go = asyncio.Event(), asyncio.Event()
        self._point = point

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Hold up."""
        if call.point is self._point:
            self.has_come.set()
            await self.may_go.wait()
        yield


class JumpingTimer(StandingTimer):
    """Time stands still but for jumps."""

    def __init__(self) -> None:
        self.now = 0.0

    def seconds(self) -> float:
        """Return how far it jumped."""
        return self.now


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, of which nobody is told."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - stores and brokers in memory are values
            await asyncio.sleep(0)


async def started(harness: RelayHarness, *observers: Observer) -> asyncio.Task[None]:
    """Run a relay until `post.stop`; gives it once it has looked."""
    running = asyncio.create_task(harness.relay(*observers).run(harness.stop))
    await until(harness.looked(1))
    return running


async def tell(harness: RelayHarness, *names: str, old: bool = False) -> None:
    """Commit, tell of it, and wait until it is sent."""
    before = len(harness.wire())
    harness.notifier.notify(await harness.commit(*names, old=old))
    await until(lambda: len(harness.wire()) == before + len(names))


async def test_what_is_told_one_by_one_is_forgotten_by_one_call() -> None:
    """Each is sent at once; here time stands still, so only the stop ends the wait for others."""
    harness = await RelayHarness(StandingTimer()).open()
    running = await started(harness)
    for name in "abc":
        await tell(harness, name)
    assert (harness.left(), harness.tally.calls[Point.DISPATCH]) == (["a", "b", "c"], 3)
    harness.stop.set()
    await running
    assert (harness.left(), harness.tally.calls[Point.FORGET]) == ([], 1)


async def test_as_many_as_may_be_left_are_forgotten_without_a_wait() -> None:
    """No more are waited for."""
    harness = await RelayHarness(StandingTimer()).open()
    running = await started(harness)
    await tell(harness, *(f"m{number}" for number in range(FEW)))
    await until(harness.is_empty)
    harness.stop.set()
    await running


async def test_what_is_told_is_sent_while_others_are_being_forgotten() -> None:
    """A slow store holds up no message."""
    harness, forgetting = await RelayHarness(HastyTimer()).open(), HeldUp(Point.FORGET)
    running = await started(harness, forgetting)
    await tell(harness, "a")
    await forgetting.has_come.wait()
    await tell(harness, "b")
    assert harness.left() == ["a", "b"]
    forgetting.may_go.set()
    harness.stop.set()
    await running
    assert harness.left() == []


@pytest.mark.parametrize("failures", [1, 3])
async def test_what_could_not_be_deleted_is_deleted_later_and_not_sent_again(
    failures: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A store that is away now and then repeats no message. That something is wrong is said, and when it is over."""
    harness = await RelayHarness(HastyTimer()).open()
    with caplog.at_level(logging.INFO):
        running = await started(harness, FailsAt(Point.FORGET, *[CommitFailed("away")] * failures))
        await tell(harness, "a")
        await until(harness.is_empty)
        await until(lambda: "relay recovered" in events(caplog.records))
        harness.stop.set()
        await running
    assert harness.wire() == [outgoing_id(SHOP, Identity(SHOP, "a"), 0)]
    assert events(caplog.records) == ["relay cannot dispatch, retrying with backoff", "relay recovered"]


async def test_old_records_that_could_not_be_deleted_are_not_sent_again() -> None:
    """They were found by a look, and are deleted before the next one."""
    harness = await RelayHarness(HastyTimer()).open()
    await harness.commit("a", "b")
    running = asyncio.create_task(harness.relay(FailsAt(Point.FORGET, *[CommitFailed("away")] * 2)).run(harness.stop))
    await until(harness.is_empty)
    harness.stop.set()
    await running
    assert sorted(harness.wire()) == sorted(outgoing_id(SHOP, Identity(SHOP, name), 0) for name in "ab")


async def test_what_is_on_its_way_out_of_the_store_is_not_found_by_a_look() -> None:
    """It is forgotten before the look, and not sent once more."""
    timer = JumpingTimer()
    harness = await RelayHarness(timer).open()
    running = await started(harness)
    await tell(harness, "a", old=True)
    timer.now = 1000.0
    harness.notifier.notify([Identity(SHOP, "another")])
    await until(harness.looked(2))
    assert (harness.left(), len(harness.wire())) == ([], 1)
    harness.stop.set()
    await running


async def test_a_relay_that_dies_while_it_forgets_is_dead() -> None:
    """Crash here, "before-forget": 1 sent, 2 the record is there, 3 another relay sends it under the same id."""
    harness = await RelayHarness(HastyTimer()).open()
    running = await started(harness, CrashAt("before-forget"))
    await tell(harness, "a")
    with pytest.raises(ProcessCrash):
        await asyncio.wait_for(running, 10)
    assert harness.left() == ["a"]


async def test_a_stop_does_not_wait_for_ever_for_what_is_being_forgotten() -> None:
    """It is cut off after the grace time, and the record stays."""
    harness, forgetting = await RelayHarness(HastyTimer()).open(), HeldUp(Point.FORGET)
    relay = harness.relay(forgetting)
    relay._grace = 0.0
    running = asyncio.create_task(relay.run(harness.stop))
    await until(harness.looked(1))
    await tell(harness, "a")
    await forgetting.has_come.wait()
    harness.stop.set()
    await running
    assert (harness.left(), asyncio.all_tasks()) == (["a"], {asyncio.current_task()})


class UnforgottenWatch:
    """An observer that notes, at each send, how many records are on the wire and still in the store."""

    def __init__(self, harness: RelayHarness) -> None:
        self._harness = harness
        self.found: list[int] = []

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count after the send."""
        yield
        if call.point is Point.DISPATCH:
            sent = set(self._harness.wire())
            left = [outgoing_id(SHOP, Identity(SHOP, name), 0) for name in self._harness.left()]
            self.found.append(len(sent.intersection(left)))


@pytest.mark.parametrize("old", [False, True])
async def test_few_records_are_sent_and_not_forgotten_at_any_time(old: bool) -> None:  # noqa: FBT001 - pytest's
    """Crash here, at any send: 1 sent, 2 not forgotten, 3 another relay sends these few again."""
    harness = await RelayHarness(HastyTimer()).open()
    watch, names = UnforgottenWatch(harness), [f"m{number}" for number in range(PAGE - 1)]
    identities = await harness.commit(*names, old=old)
    running = asyncio.create_task(harness.relay(watch).run(harness.stop))
    if not old:
        await until(harness.looked(1))
        harness.notifier.notify(identities)
    await until(harness.is_empty)
    harness.stop.set()
    await running
    assert len(harness.wire()) == len(names)
    assert max(watch.found) == FEW


async def test_portions_grow_from_page_to_page_of_a_backlog() -> None:
    """A relay that is far behind sends whole pages at last."""
    harness = await RelayHarness(HastyTimer()).open()
    watch = UnforgottenWatch(harness)
    await harness.commit(*(f"m{number}" for number in range(7 * PAGE)))
    await harness.run(watch)
    assert len(harness.wire()) == 7 * PAGE
    assert (watch.found[0], max(watch.found)) == (FEW, PAGE)


@pytest.mark.parametrize(("waiting", "most"), [(0, FEW), (PAGE, FEW), (320, 20), (1600, PAGE), (10_000, PAGE)])
def test_a_portion_grows_with_the_backlog(waiting: int, most: int) -> None:
    """While the relay keeps up, few messages are repeated after a kill. Behind, it sends and forgets more at once."""
    assert portion(waiting) == most
