"""Opens stores on documents: an endpoint's store, and what is next to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

from onceonly.assembly.document_places import create, open_documents, tell
from onceonly.assembly.parts import StoreParts, controls_of
from onceonly.assembly.stored_retention import check_retention, stored_in
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.config.store_plan import StorePlan
from onceonly.documents.bookkeeping import DocumentEventCounts, DocumentJournals, DocumentRunMarkers
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.documents.pending import DocumentPending
from onceonly.documents.register import DocumentRegister
from onceonly.documents.retention import StoredRetention
from onceonly.documents.store import DocumentLookup, DocumentStore
from onceonly.documents.transactions import DocumentTransactions
from onceonly.model.errors import SetupError
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.documents import Documents, ListsPending, SavesTogether
from onceonly.ports.environment import Clock

__all__ = ["create", "open_dead_letters", "open_documents", "open_store", "parts_on"]


@asynccontextmanager
async def open_store(
    settings: Settings,
    plan: StorePlan,
    *,
    clock: Clock,
    creates: bool = True,
) -> AsyncIterator[StoreParts]:
    """Open a store on documents, and what is next to it. Raises SetupError for what it cannot do."""
    async with open_documents(settings.places.store, clock=clock) as documents:
        letters = DocumentDeadLetters(documents, clock=clock)
        retention = None if settings.plan.history is None else stored_in(documents, settings, clock=clock)
        if creates and retention is not None:
            await check_retention(settings, retention)
        has_list = plan.lists_pending and settings.plan.records and await _has_list(documents, settings.places.store)
        not_together = await documents.why_not_together() if isinstance(documents, SavesTogether) else ""
        parts = parts_on(
            documents,
            settings,
            plan,
            letters=letters,
            clock=clock,
            has_list=has_list,
            retention=retention,
            not_together=not_together,
        )
        yield parts._replace(
            run_markers=partial(DocumentRunMarkers, documents, settings.name, clock),
            unsubscribed=DocumentEventCounts(documents, settings.name),
        )


@asynccontextmanager
async def open_dead_letters(place: Location, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    async with open_documents(place, clock=clock) as documents:
        yield DocumentDeadLetters(documents, clock=clock)


async def _has_list(documents: Documents, place: Location) -> bool:
    """Return whether documents list what is pending. Logs why not, where they could."""
    if not isinstance(documents, ListsPending):
        return False
    reason = await documents.why_unlisted()
    tell(place, (f"no relay can find unsent messages here: {reason}",) if reason else ())
    return not reason


def parts_on(  # noqa: PLR0913 - what was opened and found, by name
    documents: Documents,
    settings: Settings,
    plan: StorePlan,
    *,
    letters: DeadLetters,
    clock: Clock,
    has_list: bool,
    retention: StoredRetention | None = None,
    not_together: str = "",
) -> StoreParts:
    """Return the parts of an endpoint's store on documents. Raises SetupError for what it cannot do.

    What is done stays known in it where its history is the rule, and nowhere else. With `has_list` the documents list those
    with unsent messages, so a relay finds its records. `not_together` is why handlers cannot write the application's documents.
    """
    if settings.isolation is not None:
        raise SetupError(f"isolation= needs a SQL store; in {settings.places.store} each unit is one document. Remove it")
    store = DocumentStore(
        documents,
        settings.name,
        clock=clock,
        history=settings.plan.history,
        retention=retention,
        not_together=not_together,
    )
    parts = StoreParts(
        store,
        store,
        DocumentPending(store, documents) if has_list and isinstance(documents, ListsPending) else None,
        letters,
        DocumentRegister(store),
        journals=DocumentJournals(documents, settings.name),
        lookup=DocumentLookup(store),
    )
    if not plan.has_transactions:
        return parts
    transactions = DocumentTransactions(store, retention=settings.chosen_control.retention // timedelta(milliseconds=1))
    return parts._replace(transactions=transactions, controls=controls_of(settings, transactions, clock))
