"""Opens places for blobs by their URL, and checks them before they are used."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.assembly.documents import tell
from onceonly.config.urls import place_system, shown
from onceonly.model.errors import SetupError
from onceonly.ports.effects import Things
from onceonly.systems import ArtifactService


@asynccontextmanager
async def open_blobs(url: str) -> AsyncIterator[Things]:
    """Open the place for blobs that a URL names. Raises SetupError when it is missing, TryAgain when it is away."""
    async with _service(url).open_artifacts(url) as things:
        tell(url, await things.check())
        yield things


async def create(url: str) -> None:
    """Make the place that a URL names where it is missing. Raises SetupError, TryAgain, Failed."""
    await _service(url).create(url)


def _service(url: str) -> ArtifactService:
    system = place_system(url)
    if system is None or system.artifacts is None:
        raise SetupError(f"{shown(url)} is not a place for blobs")
    return system.artifacts()
