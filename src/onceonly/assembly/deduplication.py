"""What decides which messages may be handled, put together from the setting that names it."""

from contextlib import AsyncExitStack
from typing import cast

from onceonly.algorithms.admission import Deduplicated, Tokenized, TokensInStore
from onceonly.algorithms.admission import History as ClaimsDecide
from onceonly.assembly.documents import open_documents
from onceonly.assembly.naming import named
from onceonly.assembly.opened import OpenedAdmission
from onceonly.config.deduplication import DedupStore, Tokens
from onceonly.config.endpoint import Settings
from onceonly.config.urls import has_no_tables, place_system, require
from onceonly.documents.counter import DocumentCounter
from onceonly.documents.dedup import DocumentDedupStore, ExpiredMarks
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import SetupError
from onceonly.ports.documents import Documents
from onceonly.ports.upkeep import Expires
from onceonly.runtime.environment import Surroundings
from onceonly.systems import Role


async def open_admission(stack: AsyncExitStack, settings: Settings, surroundings: Surroundings) -> OpenedAdmission:
    """Open whatever an endpoint's deduplication needs beside its store. Raises SetupError, TryAgain."""
    chosen, clock = settings.deduplication, surroundings.clock
    if isinstance(chosen, DedupStore):
        documents = await _open(stack, settings, role="deduplication", setting=chosen.url, surroundings=surroundings)
        done = DocumentDedupStore(documents, retention=chosen.retention, clock=clock)
        return OpenedAdmission(Deduplicated(settings.name, done), marks=_expiring(chosen.url, documents, done))
    if not isinstance(chosen, Tokens):
        return OpenedAdmission(ClaimsDecide())
    place = tokens_place(settings)
    with named(settings, "tokens", place):
        _refuse_own_lock(settings)
    documents = await _open(stack, settings, role="tokens", setting=place, surroundings=surroundings)
    drops = drops_of(documents, settings.name)
    if are_in_store(settings):
        return OpenedAdmission(TokensInStore(chosen.subscribers, surroundings.ids), drops=drops)
    tokens = DocumentTokens(documents, clock=clock)
    admission = Tokenized(settings.name, tokens, chosen.subscribers, surroundings.ids)
    return OpenedAdmission(admission, tokens, drops)


def are_in_store(settings: Settings) -> bool:
    """Tell whether an endpoint's tokens are in its own SQL database, where one commit writes both."""
    chosen = settings.deduplication
    if not isinstance(chosen, Tokens):
        return False
    is_sql = not (isinstance(settings.store, str) and has_no_tables(settings.store))
    return is_sql and (not chosen.url or chosen.url == settings.store)


def _refuse_own_lock(settings: Settings) -> None:
    """Refuse tokens in the file of a SQLite store by another name: they are prepared while the unit holds its write lock."""
    place = tokens_place(settings)
    if are_in_store(settings) or any(isinstance(each, str) and has_no_tables(each) for each in (settings.store, place)):
        return
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    if sql.are_one_file(settings.store, place):
        raise SetupError(
            "it is the file of the store, by another name or with other options, so no unit could write to it: leave url "
            "empty, for tokens in the store's own tables, or name another file"
        )


def tokens_place(settings: Settings) -> object:
    """Give what names the place of an endpoint's tokens, and of the count of what came without one."""
    chosen = settings.deduplication
    return chosen.url if isinstance(chosen, Tokens) and chosen.url else settings.store


def drops_of(documents: Documents, endpoint: str) -> DocumentCounter:
    """Give the count of an endpoint's messages that came without a live token."""
    return DocumentCounter(documents, f"no-live-token/{endpoint}")


def _expiring(url: str, documents: Documents, done: DocumentDedupStore) -> Expires | None:
    """Give what removes old marks, where the service does not do that by itself."""
    system = place_system(url)
    if system is not None and not system.drops_expired:
        return ExpiredMarks(done)
    return cast("Expires", documents) if hasattr(documents, "remove_expired") else None


async def _open(
    stack: AsyncExitStack, settings: Settings, *, role: Role, setting: object, surroundings: Surroundings
) -> Documents:
    with named(settings, role, setting):
        if setting is not settings.store:
            require(setting, role)
        return await stack.enter_async_context(open_documents(setting, clock=surroundings.clock))
