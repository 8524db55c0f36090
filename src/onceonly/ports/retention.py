"""The retention of one endpoint, as it is stored: what `onceonly retention` shows and changes."""

from typing import Protocol

from onceonly.model.changed_retention import KnownRetention


class StoredRetentions(Protocol):
    """Where the retention of one endpoint is stored. No algorithm calls it."""

    async def find(self) -> KnownRetention | None:
        """Return the retention, None where the endpoint has not run yet. Raises CommitFailed, OutcomeUnknown."""

    async def change(self, kept: int) -> KnownRetention:
        """Store another retention, in milliseconds; harmless when it is the same. Returns what holds then.

        A longer one loses no claim that is known, a shorter one forgets only what is older. It may be called while processes
        are at work. Raises SetupError, CommitFailed, OutcomeUnknown; after OutcomeUnknown just call again.
        """
