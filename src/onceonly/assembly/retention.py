"""Opens the retention of an endpoint where it is stored, for commands."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from onceonly.assembly.document_places import open_documents
from onceonly.assembly.stored_retention import stored_in
from onceonly.config.endpoint import Settings
from onceonly.documents.retention import DocumentRetentions
from onceonly.model.errors import SetupError
from onceonly.ports.retention import StoredRetentions
from onceonly.runtime.environment import LIVE, Environment
from onceonly.systems import Family


@asynccontextmanager
async def open_retention(settings: Settings, *, environment: Environment = LIVE) -> AsyncIterator[StoredRetentions]:
    """Open the retention of an endpoint. Raises SetupError for one that keeps no claims; RetryableError."""
    plan, store, clock = settings.plan, settings.places.store, environment.clock
    if plan.history is None and plan.marks is None:
        raise SetupError(
            f"endpoint {settings.name!r} keeps no claims for a time: deduplication is "
            f"{type(settings.deduplication).__name__}(), and only History, Shadow and DedupStore have a retention"
        )
    place = plan.marks or store
    if place.family is Family.MEMORY:
        raise SetupError(f"a retention cannot be stored in {place}: the process that stops forgets all claims")
    place.require_driver("deduplication" if plan.marks is not None else "store")
    if plan.marks is None and place.family is Family.SQL:
        from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

        async with sql.open_retention(settings.store, settings.name, clock=clock) as retentions:
            yield retentions
        return
    async with open_documents(place, clock=clock) as documents:
        yield DocumentRetentions(stored_in(documents, settings, clock=clock), clock=clock)
