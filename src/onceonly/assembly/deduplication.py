"""What decides which messages may be handled, put together from the setting that names it."""

from contextlib import AsyncExitStack
from typing import cast

from onceonly.algorithms.admission import DedupStoreAdmission, TokenAdmission, TokensInStore
from onceonly.algorithms.admission import StoreAdmission as ClaimsDecide
from onceonly.assembly.documents import open_documents
from onceonly.assembly.naming import named
from onceonly.assembly.opened import OpenedAdmission
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.bookkeeping import DocumentCounter
from onceonly.documents.dedup import DocumentMarkStore, ExpiredMarks
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import SetupError
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Expires
from onceonly.runtime.environment import Environment
from onceonly.systems import Role


async def open_admission(stack: AsyncExitStack, settings: Settings, environment: Environment) -> OpenedAdmission:
    """Open whatever an endpoint's deduplication needs next to its store. Raises SetupError, RetryableError."""
    plan, clock = settings.plan, environment.clock
    if plan.marks is not None and plan.retention is not None:
        documents = await _open(stack, settings, role="deduplication", place=plan.marks, clock=clock)
        done = DocumentMarkStore(documents, retention=plan.retention, clock=clock)
        return OpenedAdmission(DedupStoreAdmission(settings.name, done), marks=_expiring(plan.marks, documents, done))
    if plan.tokens is None:
        return OpenedAdmission(ClaimsDecide())
    with named(settings, "tokens", plan.tokens):
        _refuse_own_lock(settings, plan.tokens)
    documents = await _open(stack, settings, role="tokens", place=plan.tokens, clock=clock)
    drops = drops_of(documents, settings.name)
    subscribers = plan.subscribers or {}
    if plan.tokens_in_store:
        return OpenedAdmission(TokensInStore(subscribers, environment.ids), drops=drops)
    tokens = DocumentTokens(documents, clock=clock)
    return OpenedAdmission(TokenAdmission(settings.name, tokens, subscribers, environment.ids), tokens, drops)


def _refuse_own_lock(settings: Settings, place: Location) -> None:
    """Refuse tokens in the file of a SQLite store by another name: they are prepared while the unit holds its write lock."""
    store = settings.places.store
    if settings.plan.tokens_in_store or not (store.is_sql and place.is_sql):
        return
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    if sql.are_one_file(store.setting, place.setting):
        raise SetupError(
            "it is the SQLite file of the store, under another name or with other options, so units "
            "could not write to it: leave url empty to store tokens in the store's own tables, or use "
            "another file"
        )


def drops_of(documents: Documents, endpoint: str) -> DocumentCounter:
    """Give the count of an endpoint's messages that came without a live token."""
    return DocumentCounter(documents, f"no-live-token/{endpoint}")


def _expiring(place: Location, documents: Documents, done: DocumentMarkStore) -> Expires | None:
    """Give what removes old marks, where the service does not do that on its own."""
    if not place.system.drops_expired:
        return ExpiredMarks(done)
    return cast("Expires", documents) if hasattr(documents, "remove_expired") else None


async def _open(stack: AsyncExitStack, settings: Settings, *, role: Role, place: Location, clock: Clock) -> Documents:
    with named(settings, role, place):
        place.require_driver(role)
        return await stack.enter_async_context(open_documents(place, clock=clock))
