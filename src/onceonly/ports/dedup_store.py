"""DedupStore: remembers elsewhere which messages are done, so that entities need not (protocols, section 4)."""

from collections.abc import Sequence
from typing import Protocol


class DedupStore(Protocol):
    """A set of keys. Reads must be linearizable with writes: a stale answer handles a message twice."""

    async def add(self, keys: Sequence[bytes]) -> None:
        """Remember these (16 bytes each), durably and visibly to every reader; adding twice is fine.

        Not atomic across keys. Raises Failed, Unknown.
        """

    async def contains(self, keys: Sequence[bytes]) -> frozenset[bytes]:
        """Tell which of these are remembered. Raises Failed, Unknown."""

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget these; harmless for others. Raises Failed, Unknown."""
