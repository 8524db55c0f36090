"""What decides which messages may be handled, put together from the setting that names it; tokens for messages from outside."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Protocol, cast

from msgspec.structs import replace

from onceonly.algorithms.admission import DedupStoreAdmission, TokenAdmission, TokensInStore
from onceonly.algorithms.admission import StoreAdmission as ClaimsDecide
from onceonly.assembly.documents import open_documents
from onceonly.assembly.parts import AdmissionParts
from onceonly.assembly.stores import errors_name_setting
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.bookkeeping import DocumentCounter
from onceonly.documents.dedup import DocumentMarkStore, ExpiredMarks
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import SetupError
from onceonly.model.identity import hash_of
from onceonly.model.message import Message
from onceonly.model.token import TOKEN, Token
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.ports.maintenance import Expires
from onceonly.runtime.environment import LIVE, Environment
from onceonly.systems import Family, Role

ISSUED_KEPT = timedelta(days=7)
"""How long tokens of messages from outside are known to have been issued, in a place for documents."""


async def open_admission(stack: AsyncExitStack, settings: Settings, environment: Environment) -> AdmissionParts:
    """Open whatever an endpoint's deduplication needs next to its store. Raises SetupError, RetryableError."""
    plan, clock = settings.plan, environment.clock
    if plan.marks is not None and plan.retention is not None:
        documents = await _open_documents(stack, settings, role="deduplication", place=plan.marks, clock=clock)
        done = DocumentMarkStore(documents, retention=plan.retention, clock=clock)
        return AdmissionParts(DedupStoreAdmission(settings.name, done), marks=_expiring(plan.marks, documents, done))
    if plan.tokens is None:
        return AdmissionParts(ClaimsDecide())
    with errors_name_setting(settings, "tokens", plan.tokens):
        _refuse_own_lock(settings, plan.tokens)
    documents = await _open_documents(stack, settings, role="tokens", place=plan.tokens, clock=clock)
    drops = drops_of(documents, settings.name)
    subscribers = plan.subscribers or {}
    if plan.tokens_in_store:
        return AdmissionParts(TokensInStore(subscribers, environment.ids), drops=drops)
    tokens = DocumentTokens(documents, clock=clock)
    return AdmissionParts(TokenAdmission(settings.name, tokens, subscribers, environment.ids), tokens, drops)


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


def drops_of(documents: Documents, endpoint: str) -> DocumentCounter:
    """Return the count of an endpoint's messages that came without a live token."""
    return DocumentCounter(documents, f"no-live-token/{endpoint}")


def _expiring(place: Location, documents: Documents, done: DocumentMarkStore) -> Expires | None:
    """Return what removes old marks, where the service does not do that on its own."""
    if not place.system.drops_expired:
        return ExpiredMarks(done)
    return cast("Expires", documents) if hasattr(documents, "remove_expired") else None


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
    async with open_documents(place, clock=clock) as documents:
        yield DocumentIssuer(documents, clock=clock)


class DocumentIssuer(DocumentTokens):
    """Tokens in a place for documents, with a mark for each that was issued."""

    def __init__(self, documents: Documents, *, clock: Clock) -> None:
        """Use a place for documents; the clock says until when marks are kept."""
        super().__init__(documents, clock=clock)
        self._issued = DocumentMarkStore(documents, retention=ISSUED_KEPT, clock=clock)

    async def add_once(self, tokens: list[Token]) -> None:
        """Make those live that have no mark; see the protocol.

        Crash here: 1 tokens live, 2 no mark, 3 no message sent, 4 the next run makes the same tokens live and sends. Two runs
        at the same moment may both find no mark, and one of them make a token live that was consumed by then.
        """
        names = {hash_of(token.endpoint.encode(), token.id.encode()): token for token in tokens}
        known = await self._issued.contains([*names])
        fresh = [name for name in names if name not in known]
        if fresh:
            await self.add([names[name] for name in fresh])
            await self._issued.add(fresh)
            await self._issued.sweep()


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
