"""Opens stores in memory: the store of the memory adapter itself, or a document store on documents in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.remote_requests import MemoryRemoteRequests
from onceonly.adapters.memory.run_markers import MemoryRunMarkers
from onceonly.adapters.memory.store import MemoryDeadLetters, MemoryStore
from onceonly.adapters.memory.transactions import MemoryAttempts, MemoryTransactions
from onceonly.adapters.memory.urls import open_world
from onceonly.assembly.documents import parts_on
from onceonly.assembly.parts import StoreParts, controls_of
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.config.store_plan import StorePlan
from onceonly.model.errors import SetupError
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.environment import Clock


@asynccontextmanager
async def open_store(
    settings: Settings,
    plan: StorePlan,
    *,
    clock: Clock,
    creates: bool = True,  # noqa: ARG001 - a world is created when it is opened
) -> AsyncIterator[StoreParts]:
    """Open a store, and what is next to it. Raises SetupError for what it cannot do."""
    async with open_world(str(settings.store)) as world:
        letters, name = MemoryDeadLetters(world, clock=clock), settings.name
        if plan.on_documents:
            parts = parts_on(MemoryDocuments(world), settings, plan, letters=letters, clock=clock, has_list=True)
        else:
            _check(settings)
            store = MemoryStore(world, name, clock=clock)
            transactions = MemoryTransactions(world, name, clock=clock, has_controls=plan.has_controls)
            controls = controls_of(settings, MemoryAttempts(world), clock) if plan.has_controls else None
            parts = StoreParts(store, store, store, letters, transactions=transactions, controls=controls)

        async def open_remote_requests() -> MemoryRemoteRequests:
            return MemoryRemoteRequests(world, name, clock=clock)

        yield parts._replace(
            run_markers=lambda lasts: MemoryRunMarkers(world, name, lasts=lasts, clock=clock),
            open_remote_requests=open_remote_requests if plan.has_remote_requests else None,
        )


@asynccontextmanager
async def open_dead_letters(place: Location, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    async with open_world(place.setting) as world:
        yield MemoryDeadLetters(world, clock=clock)


def _check(settings: Settings) -> None:
    if settings.plan.history is None:
        raise SetupError("deduplication=Off() needs a SQL store: the memory store always stores its claims")
    if settings.isolation is not None:
        raise SetupError("isolation= needs a SQL store: units of the memory store never overlap")
