"""What a worker dropped is counted where it outlives the process."""

import asyncio

import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.bookkeeping import DocumentCounter
from onceonly.model.errors import CommitFailed, OutcomeUnknown
from onceonly.runtime.environment import Environment
from onceonly.runtime.maintenance.counts import DroppedCounter
from onceonly.runtime.worker.worker import Worker
from tests.runtime.harness import FAST, SHOP, FixedRandomSource, SimulatedEndpoint
from tests.runtime.relay.harness import PassingTimer


class Meter:
    """A counter that fails as often as a test wants, and wakes whoever waits for a number."""

    def __init__(self, failures: int = 0) -> None:
        self.inner = DocumentCounter(MemoryDocuments(Live()), "drops")
        self.failures = failures
        self.writes: list[int] = []
        self.written = asyncio.Event()

    async def add(self, count: int) -> None:
        """Add, or fail."""
        self.failures -= 1
        if self.failures >= 0:
            raise CommitFailed("the place is away")
        await self.inner.add(count)
        self.writes.append(count)
        self.written.set()

    async def read(self) -> int:
        """Return it."""
        return await self.inner.read()


async def run(simulated: SimulatedEndpoint, meter: Meter, stop: asyncio.Event) -> Worker:
    """Run a counted worker of this endpoint until it is stopped."""
    worker = simulated.worker(FAST)
    environment = Environment(clock=simulated.clock, random=FixedRandomSource(), timer=PassingTimer())
    async with asyncio.timeout(20):
        await DroppedCounter(worker, meter, endpoint=SHOP, in_store=True, environment=environment).run(stop)
    return worker


async def dropping(simulated: SimulatedEndpoint, *ids: str) -> None:
    """Have these handled, and send copies of them."""
    await simulated.send(*ids)
    await simulated.work()
    await simulated.send(*ids)


@pytest.mark.parametrize("failures", [0, 3])
async def test_what_is_dropped_is_counted_while_the_worker_runs(failures: int) -> None:
    """Also when it could not be written at first."""
    simulated, meter, stop = await SimulatedEndpoint().open(), Meter(failures), asyncio.Event()
    await dropping(simulated, "m1", "m2", "m3")
    running = asyncio.create_task(run(simulated, meter, stop))
    await meter.written.wait()
    stop.set()
    worker = await running
    assert worker.report.known == await meter.read() == sum(meter.writes) == 3


async def test_what_is_left_at_the_stop_is_counted_then() -> None:
    """The worker ends first."""
    simulated, meter, stop = await SimulatedEndpoint().open(), Meter(failures=10**9), asyncio.Event()
    await dropping(simulated, "m1", "m2")
    running = asyncio.create_task(run(simulated, meter, stop))
    await simulated.settled()
    stop.set()
    meter.failures = 0
    await running
    assert await meter.read() == 2


async def test_nothing_is_written_where_nothing_was_dropped() -> None:
    """An endpoint at rest writes nothing."""
    simulated, meter, stop = await SimulatedEndpoint().open("m1"), Meter(), asyncio.Event()
    stop.set()
    await run(simulated, meter, stop)
    assert meter.writes == []


async def test_a_counter_adds_up_for_all_who_share_it() -> None:
    """Also when they write at the same moment."""
    documents = MemoryDocuments(Live())
    await asyncio.gather(*(DocumentCounter(documents, "drops").add(number) for number in range(10)))
    assert await DocumentCounter(documents, "drops").read() == 45
    assert await DocumentCounter(documents, "others").read() == 0


async def test_a_lost_answer_counts_twice_rather_than_not_at_all() -> None:
    """The number is for people, and they must not miss a loss."""
    simulated, stop = await SimulatedEndpoint().open(), asyncio.Event()
    meter = Lossy()
    await dropping(simulated, "m1")
    running = asyncio.create_task(run(simulated, meter, stop))
    await meter.written.wait()
    stop.set()
    await running
    assert await meter.read() == 2


class Lossy(Meter):
    """A counter whose first answer is lost."""

    async def add(self, count: int) -> None:
        """Add, and do not say so."""
        if not self.writes:
            self.writes.append(0)
            await self.inner.add(count)
            raise OutcomeUnknown("cut")
        await super().add(count)


class SlowMeter(Meter):
    """Its first number takes until a test lets it be written."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.opened = asyncio.Event(), asyncio.Event()

    async def add(self, count: int) -> None:
        """Wait, then add."""
        self.begun.set()
        await self.opened.wait()
        await super().add(count)


async def test_what_is_dropped_during_the_last_write_is_counted_as_well() -> None:
    """The worker drops more, and ends, while an earlier number is still being written."""
    simulated, meter, stop = await SimulatedEndpoint().open(), SlowMeter(), asyncio.Event()
    await dropping(simulated, "m1")

    class WorkerThatOpens(Worker):
        """Lets the number be written when it has ended."""

        async def run(self, stop: asyncio.Event) -> None:
            """Run."""
            await super().run(stop)
            asyncio.get_running_loop().call_soon(meter.opened.set)

    worker = WorkerThatOpens(simulated.ports, FAST, environment=simulated.environment)
    environment = Environment(clock=simulated.clock, random=FixedRandomSource(), timer=PassingTimer())
    running = asyncio.create_task(
        DroppedCounter(worker, meter, endpoint=SHOP, in_store=True, environment=environment).run(stop)
    )
    await meter.begun.wait()
    await simulated.send("m1")
    await simulated.settled()
    stop.set()
    await running
    assert await meter.read() == worker.report.known == 2
