"""Opens places for blobs by their URL, and checks them before they are used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.assembly.documents import tell
from onceonly.config.location import Location, locate
from onceonly.ports.effects import ArtifactStore
from onceonly.systems import ArtifactService


@asynccontextmanager
async def open_blobs(place: Location | str) -> AsyncIterator[ArtifactStore]:
    """Open a place for blobs. Raises SetupError when it is missing, RetryableError when it is away."""
    found = locate(place, "blobs")
    async with _service(found).open_artifacts(found.setting) as artifacts:
        tell(found, await artifacts.check())
        yield artifacts


async def create(place: Location | str) -> None:
    """Make the place for blobs where it is missing. Raises SetupError, RetryableError, CommitFailed."""
    found = locate(place, "blobs")
    await _service(found).create(found.setting)


def _service(place: Location) -> ArtifactService:
    place.require_driver("blobs")
    assert place.system.artifacts is not None  # noqa: S101 - it serves the role
    return place.system.artifacts()
