"""Stores that are wrong about the records that wait."""

from collections.abc import Sequence

from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.ports.store import Store
from onceonly.testing.broken.wrapped_stores import WrappedStores
from onceonly.testing.store_subject import LATER


class NewestFirstStore(WrappedStores):
    """Lists records the wrong way round."""

    async def undispatched(self, store: Store, older_than: int, limit: int, *, after: Identity | None) -> tuple[Record, ...]:
        """Reverse."""
        return (await store.undispatched(older_than, 1000, after=after))[::-1][:limit]


class OverlappingStore(WrappedStores):
    """Lists records of the very instant too."""

    async def undispatched(self, store: Store, older_than: int, limit: int, *, after: Identity | None) -> tuple[Record, ...]:
        """Go one millisecond too far."""
        return await store.undispatched(older_than + 1, limit, after=after)


class UnlimitedStore(WrappedStores):
    """Lists all records."""

    async def undispatched(self, store: Store, older_than: int, limit: int, *, after: Identity | None) -> tuple[Record, ...]:
        """Ignore the limit."""
        return await store.undispatched(older_than, 1000, after=after)


class FirstPageStore(WrappedStores):
    """Lists the oldest records again and again: one that is refused for ever hides all behind it."""

    async def undispatched(self, store: Store, older_than: int, limit: int, *, after: Identity | None) -> tuple[Record, ...]:
        """Ignore where to begin."""
        return await store.undispatched(older_than, limit)


class SkippingStore(WrappedStores):
    """Leaves one record out between two pages."""

    async def undispatched(self, store: Store, older_than: int, limit: int, *, after: Identity | None) -> tuple[Record, ...]:
        """Begin one too late."""
        found = await store.undispatched(older_than, limit + 1, after=after)
        return found[:limit] if after is None else found[1:]


class ForgivingCursorStore(WrappedStores):
    """Begins again from the start when it does not know where to go on, so that its caller never comes to an end."""

    async def undispatched(self, store: Store, older_than: int, limit: int, *, after: Identity | None) -> tuple[Record, ...]:
        """Begin again."""
        is_known = after is None or await store.find([after])
        return await store.undispatched(older_than, limit, after=after if is_known else None)


class UnorderedFindStore(WrappedStores):
    """Finds records in the order in which they lie there."""

    async def find(self, store: Store, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Look through all of them."""
        return tuple(record for record in await store.undispatched(LATER, 1000) if record.identity in identities)


class InventiveStore(WrappedStores):
    """Finds an empty record where there is none."""

    async def find(self, store: Store, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Fill up."""
        found = {record.identity: record for record in await store.find(identities)}
        return tuple(found.get(identity, Record(identity)) for identity in identities)


class ForeignFindStore(WrappedStores):
    """Finds the records of other endpoints."""

    async def find(self, store: Store, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Look into the first endpoint's."""
        return await (await self.inner.store()).find(identities)


class EffectlessStore(WrappedStores):
    """Finds records without what is to be sent."""

    async def find(self, store: Store, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Lose the effects."""
        return tuple(Record(record.identity) for record in await store.find(identities))
