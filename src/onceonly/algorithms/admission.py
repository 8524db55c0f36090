"""History: the admission of a store that keeps a claim for every message it handled."""

from collections.abc import Sequence

from onceonly.model.identity import Identity
from onceonly.model.record import Record


class History:
    """The store's claims are the whole rule: what `begin` calls new may be handled, and nothing else is kept anywhere."""

    async def admits(self, identities: Sequence[Identity]) -> frozenset[Identity]:
        """Admit all of them: the claim has decided already."""
        return frozenset(identities)

    async def prepare(self, records: Sequence[Record]) -> tuple[Record, ...]:
        """Prepare nothing."""
        return tuple(records)

    async def activate(self, records: Sequence[Record]) -> None:
        """Activate nothing."""

    async def discard(self, records: Sequence[Record]) -> None:
        """Discard nothing."""

    async def retire(self, identities: Sequence[Identity]) -> None:
        """Retire nothing: the claim stays for its retention."""
