"""Things in memory: names and data in an immutable world. They are what the model checker makes and unmakes."""

from msgspec import Struct

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WorldDriver, WorldPart
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitRefused


class ArtifactsWorld(Struct, frozen=True):
    """What was made and not unmade."""

    things: frozenset[Artifact] = frozenset()


def create(world: ArtifactsWorld, thing: Artifact) -> Step:
    """Make a thing; again is fine, but not another one under its name."""
    known = _find(world, thing.name)
    if known is not None and known.data != thing.data:
        return world, Raises(CommitRefused, f"{thing.name!r} was made before, with other data")
    return world if known else ArtifactsWorld(world.things | {thing}), None


def delete(world: ArtifactsWorld, name: str) -> Step:
    """Unmake a thing."""
    return ArtifactsWorld(frozenset(thing for thing in world.things if thing.name != name)), None


def read(world: ArtifactsWorld, name: str) -> Step:
    """Give a thing's data."""
    known = _find(world, name)
    return world, known.data if known else None


def names(world: ArtifactsWorld, prefix: str) -> Step:
    """List names."""
    return world, tuple(sorted(thing.name for thing in world.things if thing.name.startswith(prefix)))


def _find(world: ArtifactsWorld, name: str) -> Artifact | None:
    return next((thing for thing in world.things if thing.name == name), None)


class MemoryArtifacts:
    """One kind of thing, for all who share a driver."""

    def __init__(self, driver: WorldDriver, kind: str = "blob") -> None:
        """Use the part of the driver's world that holds this kind."""
        self.place = WorldPart(f"things of kind {kind}", ArtifactsWorld())
        self._driver = driver

    async def create(self, thing: Artifact) -> None:
        """Make a thing; see the port."""
        await self._driver.perform(PortOperation("thing-create", self.place, create, (thing,)))

    async def delete(self, name: str) -> None:
        """Unmake a thing; see the port."""
        await self._driver.perform(PortOperation("thing-delete", self.place, delete, (name,)))

    async def read(self, name: str) -> bytes | None:
        """Give a thing's data; see the port."""
        data: bytes | None = await self._driver.perform(PortOperation("thing-read", self.place, read, (name,)))
        return data

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        """List names, sorted; see the port."""
        listed: tuple[str, ...] = await self._driver.perform(PortOperation("thing-names", self.place, names, (prefix,)))
        return listed

    async def check(self) -> tuple[str, ...]:
        """Find nothing wrong."""
        return ()
