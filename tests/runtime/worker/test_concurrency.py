"""Units of one batch run side by side where each is one entity: batches go on following one another, and none stands still."""

import asyncio
from collections.abc import Sequence

import pytest

from onceonly.adapters.memory.store import MemoryStore
from onceonly.config.worker import WorkerSettings
from onceonly.model.message import Message
from onceonly.ports.store import Resources, Unit
from onceonly.runtime.worker.worker import SIDE_BY_SIDE
from tests.runtime.harness import ScriptedHandlers, SimulatedEndpoint, failing

IDS = [f"m{number:03}" for number in range(6 * SIDE_BY_SIDE)]


class EntityStore(MemoryStore):
    """Each message is a unit of its own; knows how many are open, and which batches' they are."""

    def reset(self) -> "EntityStore":
        """Begin with none."""
        self.open = self.most = 0
        return self

    def unit_key(self, message: Message) -> str:
        """Return a key of its own."""
        return message.identity.id

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Count it, and let the others begin."""
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        try:
            return await super().begin(messages, isolated=isolated)
        finally:
            self.open -= 1


def entity_endpoint(handlers: ScriptedHandlers | None = None) -> tuple[SimulatedEndpoint, EntityStore]:
    """Return an endpoint whose messages are units of their own."""
    simulated = SimulatedEndpoint(handlers)
    store = EntityStore(simulated.driver, "shop", clock=simulated.clock).reset()
    simulated.ports = simulated.ports._replace(store=store)
    return simulated, store


@pytest.mark.parametrize("batch", [SIDE_BY_SIDE - 7, SIDE_BY_SIDE, 3 * SIDE_BY_SIDE])
async def test_batches_of_many_units_never_wait_for_each_other(batch: int) -> None:
    """Who has the turn needs room for its units, and who has room must not wait for the turn."""
    simulated, store = entity_endpoint()
    await simulated.open(*IDS)
    async with asyncio.timeout(30):
        await simulated.work(WorkerSettings(batch_size=batch, wait=0.05))
    assert simulated.noted() == simulated.announced() == IDS
    assert 1 < store.most <= SIDE_BY_SIDE


async def test_units_that_run_again_never_wait_for_each_other() -> None:
    """Each fails once in a batch, and once more alone, while other batches have the turn."""
    failed: list[str] = []

    def fail_twice(message: Message, _resources: Resources) -> None:
        if failed.count(message.id) < 2:
            failed.append(message.id)
            raise failing("not yet")

    simulated, _ = entity_endpoint(ScriptedHandlers(fail_twice))
    await simulated.open(*IDS)
    async with asyncio.timeout(30):
        await simulated.work(WorkerSettings(batch_size=SIDE_BY_SIDE - 7, wait=0.05))
    assert simulated.noted() == simulated.announced() == IDS


async def test_no_batch_is_received_while_units_of_the_last_one_have_no_room() -> None:
    """They would only wait here, while other processes are idle. With the last unit's begin the next batch may come."""
    ids = [f"m{number:03}" for number in range(4 * SIDE_BY_SIDE)]
    going, started, stop = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()

    async def wait(_message: Message, _resources: Resources) -> None:
        started.release()
        await going.acquire()

    simulated, _ = entity_endpoint(ScriptedHandlers(wait))
    await simulated.open(*ids)
    worker = simulated.worker(WorkerSettings(batch_size=2 * SIDE_BY_SIDE, wait=0.05))
    running = asyncio.create_task(worker.run(stop))
    for number in range(2 * SIDE_BY_SIDE):
        if number >= SIDE_BY_SIDE:
            assert len(worker.held) == 2 * SIDE_BY_SIDE
            going.release()
        async with asyncio.timeout(20):
            await started.acquire()
    going.release()
    async with asyncio.timeout(20):
        await started.acquire()
    assert len(worker.held) == 4 * SIDE_BY_SIDE
    for _ in ids:
        going.release()
    await simulated.settled()
    stop.set()
    await running
    assert sorted(simulated.noted()) == ids
