"""DeadLetters: messages given up on, kept where a person can look, retry and purge."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from onceonly.model.dead_letter import DeadLetter


class Filter(Struct, frozen=True, kw_only=True):
    """Which dead letters: by endpoint, message type, and a part of the reason. Empty means all."""

    endpoint: str = ""
    type: str = ""
    reason: str = ""


class DeadLetters(Protocol):
    """Kept in the endpoint's store or a database named in settings."""

    async def add(self, letter: DeadLetter) -> None:
        """Store it durably. Idempotent on its key; the first reason is kept. Raises CommitFailed, OutcomeUnknown."""

    async def page(self, chosen: Filter, *, after: str = "", limit: int = 100) -> tuple[DeadLetter, ...]:
        """List letters in the order they were added, beginning behind the one with key `after`."""

    async def get(self, key: str) -> DeadLetter | None:
        """Give one letter, or None."""

    async def count(self, chosen: Filter) -> int:
        """Count letters."""

    async def remove(self, keys: Sequence[str]) -> int:
        """Remove letters; gives how many there were."""
