"""Opens stores in memory: the store of the memory adapter itself, or a document store on documents in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.opening import open_world
from onceonly.adapters.memory.remote_requests import MemoryRemoteRequests
from onceonly.adapters.memory.starts import MemoryStarts
from onceonly.adapters.memory.store import MemoryDeadLetters, MemoryStore
from onceonly.adapters.memory.transactions import MemoryTransactions
from onceonly.adapters.memory.world import Live
from onceonly.assembly.documents import store_on, transactions_on
from onceonly.assembly.opened import OpenedStore
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.bookkeeping import DocumentJournals
from onceonly.documents.lookup import DocumentLookup
from onceonly.documents.register import DocumentRegister
from onceonly.documents.transactions import DocumentTransactions
from onceonly.model.errors import SetupError
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.environment import Clock
from onceonly.ports.starts import Starts


@asynccontextmanager
async def open_store(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give a store and the dead letters next to it."""
    if settings.plan.history is None:
        raise SetupError("deduplication=Off() needs a SQL store: the memory store always stores its claims")
    if settings.isolation is not None:
        raise SetupError("isolation= needs a SQL store: units of the memory store never overlap")
    async with open_world(str(settings.store)) as world:
        store, letters = MemoryStore(world, settings.name, clock=clock), MemoryDeadLetters(world, clock=clock)
        yield OpenedStore(store, store, store, letters, starts=_starts(world, settings, clock))


@asynccontextmanager
async def open_store_on_documents(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give a store on documents in memory, and the same dead letters next to it."""
    async with open_world(str(settings.store)) as world:
        documents = MemoryDocuments(world)
        store, journals = store_on(documents, settings, clock), DocumentJournals(documents, settings.name)
        letters, starts = MemoryDeadLetters(world, clock=clock), _starts(world, settings, clock)
        register, lookup = DocumentRegister(store), DocumentLookup(store)
        yield OpenedStore(store, store, None, letters, register, journals=journals, starts=starts, lookup=lookup)


def _starts(world: Live, settings: Settings, clock: Clock) -> Callable[[float], Starts]:
    return lambda lasts: MemoryStarts(world, settings.name, lasts=lasts, clock=clock)


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
async def open_remote_requests(settings: Settings, *, clock: Clock) -> AsyncIterator[MemoryRemoteRequests]:
    """Give what an endpoint was asked by others."""
    async with open_world(str(settings.store)) as world:
        yield MemoryRemoteRequests(world, settings.name, clock=clock)


@asynccontextmanager
async def open_dead_letters(place: Location, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    """Give the dead letters of a world."""
    async with open_world(place.setting) as world:
        yield MemoryDeadLetters(world, clock=clock)
