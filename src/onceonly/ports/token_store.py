"""TokenStore: a message may be handled only while its token is live; handling consumes it (protocols, section 5)."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from onceonly.model.token import Owner, PreparedToken, Token


class TokenStore(Protocol):
    """Tokens in two states: prepared (invisible to receivers) and live. Reads must be linearizable with writes."""

    async def prepare(self, owners: Mapping[Token, Owner]) -> None:
        """Create these as prepared, each for its owner. Their ids were never used before. Not atomic.

        Raises ConflictError, CommitFailed, OutcomeUnknown.
        """

    async def activate(self, tokens: Sequence[Token]) -> None:
        """Make these live, if they are prepared; live or missing is left as it is. Not atomic.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def live(self, tokens: Sequence[Token]) -> frozenset[Token]:
        """Return which of these are live. Raises CommitFailed, OutcomeUnknown."""

    async def remove(self, tokens: Sequence[Token]) -> None:
        """Remove these whatever state they are in; harmless when they are gone. Not atomic.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def discard(self, tokens: Sequence[Token]) -> None:
        """Remove those of these that are still prepared; a live one stays. Not atomic. Raises CommitFailed, OutcomeUnknown."""

    async def prepared(self, older_than: int, limit: int) -> tuple[PreparedToken, ...]:
        """List tokens that were prepared before `older_than` (milliseconds since 1970) and are not live; may be stale.

        Raises CommitFailed, OutcomeUnknown.
        """
