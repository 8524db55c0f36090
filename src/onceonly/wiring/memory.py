"""The memory adapters, put together: one world for each name, for as long as anybody in this process uses it."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from onceonly.drivers.memory import Live
from onceonly.model.errors import SetupError
from onceonly.model.settings import History
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.starts import Starts
from onceonly.ports.surroundings import Clock
from onceonly.ports.transport import Topology, Transport
from onceonly.stores.document_journal import DocumentJournals
from onceonly.stores.document_register import DocumentRegister
from onceonly.stores.document_transactions import DocumentTransactions
from onceonly.stores.memory import MemoryDeadLetters, MemoryStore
from onceonly.stores.memory_calls import MemoryCalls
from onceonly.stores.memory_documents import MemoryDocuments
from onceonly.stores.memory_starts import MemoryStarts
from onceonly.stores.memory_transactions import MemoryTransactions
from onceonly.transports.memory import MemoryTransport
from onceonly.wiring.documents import store_on, transactions_on
from onceonly.wiring.opened import OpenedStore
from onceonly.wiring.settings import Settings
from onceonly.wiring.shared import Shared


async def _forget(_world: Live) -> None:
    """Nothing is to be closed."""


_WORLDS: Shared[Live] = Shared(_forget)


def open_world(url: Any) -> AbstractAsyncContextManager[Live]:
    """Give the world that `memory://name` names."""

    async def make() -> Live:
        return Live()

    return _WORLDS.use(url, make)


@asynccontextmanager
async def open_store(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give a store and the dead letters beside it."""
    if not isinstance(settings.deduplication, History):
        raise SetupError("deduplication=Off() needs a SQL store; the memory store always keeps its claims")
    if settings.isolation is not None:
        raise SetupError("isolation= needs a SQL store; units of the memory store never overlap")
    async with open_world(settings.store) as world:
        store, letters = MemoryStore(world, settings.name, clock=clock), MemoryDeadLetters(world, clock=clock)
        yield OpenedStore(store, letters, starts=_starts(world, settings, clock))


@asynccontextmanager
async def open_store_on_documents(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give a store on documents in memory, and the same dead letters beside it."""
    async with open_world(settings.store) as world:
        documents = MemoryDocuments(world)
        store, journals = store_on(documents, settings, clock), DocumentJournals(documents, settings.name)
        letters, starts = MemoryDeadLetters(world, clock=clock), _starts(world, settings, clock)
        yield OpenedStore(store, letters, DocumentRegister(store), journals=journals, starts=starts)


def _starts(world: Live, settings: Settings, clock: Clock) -> Callable[[float], Starts]:
    return lambda lasts: MemoryStarts(world, settings.name, lasts=lasts, clock=clock)


@asynccontextmanager
async def open_documents(setting: Any, *, clock: Clock) -> AsyncIterator[MemoryDocuments]:  # noqa: ARG001 - as all adapters
    """Give the documents of a world."""
    async with open_world(setting) as world:
        yield MemoryDocuments(world)


@asynccontextmanager
async def open_transactions(settings: Settings, *, clock: Clock) -> AsyncIterator[MemoryTransactions]:
    """Give the transactions of a store."""
    async with open_world(str(settings.store)) as world:
        yield MemoryTransactions(world, settings.name, clock=clock)


@asynccontextmanager
async def open_transactions_on_documents(settings: Settings, *, clock: Clock) -> AsyncIterator[DocumentTransactions]:
    """Give the transactions of a store on documents in memory."""
    async with open_world(str(settings.store)) as world:
        yield transactions_on(MemoryDocuments(world), settings, clock)


@asynccontextmanager
async def open_calls(settings: Settings, *, clock: Clock) -> AsyncIterator[MemoryCalls]:
    """Give what an endpoint was asked by others."""
    async with open_world(str(settings.store)) as world:
        yield MemoryCalls(world, settings.name, clock=clock)


@asynccontextmanager
async def open_dead_letters(setting: Any, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    """Give the dead letters of a world."""
    async with open_world(setting) as world:
        yield MemoryDeadLetters(world, clock=clock)


@asynccontextmanager
async def open_transport(setting: Any, endpoint: str, *, clock: Clock) -> AsyncIterator[Transport]:
    """Give the queue of one endpoint."""
    async with open_world(setting) as world:
        yield MemoryTransport(world, endpoint, clock=clock)


@asynccontextmanager
async def temporary_transport(
    setting: Any,
    topologies: Sequence[Topology],  # noqa: ARG001 - as all adapters
    *,
    clock: Clock,  # noqa: ARG001 - the same
) -> AsyncIterator[None]:
    """Keep a world; it ends with whoever uses it last."""
    async with open_world(setting):
        yield
