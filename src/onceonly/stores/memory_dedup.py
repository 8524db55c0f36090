"""The memory dedup store: a set of keys in an immutable world. It is the one that the model checker explores."""

from collections.abc import Sequence

from msgspec import Struct

from onceonly.drivers.memory import Driver, Operation, Place, Step


class DedupWorld(Struct, frozen=True):
    """The keys that are remembered."""

    keys: frozenset[bytes] = frozenset()


PLACE = Place("dedup store", DedupWorld())


def add(world: DedupWorld, keys: tuple[bytes, ...]) -> Step:
    """Remember keys."""
    return DedupWorld(world.keys.union(keys)), None


def contains(world: DedupWorld, keys: tuple[bytes, ...]) -> Step:
    """Tell which of these are remembered."""
    return world, world.keys.intersection(keys)


def remove(world: DedupWorld, keys: tuple[bytes, ...]) -> Step:
    """Forget keys; also what happens, at any moment, to those whose time is over."""
    return DedupWorld(world.keys.difference(keys)), None


class MemoryDedupStore:
    """The dedup store of all endpoints that share a driver. It never forgets by itself."""

    place = PLACE

    def __init__(self, driver: Driver) -> None:
        """Use the part of the driver's world that holds the keys."""
        self._driver = driver

    async def add(self, keys: Sequence[bytes]) -> None:
        """Remember keys; see the port."""
        await self._driver.perform(Operation("dedup-add", PLACE, add, (tuple(keys),), many=True))

    async def contains(self, keys: Sequence[bytes]) -> frozenset[bytes]:
        """Tell which are remembered; see the port."""
        found: frozenset[bytes] = await self._driver.perform(Operation("dedup-contains", PLACE, contains, (tuple(keys),)))
        return found

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget keys; see the port."""
        await self._driver.perform(Operation("dedup-remove", PLACE, remove, (tuple(keys),), many=True))
