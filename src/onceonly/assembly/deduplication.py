"""What decides which messages may be handled, put together from the setting that names it; tokens for messages from outside."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from onceonly.algorithms.admission import StoreAdmission as ClaimsDecide
from onceonly.assembly.document_places import open_documents
from onceonly.assembly.parts import AdmissionParts
from onceonly.assembly.stored_retention import check_retention
from onceonly.assembly.stores import errors_name_setting
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.retention import StoredRetention
from onceonly.model.errors import SetupError
from onceonly.model.identity import hash_of
from onceonly.model.message import Message
from onceonly.model.retention import in_milliseconds
from onceonly.model.token import TOKEN, Token
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.runtime.environment import LIVE, Environment
from onceonly.systems import Family, Role


async def open_admission(stack: AsyncExitStack, settings: Settings, environment: Environment) -> AdmissionParts:
    """Open whatever an endpoint's deduplication needs next to its store. Raises SetupError, RetryableError."""
    plan, clock = settings.plan, environment.clock
    if plan.marks is not None and plan.retention is not None:
        from onceonly.assembly import document_tokens  # noqa: PLC0415 - imports what few endpoints have

        documents = await _open_documents(stack, settings, role="deduplication", place=plan.marks, clock=clock)
        stored = StoredRetention(documents, settings.name, clock=clock, configured=in_milliseconds(plan.retention))
        await check_retention(settings, stored)
        return document_tokens.admission_by_marks(documents, settings.name, plan, clock=clock, stored=stored)
    if plan.tokens is None:
        return AdmissionParts(ClaimsDecide())
    from onceonly.assembly import document_tokens  # noqa: PLC0415 - the same

    with errors_name_setting(settings, "tokens", plan.tokens):
        _refuse_own_lock(settings, plan.tokens)
    documents = await _open_documents(stack, settings, role="tokens", place=plan.tokens, clock=clock)
    return document_tokens.admission_by_tokens(documents, settings, environment)


def _refuse_own_lock(settings: Settings, place: Location) -> None:
    """Refuse tokens in the file of a SQLite store by another name: they are prepared while the unit holds its write lock."""
    store = settings.places.store
    if settings.plan.tokens_in_store or store.family is not Family.SQL or place.family is not Family.SQL:
        return
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    if sql.are_one_file(store.setting, place.setting):
        raise SetupError(
            "it is the SQLite file of the store, under another name or with other options, so units "
            "could not write to it: leave url empty to store tokens in the store's own tables, or use "
            "another file"
        )


async def _open_documents(stack: AsyncExitStack, settings: Settings, *, role: Role, place: Location, clock: Clock) -> Documents:
    with errors_name_setting(settings, role, place):
        place.require_driver(role)
        return await stack.enter_async_context(open_documents(place, clock=clock))


class TokenIssuer(Protocol):
    """A place for tokens, as far as senders from outside need it."""

    async def add(self, tokens: list[Token]) -> None:
        """Make these live at once; harmless for those that are. Raises CommitFailed, OutcomeUnknown."""

    async def add_once(self, tokens: list[Token]) -> None:
        """Make those live that were not made so by this method before, within the retention. See `with_token` for their ids.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def remove(self, tokens: list[Token]) -> None:
        """Remove the tokens of messages that must not be handled. Missing ones are ignored.

        Raises CommitFailed, OutcomeUnknown.
        """


@asynccontextmanager
async def open_token_issuer(settings: Settings, *, environment: Environment = LIVE) -> AsyncIterator[TokenIssuer]:
    """Open the place where an endpoint looks for its tokens. Raises SetupError, RetryableError."""
    place, clock = settings.plan.tokens, environment.clock
    if place is None:
        raise SetupError(f"endpoint {settings.name!r} does not use tokens")
    if settings.plan.tokens_in_store:
        from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

        place.require_driver("store")
        async with sql.open_tokens(place, clock=clock) as tokens:
            yield tokens
        return
    place.require_driver("tokens")
    from onceonly.assembly import document_tokens  # noqa: PLC0415 - imports what few endpoints have

    async with open_documents(place, clock=clock) as documents:
        yield document_tokens.DocumentIssuer(documents, clock=clock)


def with_token(message: Message) -> Message:
    """Return a message from outside with its token, the same for every copy: of copies that wait together one is handled.

    `TokenIssuer.add_once` remembers it, so that a copy sent later is dropped.
    """
    if message.token:
        return message
    id_ = hash_of(b"outside", message.source.encode(), message.id.encode()).hex()
    return replace(message, extensions=(*message.extensions, (TOKEN, id_)))


async def count_live(store: Location, *, clock: Clock) -> int:
    """Count the live tokens in a SQL store's own database, those of all endpoints. Raises SetupError, RetryableError."""
    from onceonly.assembly import sql  # noqa: PLC0415 - imports SQLAlchemy and a driver, so only when a URL names them

    async with sql.open_tokens(store, clock=clock) as tokens:
        return await tokens.count()
