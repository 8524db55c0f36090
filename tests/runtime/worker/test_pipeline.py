"""Batches follow one another: one is handled while others are dispatched, and what is done is forgotten together."""

import asyncio
from collections.abc import Sequence

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import ConflictError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Unit
from onceonly.runtime.worker.batched_delete import WINDOW_SECONDS, BatchedDelete
from onceonly.runtime.worker.dispatches import Dispatches
from onceonly.runtime.worker.isolated_runs import GateMember
from onceonly.runtime.worker.pipeline import HandlerSlot, SlottedStore
from onceonly.runtime.worker.worker import IN_FLIGHT, Worker
from tests.runtime.harness import HastyTimer, SimulatedEndpoint, slow_endpoint

MANY = "abcdefghijkl"
ONE_BY_ONE = WorkerSettings(batch_size=1, wait=0.05)


class CountingStore(MemoryStore):
    """Knows how many of its units are open, and how many were at most."""

    open = most = 0

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Count it."""
        unit = await super().begin(messages, isolated=isolated)
        type(self).open += 1
        type(self).most = max(self.most, self.open)
        return CountedUnit(unit, self)


class CountedUnit:
    """A unit that is counted until it ends."""

    def __init__(self, unit: Unit, store: CountingStore) -> None:
        self._unit, self._store, self._open = unit, store, True
        self.key = unit.key
        self.found = unit.found
        self.resources = unit.resources

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit, after others had their turn of the loop."""
        await asyncio.sleep(0)
        await self._unit.commit(records)
        self._end()

    def abandon(self) -> None:
        """Abandon."""
        self._unit.abandon()
        self._end()

    def _end(self) -> None:
        if self._open:
            self._open = False
            type(self._store).open -= 1


class StoreThatForgetsSlowly(MemoryStore):
    """Forgets when it is let, and keeps what it was asked; fails when told so."""

    def wait_here(self) -> None:
        """Begin closed."""
        self.opened, self.begun = asyncio.Event(), asyncio.Event()
        self.calls: list[list[str]] = []
        self.error: Exception | None = None

    async def forget(self, records: Sequence[Record]) -> None:
        """Wait, then forget."""
        self.calls.append([record.identity.id for record in records])
        self.begun.set()
        await self.opened.wait()
        if self.error:
            raise self.error
        await super().forget(records)


class NeverTimer(HastyTimer):
    """Its time never comes."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for ever."""
        await asyncio.Event().wait()


async def test_the_next_batch_is_handled_while_the_last_ones_are_dispatched() -> None:
    """As many as may be in flight, and no more: the others stay with the broker."""
    simulated, broker = await slow_endpoint(*MANY)
    worker, stop = Worker(simulated.ports, ONE_BY_ONE, environment=simulated.environment), asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    for _ in range(IN_FLIGHT):
        await broker.waiting.acquire()
    assert simulated.noted() == list(MANY[:IN_FLIGHT])
    assert (await broker.depth("shop")).waiting == len(MANY) - IN_FLIGHT
    broker.opened.set()
    await simulated.settled()
    stop.set()
    await running
    assert simulated.noted() == simulated.announced() == list(MANY)


async def test_units_follow_one_another() -> None:
    """With concurrency 1 no two batches are in a unit at once, whatever else overlaps; with 2 there may be two."""
    for concurrency in (1, 2):
        simulated = SimulatedEndpoint()
        store = CountingStore(simulated.driver, "shop", clock=simulated.clock)
        CountingStore.open = CountingStore.most = 0
        simulated.ports = simulated.ports._replace(store=store)
        await simulated.open(*"abcdefgh")
        await simulated.work(WorkerSettings(batch_size=1, wait=0.05, concurrency=concurrency))
        assert (CountingStore.most, CountingStore.open) == (concurrency, 0)
        assert simulated.noted() == list("abcdefgh")


async def test_records_are_forgotten_together_while_a_statement_is_under_way() -> None:
    """The first alone; the two that came meanwhile in one call."""
    simulated = SimulatedEndpoint()
    slow = StoreThatForgetsSlowly(simulated.driver, "shop", clock=simulated.clock)
    slow.wait_here()
    store = BatchedDelete(slow, simulated.timer, enough=9)
    first = asyncio.create_task(store.forget([Record(Identity("s", "a"))]))
    await slow.begun.wait()
    others = [asyncio.create_task(store.forget([Record(Identity("s", name))])) for name in "bc"]
    await asyncio.sleep(0)
    slow.opened.set()
    await asyncio.gather(first, *others)
    assert slow.calls == [["a"], ["b", "c"]]


async def test_who_forgets_first_waits_for_others_to_join() -> None:
    """For a moment, whatever else is going on."""
    simulated = SimulatedEndpoint()
    slow = StoreThatForgetsSlowly(simulated.driver, "shop", clock=simulated.clock)
    slow.wait_here()
    slow.opened.set()
    store = BatchedDelete(slow, simulated.timer, enough=9)
    await asyncio.gather(*(store.forget([Record(Identity("s", name))]) for name in "abc"))
    assert slow.calls == [["a", "b", "c"]]
    assert simulated.timer.slept == [WINDOW_SECONDS]


async def test_enough_callers_wait_for_nobody_else() -> None:
    """The window ends with the third; its time never comes."""
    simulated = SimulatedEndpoint()
    slow = StoreThatForgetsSlowly(simulated.driver, "shop", clock=simulated.clock)
    slow.wait_here()
    slow.opened.set()
    store = BatchedDelete(slow, NeverTimer(), enough=3)
    await asyncio.gather(*(store.forget([Record(Identity("s", name))]) for name in "abc"))
    assert slow.calls == [["a", "b", "c"]]


@pytest.mark.parametrize("error", [ConflictError("locked"), OutcomeUnknown("cut off"), RuntimeError("a bug")])
async def test_all_that_were_forgotten_together_learn_of_a_failure(error: Exception) -> None:
    """The one that made the call gets the error itself, the others OutcomeUnknown; the next call is a new one."""
    simulated = SimulatedEndpoint()
    slow = StoreThatForgetsSlowly(simulated.driver, "shop", clock=simulated.clock)
    slow.wait_here()
    store = BatchedDelete(slow, simulated.timer, enough=9)
    first = asyncio.create_task(store.forget([Record(Identity("s", "a"))]))
    await slow.begun.wait()
    others = [asyncio.create_task(store.forget([Record(Identity("s", name))])) for name in "bc"]
    await asyncio.sleep(0)
    slow.error = error
    slow.opened.set()
    failed = await asyncio.gather(first, *others, return_exceptions=True)
    assert [type(each) for each in failed] == [type(error), type(error), OutcomeUnknown]
    slow.error = None
    await store.forget([Record(Identity("s", "d"))])
    assert slow.calls == [["a"], ["b", "c"], ["d"]]


async def test_who_is_cancelled_leaves_no_round_without_an_end() -> None:
    """Its call is cut off; who waited with it learns that nobody knows."""
    simulated = SimulatedEndpoint()
    slow = StoreThatForgetsSlowly(simulated.driver, "shop", clock=simulated.clock)
    slow.wait_here()
    store = BatchedDelete(slow, simulated.timer, enough=9)
    first = asyncio.create_task(store.forget([Record(Identity("s", "a"))]))
    await slow.begun.wait()
    second = asyncio.create_task(store.forget([Record(Identity("s", "b"))]))
    await asyncio.sleep(0)
    first.cancel()
    slow.opened.set()
    assert isinstance((await asyncio.gather(first, return_exceptions=True))[0], asyncio.CancelledError)
    await second
    assert slow.calls == [["a"], ["b"]]


async def test_the_second_half_of_a_batch_takes_its_turn_again() -> None:
    """The first half's commit gave it up, and another batch has it; nobody runs beside it."""
    simulated = SimulatedEndpoint()
    turns = asyncio.Semaphore(1)
    first, second = HandlerSlot(turns), HandlerSlot(turns)
    forgets = BatchedDelete(simulated.store, simulated.timer, enough=1)
    store = SlottedStore(simulated.store, first, GateMember(), forgets=forgets, dispatches=Dispatches())
    await first.take()
    unit = await store.begin([])
    await unit.commit([])
    await second.take()
    halved = asyncio.create_task(store.begin([]))
    await asyncio.sleep(0)
    assert not halved.done()
    second.give_up()
    (await halved).abandon()
    assert turns.locked()
    first.give_up()
    assert not turns.locked()
