"""Admission: the rule that decides whether a message may be handled, beyond what the store itself knows.

It asks a store of marks, or one of tokens (protocols, sections 4 and 5). A message may be handled only while its token is live,
and handling consumes it.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.token import Owner, PreparedToken, Token
from onceonly.ports.store import UndecidableMessage


class AdmissionResult(NamedTuple):
    """Which messages may be handled or finished normally. All others are done elsewhere, and only cleaned up.

    But mismatched ones: under their identity another body was handled, or their token belongs to another body. And undecidable
    ones: they were sent so long ago that it may be forgotten that they were handled.
    """

    messages: frozenset[Identity]
    mismatched: frozenset[Identity] = frozenset()
    undecidable: tuple[UndecidableMessage, ...] = ()


class Admission(Protocol):
    """Asked after the store's claim or load, never before (protocols, section 1: a stale check handles twice).

    With `History` the store's claims are the whole rule and every call here is a formality; a dedup store or tokens in
    another system answer through the same five calls. Reads must be linearizable with writes.
    """

    async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
        """Return which of these may be handled, and which are mismatched; all that is known of them is read in one call."""

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Prepare what these records need before they are committed; returns them back, with what was issued for them."""

    async def activate(self, records: Sequence[Record]) -> None:
        """Make valid what was prepared, after the commit; repeated for every record that is dispatched again."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Remove what this attempt prepared; called on a definite ConflictError only."""

    async def retire(self, records: Sequence[Record]) -> None:
        """Note that these messages are done: between dispatch and forget."""


NO_FINGERPRINTS: Mapping[bytes, bytes] = MappingProxyType({})
NO_INSTANTS: Mapping[bytes, int] = MappingProxyType({})


class MarkStore(Protocol):
    """Keys, each with a body's fingerprint. Reads must be linearizable with writes: a stale answer handles a message twice."""

    async def add(
        self,
        keys: Sequence[bytes],
        fingerprints: Mapping[bytes, bytes] = NO_FINGERPRINTS,
        instants: Mapping[bytes, int] = NO_INSTANTS,
    ) -> None:
        """Remember these (16 bytes each), durably and visibly to every reader; adding twice is fine.

        `fingerprints` holds 8 bytes for each key whose body is known. The first fingerprint of a key stays as long as the key.
        `instants` holds the instant of each message that has one. A key whose instant is still to come is kept for the
        retention from then on. Not atomic across keys. Raises CommitFailed, OutcomeUnknown.
        """

    async def contains(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return those of these keys that are remembered, each with its fingerprint, or with b"" where it has none.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def undecidable(self, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Return those of these messages whose keys may have been forgotten, or that are too far in the future.

        Ask only for messages that `contains` has not returned, and only afterwards. A message without an instant is never
        among them, nor one that a person has sent back. Raises CommitFailed, OutcomeUnknown.
        """

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget these; harmless for others. Raises CommitFailed, OutcomeUnknown."""


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
