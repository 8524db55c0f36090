"""Lookup: what a store knows about messages, read without changing anything. For operators; no algorithm calls it."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from onceonly.model.artifact import Reservation
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record


class ClaimState(Enum):
    """What a store can tell about whether a message was handled."""

    HANDLED = "the store has its claim"
    NO_CLAIM = "the store has no claim, and would have one if the message had been handled within the retention"
    TOO_OLD = "older than the retention: claims of its time are deleted"
    UNDETERMINED = "its claim can be found only with the time at which it was sent"
    UNKNOWN = "the store does not store which messages were handled"


class Knowledge(Struct, frozen=True, kw_only=True):
    """What a store knows about one message.

    `fingerprint` is that of the body that was handled, or b"" if it is not stored. `instant` is that of the claim, in
    milliseconds since 1970, or 0 for none. `record` has the messages that are not sent yet.
    """

    claim: ClaimState
    fingerprint: bytes = b""
    instant: int = 0
    record: Record | None = None


class Lookup(Protocol):
    """Reads what the store of one endpoint knows. All methods raise CommitFailed, OutcomeUnknown."""

    async def know(self, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
        """Return what is known about each message, in the order given. Bodies are not compared."""

    async def near(self, identity: Identity, begin: int, end: int) -> Knowledge:
        """Search a claim of an earlier version whose instant is from `begin` to `end`, in milliseconds since 1970.

        At most 100,000 claims are read. Beyond them the answer is UNDETERMINED.
        """

    async def reservations(self, identity: Identity) -> tuple[Reservation, ...]:
        """List the attempts at a message that are open."""
