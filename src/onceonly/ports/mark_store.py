"""MarkStore: remembers elsewhere which messages are done, so that entities need not (protocols, section 4)."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

NONE: Mapping[bytes, bytes] = MappingProxyType({})


class MarkStore(Protocol):
    """Keys, each with a body's fingerprint. Reads must be linearizable with writes: a stale answer handles a message twice."""

    async def add(self, keys: Sequence[bytes], fingerprints: Mapping[bytes, bytes] = NONE) -> None:
        """Remember these (16 bytes each), durably and visibly to every reader; adding twice is fine.

        `fingerprints` holds 8 bytes for each key whose body is known. The first fingerprint of a key stays as long as the key.
        Not atomic across keys. Raises CommitFailed, OutcomeUnknown.
        """

    async def contains(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return those of these keys that are remembered, each with its fingerprint, or with b"" where it has none.

        Raises CommitFailed, OutcomeUnknown.
        """

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Forget these; harmless for others. Raises CommitFailed, OutcomeUnknown."""
