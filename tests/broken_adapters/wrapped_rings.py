"""Rings that pass every call on, for the broken ones to spoil one of them."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from onceonly.model.ring import Bucketing
from onceonly.ports.ring import Ring, Rotation, TimeBucket
from onceonly_conformance.ring_subject import RingSubject
from tests.broken_adapters.wrapped_stores import WrappedStores


class WrappedRing:
    """A ring that passes every call on to its owner."""

    def __init__(self, owner: "WrappedRings", inner: Ring) -> None:
        self._owner = owner
        self._inner = inner

    async def bucketing(self) -> Bucketing:
        """Pass on."""
        return await self._owner.bucketing(self._inner)

    async def now(self) -> int:
        """Pass on."""
        return await self._owner.now_of(self._inner)

    async def buckets(self) -> Sequence[TimeBucket]:
        """Pass on."""
        return await self._owner.buckets(self._inner)

    async def rotate(self, number: int, *, by_rows: bool = False) -> Rotation:
        """Pass on."""
        return await self._owner.rotate(self._inner, number, by_rows=by_rows)

    async def remove_expired(self, limit: int = 1000) -> int:
        """Pass on."""
        return await self._owner.remove_expired(self._inner, limit)

    def leading(self) -> AbstractAsyncContextManager[bool]:
        """Pass on."""
        return self._owner.leading(self._inner)


class WrappedRings(WrappedStores):
    """A subject that passes everything on. What breaks a promise overrides one of these methods."""

    def __init__(self, inner: RingSubject) -> None:
        super().__init__(inner)
        self.rings = inner

    async def ring(self) -> Ring:
        """Open the ring."""
        return WrappedRing(self, await self.rings.ring())

    async def bucketing(self, ring: Ring) -> Bucketing:
        """Read how time is cut."""
        return await ring.bucketing()

    async def now_of(self, ring: Ring) -> int:
        """Read the clock."""
        return await ring.now()

    async def buckets(self, ring: Ring) -> Sequence[TimeBucket]:
        """Look."""
        return await ring.buckets()

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Rotate."""
        return await ring.rotate(number, by_rows=by_rows)

    async def remove_expired(self, ring: Ring, limit: int) -> int:
        """Remove."""
        return await ring.remove_expired(limit)

    def leading(self, ring: Ring) -> AbstractAsyncContextManager[bool]:
        """Lead."""
        return ring.leading()
