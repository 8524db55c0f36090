"""Which records a call of `take` gives, in memory."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from onceonly.model.identity import Identity
from onceonly.model.record import Record


class TakeRequest(Struct, frozen=True):
    """Which records are to be taken, when, and for how long; see the port."""

    older_than: int
    limit: int
    lease: int
    now: int
    after: Identity | None = None

    def choose(self, stored: Iterable[Any]) -> frozenset[Identity]:
        """Choose from what is stored, in the order of the identities."""
        free = (each.record.identity for each in stored if each.at < self.older_than and not self._is_leased(each.taken))
        behind = (identity for identity in free if self.after is None or identity > self.after)
        return frozenset(sorted(behind)[: self.limit])

    def _is_leased(self, taken: int | None) -> bool:
        return taken is not None and abs(self.now - taken) < self.lease


def in_order(stored: Iterable[Any], chosen: frozenset[Identity]) -> tuple[Record, ...]:
    """Give the records of these identities, in the order in which they are taken."""
    found = (each.record for each in stored if each.record.identity in chosen)
    return tuple(sorted(found, key=lambda record: record.identity))
