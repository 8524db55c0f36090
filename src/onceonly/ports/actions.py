"""ActionLog: the stored actions of operators, in the database of the dead letters.

All methods raise CommitFailed, OutcomeUnknown.
"""

from collections.abc import Sequence
from typing import Protocol

from onceonly.model.action import Action, ActionItem, ItemOutcome
from onceonly.model.identity import Identity


class ActionLog(Protocol):
    """Stores actions and their items, readable by several processes."""

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
