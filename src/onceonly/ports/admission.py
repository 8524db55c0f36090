"""Admission: the rule that decides whether a message may be handled, beyond what the store itself knows."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record


class AdmissionResult(NamedTuple):
    """Which messages may be handled or finished normally. All others are done elsewhere, and only cleaned up.

    But mismatched ones: under their identity another body was handled, or their token belongs to another body.
    """

    messages: frozenset[Identity]
    mismatched: frozenset[Identity] = frozenset()


class Admission(Protocol):
    """Asked after the store's claim or load, never before (protocols, section 1: a stale check handles twice).

    With `History` the store's claims are the whole rule and every call here is a formality; a dedup store or tokens in
    another system answer through the same five calls. Reads must be linearizable with writes.
    """

    async def admits(self, messages: Sequence[Message]) -> AdmissionResult:
        """Return which of these may be handled, and which are mismatched; all that is known of them is read in one call."""

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Prepare what these records need before they are committed; gives them back, with what was issued for them."""

    async def activate(self, records: Sequence[Record]) -> None:
        """Make valid what was prepared, after the commit; repeated for every record that is dispatched again."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Remove what this attempt prepared; called on a definite ConflictError only."""

    async def retire(self, records: Sequence[Record]) -> None:
        """Note that these messages are done: between dispatch and forget."""
