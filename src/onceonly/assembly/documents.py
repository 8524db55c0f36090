"""Documents, put together: opened by their URL, looked at before they are used, and shared within a process."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from onceonly.assembly.parts import StoreParts, controls_of
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.config.store_plan import StorePlan
from onceonly.documents.bookkeeping import DocumentEventCounts, DocumentJournals, DocumentRunMarkers
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.documents.pending import DocumentPending
from onceonly.documents.register import DocumentRegister
from onceonly.documents.store import DocumentLookup, DocumentStore
from onceonly.documents.transactions import DocumentTransactions
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.documents import Documents, ListsPending
from onceonly.ports.environment import Clock
from onceonly.systems import DocumentService, Family
from onceonly.systems.shared import Shared

_log = EventLogger(logging.getLogger("onceonly.documents"))
TOLD: set[tuple[str, str]] = set()
"""What was logged about places. A process that starts others hands it to them, so that it is said once for all."""


class _Place(NamedTuple):
    documents: Documents
    stack: AsyncExitStack

    async def close(self) -> None:
        await self.stack.aclose()


_PLACES: Shared[_Place] = Shared(_Place.close)


@asynccontextmanager
async def open_documents(place: Location | str, *, clock: Clock) -> AsyncIterator[Documents]:
    """Return the documents that a setting names: of a service, of a SQL database, or in memory.

    Raises SetupError where the place is missing or does not keep its promises, and RetryableError when it is away.
    """
    found = locate(place, "store")
    if found.family is Family.SQL:
        from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

        async with sql.open_documents(found.setting, clock=clock) as documents:
            tell(found, await documents.check())
            yield documents
        return

    async def make() -> _Place:
        async with AsyncExitStack() as stack:
            documents = await stack.enter_async_context(_service(found).open_documents(found.setting, clock=clock))
            tell(found, await documents.check())
            return _Place(documents, stack.pop_all())

    async with _PLACES.use((found.setting, id(clock)), make) as opened:
        yield opened.documents


async def create(place: Location | str) -> None:
    """Make the place that a service needs for its documents; harmless when it is there.

    Raises SetupError, RetryableError, CommitFailed.
    """
    found = locate(place, "store")
    await _service(found).create(found.setting)


@asynccontextmanager
async def open_store(
    settings: Settings,
    plan: StorePlan,
    *,
    clock: Clock,
    creates: bool = True,  # noqa: ARG001 - documents are created as they are written
) -> AsyncIterator[StoreParts]:
    """Open a store on documents, and what is next to it. Raises SetupError for what it cannot do."""
    async with open_documents(settings.places.store, clock=clock) as documents:
        letters = DocumentDeadLetters(documents, clock=clock)
        has_list = plan.lists_pending and await _has_list(documents, settings.places.store)
        yield parts_on(documents, settings, plan, letters=letters, clock=clock, has_list=has_list)._replace(
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


def parts_on(
    documents: Documents, settings: Settings, plan: StorePlan, *, letters: DeadLetters, clock: Clock, has_list: bool
) -> StoreParts:
    """Return the parts of an endpoint's store on documents. Raises SetupError for what it cannot do.

    What is done stays known in it where its history is the rule, and nowhere else. With `has_list` the documents list those
    with unsent messages, so a relay finds its records.
    """
    if settings.isolation is not None:
        raise SetupError(f"isolation= needs a SQL store; in {settings.places.store} each unit is one document. Remove it")
    store = DocumentStore(documents, settings.name, clock=clock, history=settings.plan.history)
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


def tell(place: Location, warnings: Sequence[str]) -> None:
    """Log a remark about a place, once in this process and those that it starts."""
    for warning in warnings:
        if (str(place), warning) not in TOLD:
            TOLD.add((str(place), warning))
            _log.warning("document store warning", extra={"place": str(place), "reason": warning})


def _service(place: Location) -> DocumentService:
    if place.system.documents is None:
        raise SetupError(f"{place} does not store documents")
    return place.system.documents()
