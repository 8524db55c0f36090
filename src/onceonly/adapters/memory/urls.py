"""Opens what is in memory: one world for each URL, for as long as anything in this process uses it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from onceonly.adapters.memory.artifacts import MemoryArtifacts
from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.transport import MemoryTransport
from onceonly.adapters.memory.world import Live
from onceonly.ports.environment import Clock, RandomSource
from onceonly.ports.transport import Topology, Transport
from onceonly.systems.shared import Shared


async def _forget(_world: Live) -> None:
    """Nothing is to be closed."""


_WORLDS: Shared[Live] = Shared(_forget)


def open_world(url: str) -> AbstractAsyncContextManager[Live]:
    async def make() -> Live:
        return Live()

    return _WORLDS.use(url, make)


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[MemoryDocuments]:  # noqa: ARG001 - see the protocol
    async with open_world(url) as world:
        yield MemoryDocuments(world)


@asynccontextmanager
async def open_artifacts(url: str) -> AsyncIterator[MemoryArtifacts]:
    async with open_world(url) as world:
        yield MemoryArtifacts(world)


async def create(url: str) -> None:
    """Do nothing: a world is there when it is opened."""


@asynccontextmanager
async def open_transport(url: str, endpoint: str, *, clock: Clock, random: RandomSource) -> AsyncIterator[Transport]:  # noqa: ARG001 - the same
    async with open_world(url) as world:
        yield MemoryTransport(world, endpoint, clock=clock)


@asynccontextmanager
async def temporary_transport(
    url: str,
    topologies: Sequence[Topology],  # noqa: ARG001 - the same
    *,
    clock: Clock,  # noqa: ARG001 - the same
    random: RandomSource,  # noqa: ARG001 - the same
) -> AsyncIterator[None]:
    """Keep a world open; it ends with its last user."""
    async with open_world(url):
        yield
