"""Stores that are wrong about the records that wait."""

from collections.abc import Sequence

from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly_conformance.store_subject import LATER, StoreSubject, WholeStore
from tests.broken_adapters.wrapped_stores import WrappedStores


class SmallBacklogStore(WrappedStores):
    """Begins again with the first page of a large backlog."""

    async def take(
        self, store: WholeStore, which: tuple[int, int], *, lease: int, after: Identity | None
    ) -> tuple[Record, ...]:
        """Ignore the cursor when there are many."""
        is_large = len(await store.undispatched(which[0], 1_001)) > 1_000
        return await super().take(store, which, lease=lease, after=None if is_large else after)


class NewestFirstStore(WrappedStores):
    """Lists records the wrong way round."""

    async def undispatched(self, store: WholeStore, older_than: int, limit: int) -> tuple[Record, ...]:
        """Reverse."""
        return (await store.undispatched(older_than, 1000))[::-1][:limit]


class OverlappingStore(WrappedStores):
    """Lists records of the very instant too."""

    async def undispatched(self, store: WholeStore, older_than: int, limit: int) -> tuple[Record, ...]:
        """Go one millisecond too far."""
        return await store.undispatched(older_than + 1, limit)


class UnlimitedStore(WrappedStores):
    """Lists all records."""

    async def undispatched(self, store: WholeStore, older_than: int, limit: int) -> tuple[Record, ...]:
        """Ignore the limit."""
        return await store.undispatched(older_than, 1000)


_Which = tuple[int, int]


class GreedyStore(WrappedStores):
    """Takes what somebody else has taken: two relays send everything twice."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Have no lease last."""
        return await store.take(*which, lease=0, after=after)


class HoardingStore(WrappedStores):
    """Takes for ever: what a relay held that died, nobody sends."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Have no lease end."""
        return await store.take(*which, lease=LATER, after=after)


class HastyStore(WrappedStores):
    """Takes what is not old enough."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Go one millisecond too far."""
        return await store.take(which[0] + 1, which[1], lease=lease, after=after)


class UnlimitedTakingStore(WrappedStores):
    """Takes all records."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Ignore the limit."""
        return await store.take(which[0], 1000, lease=lease, after=after)


class FirstPageStore(WrappedStores):
    """Takes the same first records whenever it may: some that are refused for ever hide all behind them."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Ignore where to begin."""
        return await store.take(*which, lease=lease)


class ForeignTakingStore(WrappedStores):
    """Takes another endpoint's records too."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Look into both."""
        found = await store.take(*which, lease=lease, after=after)
        return found or await (await self.inner.store()).take(*which, lease=lease, after=after)


class LockingStore(WrappedStores):
    """Hides what is taken from those who look."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._taken: set[Identity] = set()

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Note what is taken."""
        found = await store.take(*which, lease=lease, after=after)
        self._taken |= {record.identity for record in found}
        return found

    async def undispatched(self, store: WholeStore, older_than: int, limit: int) -> tuple[Record, ...]:
        """Leave out what is taken."""
        return tuple(r for r in await store.undispatched(older_than, limit) if r.identity not in self._taken)


class LostCursorStore(WrappedStores):
    """Does not know where to go on behind a record that is gone."""

    async def take(self, store: WholeStore, which: _Which, *, lease: int, after: Identity | None) -> tuple[Record, ...]:
        """Return nothing then."""
        is_known = after is None or await store.find([after])
        return await store.take(*which, lease=lease, after=after) if is_known else ()


class UnorderedFindStore(WrappedStores):
    """Finds records in the order in which they lie there."""

    async def find(self, store: WholeStore, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Look through all of them."""
        return tuple(record for record in await store.undispatched(LATER, 1000) if record.identity in identities)


class InventiveStore(WrappedStores):
    """Finds an empty record where there is none."""

    async def find(self, store: WholeStore, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Fill up."""
        found = {record.identity: record for record in await store.find(identities)}
        return tuple(found.get(identity, Record(identity)) for identity in identities)


class ForeignFindStore(WrappedStores):
    """Finds the records of other endpoints."""

    async def find(self, store: WholeStore, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Look into the first endpoint's."""
        return await (await self.inner.store()).find(identities)


class EffectlessStore(WrappedStores):
    """Finds records without what is to be sent."""

    async def find(self, store: WholeStore, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Lose the effects."""
        return tuple(Record(record.identity) for record in await store.find(identities))


class FirstRequestFindStore(WrappedStores):
    """Finds as many records as one request takes."""

    async def find(self, store: WholeStore, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Ask for some."""
        return await super().find(store, identities[:100])
