"""Units of one batch run side by side, and share their worker's room with those of other batches."""

import asyncio

from runtime_house import House

from onceonly.model.message import Message
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
