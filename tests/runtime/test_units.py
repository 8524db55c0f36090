"""Units of one batch run side by side, and share their worker's room with those of other batches."""

import asyncio

from runtime_house import House, ScriptedHandlers

from onceonly.model.message import Message
from onceonly.ports.store import Resources
from onceonly.runtime.settings import WorkerSettings
from onceonly.runtime.worker import SIDE_BY_SIDE
from onceonly.stores.memory import MemoryStore


class KeyedStore(MemoryStore):
    """Every message is about an entity of its own."""

    def unit_key(self, message: Message) -> str:
        """Give each a unit."""
        return message.id


def keyed(house: House) -> House:
    """Give the house such a store."""
    store = KeyedStore(house.driver, "shop", clock=house.clock)
    house.ports = house.ports._replace(store=store)
    return house


async def test_batches_of_more_units_than_there_is_room_for_wait_for_no_turn_of_each_other() -> None:
    """The room of one batch's units is never held by those of another that wait for the first one's turn."""
    ids = [f"m{number:03}" for number in range(4 * SIDE_BY_SIDE)]
    house = await keyed(House()).open(*ids)
    async with asyncio.timeout(20):
        await house.work(WorkerSettings(batch_size=2 * SIDE_BY_SIDE, wait=0.05))
    assert sorted(house.noted()) == house.announced() == ids


async def test_no_batch_is_received_while_units_of_the_last_one_have_no_room() -> None:
    """They would only wait here, while other processes are idle. With the last unit's begin the next batch may come."""
    ids = [f"m{number:03}" for number in range(4 * SIDE_BY_SIDE)]
    going, started, stop = asyncio.Semaphore(0), asyncio.Semaphore(0), asyncio.Event()

    async def wait(_message: Message, _resources: Resources) -> None:
        started.release()
        await going.acquire()

    house = await keyed(House(ScriptedHandlers(wait))).open(*ids)
    worker = house.worker(WorkerSettings(batch_size=2 * SIDE_BY_SIDE, wait=0.05))
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
    await house.settled()
    stop.set()
    await running
    assert sorted(house.noted()) == ids
