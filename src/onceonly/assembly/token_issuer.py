"""Tokens for messages that come from outside: no handler issued one, and without one they would be dropped."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec.structs import replace

from onceonly.assembly.documents import open_documents
from onceonly.config.endpoint import Settings
from onceonly.config.location import Location
from onceonly.documents.tokens import DocumentTokens
from onceonly.model.errors import SetupError
from onceonly.model.identity import hash_of
from onceonly.model.message import Message
from onceonly.model.token import TOKEN, Token
from onceonly.ports.environment import Clock
from onceonly.runtime.environment import LIVE, Environment


class TokenIssuer(Protocol):
    """A place for tokens, as far as senders from outside need it."""

    async def add(self, tokens: list[Token]) -> None:
        """Make these live at once; harmless for those that are. Raises CommitFailed, OutcomeUnknown."""

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
        yield DocumentTokens(documents, clock=clock)


def with_token(message: Message) -> Message:
    """Give a message from outside with its token, the same for every copy: of copies that wait together one is handled.

    A copy that is sent after the first one was handled is handled too: nothing of that one is left.
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
