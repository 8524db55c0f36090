"""Documents, put together: opened by their URL, looked at before they are used, and shared within a process."""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from onceonly.assembly.opened import OpenedStore
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location, locate
from onceonly.documents.bookkeeping import DocumentEventCounts, DocumentJournals, DocumentStarts
from onceonly.documents.dead_letters import DocumentDeadLetters
from onceonly.documents.lookup import DocumentLookup
from onceonly.documents.register import DocumentRegister
from onceonly.documents.store import DocumentStore
from onceonly.documents.transactions import DocumentTransactions
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.ports.dead_letters import DeadLetters
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.systems import DocumentService
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
    """Give the documents that a setting names: of a service, of a SQL database, or in memory.

    Raises SetupError where the place is missing or does not keep its promises, and RetryableError when it is away.
    """
    found = locate(place, "store")
    if found.is_sql:
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
async def open_store(settings: Settings, *, clock: Clock) -> AsyncIterator[OpenedStore]:
    """Give a store on documents, the dead letters and the register next to it. Raises SetupError for what it cannot do."""
    async with open_documents(settings.places.store, clock=clock) as documents:
        store = store_on(documents, settings, clock)
        journals = DocumentJournals(documents, settings.name)
        letters = DocumentDeadLetters(documents, clock=clock)
        starts = partial(DocumentStarts, documents, settings.name, clock)
        yield OpenedStore(
            store,
            store,
            None,
            letters,
            DocumentRegister(store),
            journals=journals,
            starts=starts,
            unsubscribed=DocumentEventCounts(documents, settings.name),
            lookup=DocumentLookup(store),
        )


@asynccontextmanager
async def open_transactions_on_documents(settings: Settings, *, clock: Clock) -> AsyncIterator[DocumentTransactions]:
    """Give the transactions of a store on documents."""
    async with open_documents(settings.places.store, clock=clock) as documents:
        yield transactions_on(documents, settings, clock)


@asynccontextmanager
async def open_dead_letters(place: Location, *, clock: Clock) -> AsyncIterator[DeadLetters]:
    """Give the dead letters of a place."""
    async with open_documents(place, clock=clock) as documents:
        yield DocumentDeadLetters(documents, clock=clock)


def store_on(documents: Documents, settings: Settings, clock: Clock) -> DocumentStore:
    """Make an endpoint's store. What is done stays known in it where its history is the rule, and nowhere else."""
    if settings.isolation is not None:
        raise SetupError(f"isolation= needs a SQL store; in {settings.places.store} each unit is one document. Remove it")
    return DocumentStore(documents, settings.name, clock=clock, history=settings.plan.history)


def transactions_on(documents: Documents, settings: Settings, clock: Clock) -> DocumentTransactions:
    """Make an endpoint's transactions."""
    retention = settings.control.retention // timedelta(milliseconds=1)
    return DocumentTransactions(store_on(documents, settings, clock), retention=retention)


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
