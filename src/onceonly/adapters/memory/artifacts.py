"""Artifacts in memory: names and data in an immutable world. They are what the model checker makes and unmakes."""

from msgspec import Struct

from onceonly.adapters.memory.world import PortOperation, Raises, Step, WorldDriver, WorldPart
from onceonly.model.artifact import Artifact
from onceonly.model.errors import CommitRefused


class ArtifactsWorld(Struct, frozen=True):
    """What was made and not unmade."""

    artifacts: frozenset[Artifact] = frozenset()


def create(world: ArtifactsWorld, artifact: Artifact) -> Step:
    """Make an artifact; again is fine, but not another one under its name."""
    known = _find(world, artifact.name)
    if known is not None and known.data != artifact.data:
        return world, Raises(CommitRefused, f"{artifact.name!r} was created before with other data")
    return world if known else ArtifactsWorld(world.artifacts | {artifact}), None


def delete(world: ArtifactsWorld, name: str) -> Step:
    return ArtifactsWorld(frozenset(artifact for artifact in world.artifacts if artifact.name != name)), None


def read(world: ArtifactsWorld, name: str) -> Step:
    known = _find(world, name)
    return world, known.data if known else None


def names(world: ArtifactsWorld, prefix: str) -> Step:
    return world, tuple(sorted(artifact.name for artifact in world.artifacts if artifact.name.startswith(prefix)))


def _find(world: ArtifactsWorld, name: str) -> Artifact | None:
    return next((artifact for artifact in world.artifacts if artifact.name == name), None)


class MemoryArtifacts:
    """One kind of artifact, for all who share a driver."""

    def __init__(self, driver: WorldDriver, kind: str = "blob") -> None:
        """Use the part of the driver's world that holds this kind."""
        self.place = WorldPart(f"artifacts of kind {kind}", ArtifactsWorld())
        self._driver = driver

    async def create(self, artifact: Artifact) -> None:
        await self._driver.perform(PortOperation("artifact-create", self.place, create, (artifact,)))

    async def delete(self, name: str) -> None:
        await self._driver.perform(PortOperation("artifact-delete", self.place, delete, (name,)))

    async def read(self, name: str) -> bytes | None:
        data: bytes | None = await self._driver.perform(PortOperation("artifact-read", self.place, read, (name,)))
        return data

    async def names(self, prefix: str = "") -> tuple[str, ...]:
        listed: tuple[str, ...] = await self._driver.perform(PortOperation("artifact-names", self.place, names, (prefix,)))
        return listed

    async def check(self) -> tuple[str, ...]:
        return ()
