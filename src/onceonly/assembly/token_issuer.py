"""Tokens for messages that come from outside: no handler issued one, and without one they would be dropped."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Protocol

from msgspec.structs import replace

from onceonly.assembly.documents import open_documents
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import SetupError
from onceonly.model.identity import hash_of
from onceonly.model.message import Message
from onceonly.model.token import TOKEN, Token
from onceonly.ports.documents import Documents
from onceonly.ports.environment import Clock
from onceonly.runtime.environment import LIVE, Environment

ISSUED_KEPT = timedelta(days=7)
"""How long tokens of messages from outside are known to have been issued, in a place for documents."""


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
    """Give a message from outside with its token, the same for every copy: of copies that wait together one is handled.

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
