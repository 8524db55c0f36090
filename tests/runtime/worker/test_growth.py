"""A worker that may grow: more units at once while handlers wait for something else than the store, and only then."""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from onceonly.adapters.memory.store import MemoryResources, MemoryStore
from onceonly.config.worker import WorkerSettings
from onceonly.model.message import Message
from onceonly.ports.store import Resources, Unit
from onceonly.runtime.worker import growth
from onceonly.runtime.worker.growth import LATE_SECONDS, TICK_SECONDS, ElasticTurns, WaitSample, WaitSampler
from onceonly.runtime.worker.worker import IN_FLIGHT, Worker
from tests.runtime.harness import ScriptedHandlers, SimulatedEndpoint, slow_endpoint

MOST = 10
SETTINGS = WorkerSettings(wait=0.05, grace=5.0)


class Barrier:
    """Lets handlers go on when so many of them wait at once."""

    def __init__(self, number: int) -> None:
        self.number, self.now, self.most = number, 0, 0
        self.opened = asyncio.Event()

    async def wait(self) -> None:
        """Wait for the others."""
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.number:
            self.opened.set()
        await self.opened.wait()
        self.now -= 1


class BusyStore(MemoryStore):
    """Has a call in progress whenever a handler waits, and a look at each unit that begins."""

    looks = 0
    enough = asyncio.Event()

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin a unit with busy resources."""
        unit = await super().begin(messages, isolated=isolated)
        unit.resources = BusyResources(unit.resources, self)
        return unit


class BusyResources(MemoryResources):
    """Is busy, and counts who asks."""

    def __init__(self, resources: Resources, store: BusyStore) -> None:
        assert isinstance(resources, MemoryResources)
        self.__dict__.update(vars(resources))
        self._store = store

    def is_busy(self) -> bool:
        """Say yes."""
        self._store.looks += 1
        if self._store.looks >= MOST:
            self._store.enough.set()
        return True


class SteppedLoop:
    """A loop whose clock is moved by hand. It runs one callback, as late as the test likes."""

    def __init__(self) -> None:
        self.now = 0.0
        self._callback: Callable[[], object] = lambda: None

    def time(self) -> float:
        """Return the time."""
        return self.now

    def call_later(self, _: float, callback: Callable[..., object], *arguments: object) -> None:
        """Keep the callback."""
        self._callback = lambda: callback(*arguments)

    def run_after(self, seconds: float) -> None:
        """Run it so much later."""
        self.now += seconds
        self._callback()


class IdleResources:
    """Has nothing to do."""

    def is_busy(self) -> bool:
        """Say no."""
        return False


async def run(simulated: SimulatedEndpoint, settings: WorkerSettings = SETTINGS, *, most: int = MOST) -> Worker:
    """Run a worker that may grow until the queue is empty."""
    stop = asyncio.Event()
    worker = Worker(simulated.ports, settings, environment=simulated.environment, most=most)
    running = asyncio.create_task(worker.run(stop))
    await simulated.settled()
    stop.set()
    await running
    return worker


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take no notice of the CPU time of a process that runs other tests' threads as well."""
    monkeypatch.setattr(growth, "IDLE", 0.0)


async def test_handlers_that_wait_run_side_by_side_up_to_the_limit() -> None:
    """Ten of forty wait at once; all wait for the tenth. Each message is handled once."""
    barrier = Barrier(MOST)
    names = [f"m{number:02}" for number in range(40)]
    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda *_: barrier.wait())).open(*names)
    async with asyncio.timeout(60):
        await run(simulated)
    assert barrier.most == MOST
    assert sorted(simulated.handlers.started) == names == simulated.noted() == simulated.announced()


async def test_handlers_that_wait_for_the_store_run_one_after_another() -> None:
    """However long: more of them would only wait for each other's rows."""
    barrier = Barrier(2)
    simulated = SimulatedEndpoint(ScriptedHandlers(lambda *_: barrier.wait()))
    store = BusyStore(simulated.driver, "shop", clock=simulated.clock)
    store.enough = barrier.opened
    simulated.ports = simulated.ports._replace(store=store)
    await simulated.open("a", "b", "c")
    async with asyncio.timeout(60):
        await run(simulated)
    assert (barrier.most, simulated.noted()) == (1, ["a", "b", "c"])


async def test_a_concurrency_that_was_chosen_stays() -> None:
    """The endpoint passes no more than that: the worker samples nothing."""
    barrier = Barrier(1)
    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda *_: barrier.wait())).open("a", "b", "c")
    async with asyncio.timeout(60):
        await run(simulated, WorkerSettings(wait=0.05, concurrency=1), most=1)
    assert barrier.most == 1


async def test_batches_are_small_while_handlers_wait_and_grow_when_they_do_not() -> None:
    """A batch of handlers that wait keeps its rows locked all the time."""
    taken: list[int] = []

    async def wait_at_first() -> None:
        if len(simulated.handlers.started) <= 1:
            while not growing.size > 1:  # noqa: ASYNC110 - the sampler has no event
                await asyncio.sleep(0.001)

    simulated = await SimulatedEndpoint(ScriptedHandlers(lambda *_: wait_at_first())).open(*"abcdefghijklmnop")
    receive = simulated.transport.receive

    async def noted(limit: int, wait: float) -> object:
        taken.append(limit)
        return await receive(limit, wait)

    simulated.transport.receive = noted  # type: ignore[method-assign, assignment]
    worker = Worker(simulated.ports, SETTINGS, environment=simulated.environment, most=MOST)
    growing = worker.turns
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(60):
        await simulated.settled()
    stop.set()
    await running
    assert taken[:2] == [1, 1]
    assert max(taken) > 1
    assert growing.size == 1


def test_turns_grow_up_to_the_limit_and_shrink_to_the_first_number() -> None:
    """A turn that is closed ends when it is given up."""
    turns = ElasticTurns(1, 3)
    for _ in range(5):
        turns.grow()
    assert turns.size == 3
    for _ in range(5):
        turns.shrink()
    assert (turns.size, turns.locked()) == (1, False)


async def test_a_turn_that_is_closed_and_opened_again_goes_on() -> None:
    """Nothing is lost on the way."""
    turns = ElasticTurns(1, 2)
    turns.grow()
    for _ in range(2):
        await turns.acquire()
    turns.shrink()
    turns.grow()
    turns.release()
    turns.release()
    for _ in range(2):
        await turns.acquire()
    assert turns.locked()


def test_turns_bring_room_for_their_batches() -> None:
    """The first turns have room for several batches in flight each, and each more brings room for one: connections are few."""
    turns = ElasticTurns(2, 4, in_flight=IN_FLIGHT)
    sizes = [turns.room.size]
    for change in (turns.grow, turns.grow, turns.grow, turns.shrink, turns.shrink, turns.shrink):
        change()
        sizes.append(turns.room.size)
    assert sizes == [2 * (IN_FLIGHT - 1) + turn for turn in (2, 3, 4, 4, 3, 2, 2)]
    assert turns.loops == 2 * (IN_FLIGHT - 1) + 4


@pytest.mark.parametrize(
    ("pauses", "turns_then", "waited"),
    [
        ([TICK_SECONDS], 1, 0.0),
        ([TICK_SECONDS, TICK_SECONDS], 2, TICK_SECONDS),
        ([LATE_SECONDS], 2, LATE_SECONDS),
    ],
)
def test_one_late_sample_counts_as_two(
    monkeypatch: pytest.MonkeyPatch, pauses: list[float], turns_then: int, waited: float
) -> None:
    """A loop that was blocked while a handler waited takes one sample of it. That handler is not taken for a fast one."""
    loop, turns = SteppedLoop(), ElasticTurns(1, 2)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    sampler, sample = WaitSampler(turns), WaitSample()
    sampler.enter(sample, cast("Resources", IdleResources()))
    for pause in pauses:
        loop.run_after(pause)
    assert (turns.size, sample.seconds) == (turns_then, pytest.approx(waited))


async def test_batches_that_are_dispatched_leave_room_for_handlers_that_wait() -> None:
    """With a slow broker: more batches are in flight than one turn has room for, and all handlers of a batch run."""
    names = [f"m{number:02}" for number in range(4 * IN_FLIGHT)]
    barrier = Barrier(MOST)
    simulated, broker = await slow_endpoint(*names, handlers=ScriptedHandlers(lambda *_: barrier.wait()))
    worker, stop = Worker(simulated.ports, SETTINGS, environment=simulated.environment, most=MOST), asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    async with asyncio.timeout(60):
        for _ in range(MOST):
            await broker.waiting.acquire()
        broker.opened.set()
        await simulated.settled()
    stop.set()
    await running
    assert simulated.noted() == names
