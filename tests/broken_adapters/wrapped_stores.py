"""Stores that pass every call on, for the broken ones to spoil one of them."""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import BeginResult, Resources, Unit
from onceonly_conformance.store_subject import StoreSubject, WholeStore
from onceonly_conformance.suite import ENDPOINT


class WrappedUnit:
    """A unit whose calls go through a `WrappedStores`."""

    def __init__(self, owner: "WrappedStores", unit: Unit, store: WholeStore) -> None:
        self.key = unit.key
        found = unit.found
        self.new, self.pending, self.done, self.mismatched, self.undecidable = (
            found.new,
            found.pending,
            found.done,
            found.mismatched,
            found.undecidable,
        )
        self.resources = owner.resources(unit)
        self.inner, self.store = unit, store
        self.is_over = False
        self._owner = owner

    @property
    def found(self) -> BeginResult:
        """What `begin` found, or what the wrapper says it found."""
        return BeginResult(self.new, self.pending, self.done, self.mismatched, self.undecidable)

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit, as the wrapper does it."""
        await self._owner.commit(self, records)
        self.is_over = True

    def abandon(self) -> None:
        """Abandon, as the wrapper does it."""
        self._owner.abandon(self)
        self.is_over = True


class WrappedStore:
    """A store whose calls go through a `WrappedStores`."""

    def __init__(self, owner: "WrappedStores", inner: WholeStore) -> None:
        self._owner = owner
        self._inner = inner

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> Unit:
        """Begin, as the wrapper does it."""
        return await self._owner.begin(self._inner, messages, isolated=isolated)

    def keeps(self, record: Record) -> bool:
        """Tell as the store does."""
        return self._inner.keeps(record)

    async def forget(self, records: Sequence[Record]) -> None:
        """Forget, as the wrapper does it."""
        await self._owner.forget(self._inner, records)

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List, as the wrapper does it."""
        return await self._owner.undispatched(self._inner, older_than, limit)

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Take, as the wrapper does it."""
        return await self._owner.take(self._inner, (older_than, limit), lease=lease, after=after)

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Find, as the wrapper does it."""
        return await self._owner.find(self._inner, identities)

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence, as the wrapper does it."""
        return await self._owner.fence(self._inner, unit, identity, message)

    def unit_key(self, message: Message) -> str:
        """Return the key, as the wrapper does it."""
        return self._owner.unit_key(self._inner, message)


class WrappedStores:
    """A subject that passes everything on. What breaks a promise overrides one of these methods."""

    def __init__(self, inner: StoreSubject) -> None:
        self.inner = inner

    async def store(self, endpoint: str = ENDPOINT) -> WholeStore:
        """Open a store."""
        return WrappedStore(self, await self.inner.store(endpoint))

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Write a business value."""
        await self.inner.write(resources, key, value)

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Write a business value."""
        self.inner.write_now(get, key, value)

    async def refuse(self, resources: Resources) -> None:
        """Have the commit refused."""
        await self.inner.refuse(resources)

    async def read(self) -> dict[str, str]:
        """Read the business data."""
        return await self.inner.read()

    def now(self) -> int:
        """Return the time."""
        return self.inner.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.inner.pass_time(milliseconds)

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Begin a unit."""
        return WrappedUnit(self, await store.begin(messages, isolated=isolated), store)

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit a unit."""
        await unit.inner.commit(records)

    def abandon(self, unit: WrappedUnit) -> None:
        """Abandon a unit."""
        unit.inner.abandon()

    def resources(self, unit: Unit) -> Resources:
        """Return a unit's resources."""
        return unit.resources

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Forget records."""
        await store.forget(records)

    async def undispatched(self, store: WholeStore, older_than: int, limit: int) -> tuple[Record, ...]:
        """List records."""
        return await store.undispatched(older_than, limit)

    async def take(
        self, store: WholeStore, which: tuple[int, int], *, lease: int, after: Identity | None
    ) -> tuple[Record, ...]:
        """Take records; `which` is older than what, and how many."""
        return await store.take(*which, lease=lease, after=after)

    async def find(self, store: WholeStore, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Find records."""
        return await store.find(identities)

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence a message."""
        return await store.fence(unit, identity, message)

    def unit_key(self, store: WholeStore, message: Message) -> str:
        """Return a message's unit key."""
        return store.unit_key(message)


class WrappedResources:
    """Resources that pass everything on."""

    def __init__(self, inner: Resources) -> None:
        self.inner = inner

    def get(self, kind: type) -> object:
        """Return a resource."""
        return self.inner.get(kind)

    def attempt(self, handler: str = "") -> AbstractAsyncContextManager[None]:
        """Enclose a handler's work."""
        return self.inner.attempt(handler)

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        """Write what a handler has left."""
        return self.inner.leave(is_last=is_last)

    def is_busy(self) -> bool:
        """Ask the resources."""
        return self.inner.is_busy()

    async def run_sync(self, function: Callable[[Callable[[type], object]], Any], **options: Any) -> object:
        """Run a synchronous handler."""
        return await self.inner.run_sync(function, **options)
