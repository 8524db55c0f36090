"""A copy waits for the dispatch of its message: it sends nothing, and is acknowledged only after the dispatch."""

import asyncio

import pytest

from onceonly.config.worker import WorkerSettings
from onceonly.model.errors import CommitRefused, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly.runtime.environment import Environment
from onceonly.runtime.worker.dispatches import YOUNG_SECONDS, CopyAwareStore, Dispatches
from onceonly.runtime.worker.worker import Worker
from tests.runtime.harness import SHOP, SINK, HastyTimer, SimulatedEndpoint, SlowBroker, slow_endpoint

ONE_BY_ONE = WorkerSettings(batch_size=1, wait=0.05, grace=5.0)
M1 = Message(id="m1", source="test", type="order", body=b"{}")
EFFECT = (Send(message=Message(id="out", source=SHOP, type="done", body=b"")),)
RECORD = Record(M1.identity, EFFECT)


class StandingTimer(HastyTimer):
    """Time stands still, so no wait is given up."""

    async def sleep(self, seconds: float) -> None:
        """Sleep without end."""
        await asyncio.Event().wait()


def sent(simulated: SimulatedEndpoint) -> int:
    """Count the events on the wire."""
    return sum(entry.queue == SINK for entry in simulated.broker().entries)


def waiting(simulated: SimulatedEndpoint) -> int:
    """Count the deliveries that are not acknowledged."""
    return sum(entry.queue == SHOP for entry in simulated.broker().entries)


async def turns() -> None:
    """Let every task run as far as it can."""
    for _ in range(200):
        await asyncio.sleep(0)


async def with_a_copy(timer: HastyTimer) -> tuple[SimulatedEndpoint, SlowBroker, asyncio.Event, asyncio.Task[None]]:
    """Run a worker that gets one message twice in a row, each in a batch of its own, while the broker takes nothing."""
    simulated, broker = await slow_endpoint("m1")
    await simulated.send("m1")
    environment = Environment(clock=simulated.clock, random=simulated.environment.random, timer=timer)
    worker, stop = Worker(simulated.ports, ONE_BY_ONE, environment=environment), asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await broker.waiting.acquire()
    return simulated, broker, stop, running


async def test_a_copy_waits_until_its_message_is_dispatched() -> None:
    """No crash, no delay: one event on the wire. Neither delivery is acknowledged before it is sent."""
    simulated, broker, stop, running = await with_a_copy(StandingTimer())
    await turns()
    assert (broker.waited_for, sent(simulated), waiting(simulated)) == (1, 0, 2)
    await simulated.send("other")
    await broker.waiting.acquire()  # other messages are handled meanwhile
    broker.opened.set()
    await simulated.store.forget([])
    stop.set()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert sent(simulated) == 2
    assert simulated.noted() == ["m1", "other"]


async def test_a_copy_that_waits_too_long_dispatches_as_well() -> None:
    """The first dispatch may hang. Both send the same id, and both deliveries are acknowledged after that."""
    simulated, broker, stop, running = await with_a_copy(HastyTimer())
    await broker.waiting.acquire()
    assert waiting(simulated) == 2
    broker.opened.set()
    await simulated.settled()
    stop.set()
    await running
    assert sent(simulated) == 2
    assert simulated.announced() == simulated.noted() == ["m1"]


async def test_each_message_twice_in_a_row_is_sent_once() -> None:
    """In batches that cut pairs, many of them in flight."""
    simulated = await SimulatedEndpoint().open()
    names = [f"m{number}" for number in range(30)]
    for name in names:
        await simulated.send(name, name)
    await simulated.work(WorkerSettings(batch_size=3, wait=0.05, grace=5.0))
    assert sent(simulated) == len(names)
    assert simulated.noted() == sorted(names)


def stores(timer: HastyTimer) -> tuple[SimulatedEndpoint, CopyAwareStore, CopyAwareStore]:
    """Return the stores of two batches in one process."""
    simulated, dispatches = SimulatedEndpoint(), Dispatches()
    first, second = (CopyAwareStore(simulated.store, dispatches, timer) for _ in range(2))
    return simulated, first, second


async def test_a_copy_whose_record_is_deleted_is_done() -> None:
    """It waits for that, whoever has the record."""
    _, first, second = stores(StandingTimer())
    unit = await first.begin([M1])
    await unit.commit([RECORD])
    copy = asyncio.create_task(second.begin([M1]))
    await turns()
    assert not copy.done()
    await first.forget([RECORD])
    found = (await copy).found
    assert (found.done, found.pending) == ((M1,), ())


async def test_a_copy_finds_the_record_that_a_failed_dispatch_leaves() -> None:
    """Its batch is settled, and the record is still there: the copy is the one that dispatches it, and others wait for it."""
    _, first, second = stores(StandingTimer())
    unit = await first.begin([M1])
    await unit.commit([RECORD])
    copy = asyncio.create_task(second.begin([M1]))
    await turns()
    first.end_batch()
    assert (await copy).found.pending == (RECORD,)
    third = asyncio.create_task(first.begin([M1]))
    await turns()
    assert not third.done()
    second.end_batch()
    assert (await third).found.pending == (RECORD,)


@pytest.mark.parametrize(("error", "waits"), [(CommitRefused("full"), False), (OutcomeUnknown("cut off"), True)])
async def test_only_a_commit_that_may_have_happened_is_waited_for(error: Exception, waits: bool) -> None:  # noqa: FBT001 - pytest's
    """A refused one leaves nothing to dispatch."""
    _, first, second = stores(StandingTimer())
    unit = await first.begin([M1])

    async def fail(_: object) -> None:
        raise error

    unit._unit.commit = fail  # type: ignore[attr-defined] # of the class in this module
    with pytest.raises(type(error)):
        await unit.commit([RECORD])
    unit.abandon()
    copy = asyncio.create_task(second.begin([M1]))
    await turns()
    assert copy.done() is not waits
    copy.cancel()


async def test_a_batch_does_not_wait_for_itself() -> None:
    """A second unit of the batch that committed a record finds it pending at once."""
    _, first, _ = stores(StandingTimer())
    unit = await first.begin([M1])
    await unit.commit([RECORD])
    assert (await first.begin([M1])).found.pending == (RECORD,)


async def test_two_batches_that_wait_for_each_other_go_on() -> None:
    """Each has committed what the other one asks for. Waits end after some seconds, so neither is stuck."""
    timer = HastyTimer()
    _, first, second = stores(timer)
    m2 = Message(id="m2", source="test", type="order", body=b"{}")
    for store, message in ((first, M1), (second, m2)):
        unit = await store.begin([message])
        await unit.commit([Record(message.identity, EFFECT)])
    found = await asyncio.gather(first.begin([m2]), second.begin([M1]))
    assert [unit.found.pending[0].identity for unit in found] == [m2.identity, M1.identity]
    assert max(timer.slept) <= YOUNG_SECONDS


def test_another_holders_record_is_not_released() -> None:
    """A batch that ends releases what it holds itself."""
    dispatches, one, two = Dispatches(), object(), object()
    dispatches.hold([Identity("test", "m1")], one)
    dispatches.hold([Identity("test", "m1")], two)
    dispatches.release([Identity("test", "m1")], one)
    assert dispatches.are_elsewhere([M1], one)
    assert not dispatches.are_elsewhere([M1], two)
