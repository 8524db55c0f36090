"""What operators read and write: what a store knows about messages, and the stored actions on dead letters.

No algorithm calls it. All methods raise CommitFailed, OutcomeUnknown.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

from onceonly.model.action import Action, ActionItem, ItemOutcome
from onceonly.model.artifact import Reservation
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record


class ClaimState(Enum):
    """What a store can tell about whether a message was handled."""

    HANDLED = "the store has its claim"
    NO_CLAIM = "the store has no claim, and would have one if the message had been handled within the retention"
    TOO_OLD = "older than the retention: claims of its time are deleted"
    UNDETERMINED = "its claim may be in the document of an entity, whose name is unknown"
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
    """Reads what the store of one endpoint knows."""

    async def know(self, messages: Sequence[Message]) -> tuple[Knowledge, ...]:
        """Return what is known about each message, in the order given. Bodies are not compared."""

    async def reservations(self, identity: Identity) -> tuple[Reservation, ...]:
        """List the attempts at a message that are open."""


class ActionLog(Protocol):
    """Stores the actions of operators and their items, in the database of the dead letters, readable by several processes."""

    async def begin(self, action: Action) -> Action:
        """Store a new action durably, and return it with its position and its time. No effect may come before this."""

    async def get(self, position: int) -> Action | None:
        """Return one action, or None."""

    async def recent(self, *, before: int = 0, limit: int = 100) -> tuple[Action, ...]:
        """List actions, the newest first; with `before` those with a lower position."""

    async def abandoned(self, now: int, limit: int = 100) -> tuple[Action, ...]:
        """List running actions whose lease is over."""

    async def lead(self, position: int, runner: str, *, now: int, until: int) -> Action | None:
        """Make `runner` the process that works on a running action. None if it is not running, or another process leads."""

    async def plan(self, action: Action, items: Sequence[ActionItem]) -> bool:
        """Store items before their effect, and the action's `reached`. False, with nothing stored, if its runner lost it."""

    async def settle(self, action: Action, items: Sequence[ActionItem]) -> bool:
        """Store what became of planned items, and the action's numbers, state and lease. False if its runner lost it."""

    async def update(self, items: Sequence[ActionItem]) -> None:
        """Store the outcomes of items, whoever runs the action."""

    async def stop(self, position: int) -> bool:
        """Stop a running action between two pages. False if it was not running."""

    async def items(
        self, action: int, *, after: int = 0, outcome: ItemOutcome | None = None, limit: int = 100
    ) -> tuple[ActionItem, ...]:
        """List items by number, those behind `after`."""

    async def of_message(self, endpoint: str, identity: Identity, limit: int = 100) -> tuple[tuple[Action, ActionItem], ...]:
        """List what operators did with one message, the newest first."""

    async def expire(self, now: int, *, actions_before: int, limit: int = 1000) -> int:
        """Delete stored letters whose time is over, and actions older than `actions_before`. Return how many rows."""
