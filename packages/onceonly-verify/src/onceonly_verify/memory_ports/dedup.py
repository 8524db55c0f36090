"""The memory dedup store: a set of keys in an immutable world. It is the one that the model checker explores."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from onceonly.adapters.memory.world import PortOperation, Step, WorldDriver, WorldPart
from onceonly.documents.retention import undecidable_among
from onceonly.model.message import Message
from onceonly.model.retention import Retention
from onceonly.ports.admission import NO_FINGERPRINTS, NO_INSTANTS
from onceonly.ports.environment import Clock
from onceonly.ports.store import UndecidableMessage


class DedupWorld(Struct, frozen=True):
    """The keys that are remembered, and the fingerprints of those that have one."""

    keys: frozenset[bytes] = frozenset()
    fingerprints: frozenset[tuple[bytes, bytes]] = frozenset()


PLACE = WorldPart("dedup store", DedupWorld())


def add(world: DedupWorld, keys: tuple[bytes, ...], fingerprints: tuple[tuple[bytes, bytes], ...] = ()) -> Step:
    """Remember keys; the first fingerprint of each stays."""
    named = {key for key, _ in world.fingerprints}
    first = frozenset((key, body) for key, body in fingerprints if key in keys and key not in named)
    return DedupWorld(world.keys.union(keys), world.fingerprints | first), None


def contains(world: DedupWorld, keys: tuple[bytes, ...]) -> Step:
    """Return which of these are remembered, with their fingerprints."""
    known = dict(world.fingerprints)
    return world, frozenset((key, known.get(key, b"")) for key in keys if key in world.keys)


def remove(world: DedupWorld, keys: tuple[bytes, ...]) -> Step:
    """Forget keys; also what happens, at any moment, to those whose time is over."""
    left = frozenset(each for each in world.fingerprints if each[0] not in keys)
    return DedupWorld(world.keys.difference(keys), left), None


class MemoryMarkStore:
    """The dedup store of all endpoints that share a driver. It never forgets on its own.

    With a retention it refuses what a store would have forgotten by then.
    """

    place = PLACE

    def __init__(self, driver: WorldDriver, *, retention: Retention | None = None, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that holds the keys."""
        self._driver = driver
        self._horizon = (retention, clock) if retention and clock else None

    async def add(
        self,
        keys: Sequence[bytes],
        fingerprints: Mapping[bytes, bytes] = NO_FINGERPRINTS,
        instants: Mapping[bytes, int] = NO_INSTANTS,
    ) -> None:
        arguments = (tuple(keys), tuple(fingerprints.items()))
        await self._driver.perform(PortOperation("dedup-add", PLACE, add, arguments, many=True))

    async def contains(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        found: frozenset[tuple[bytes, bytes]]
        found = await self._driver.perform(PortOperation("dedup-contains", PLACE, contains, (tuple(keys),)))
        return dict(found)

    async def undecidable(self, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        if self._horizon is None:
            return ()
        retention, clock = self._horizon
        return undecidable_among(messages, retention, clock.now())

    async def remove(self, keys: Sequence[bytes]) -> None:
        await self._driver.perform(PortOperation("dedup-remove", PLACE, remove, (tuple(keys),), many=True))
