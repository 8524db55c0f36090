"""Stores that lose, mix or share the entities of their units."""

import asyncio
from collections.abc import Sequence

from msgspec.structs import replace

from onceonly.model.entities import Changes, Entities
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Unit
from onceonly_conformance.store_subject import StoreSubject, WholeStore
from tests.broken_adapters.wrapped_stores import WrappedResources, WrappedStores, WrappedUnit

REQUEST, REQUEST_BYTES = 100, 4 << 20
"""Entities and bytes that one request takes."""


class PassedEntities(Entities):
    """Entities that pass reads and writes on."""

    def __init__(self, inner: Entities) -> None:
        super().__init__({})
        self.inner = inner

    def read(self, key: str) -> bytes | None:
        """Pass on."""
        return self.inner.read(key)

    def write(self, key: str, state: bytes | None) -> None:
        """Pass on."""
        self.inner.write(key, state)


class EntityStores(WrappedStores):
    """A subject that passes everything on. A broken one overrides `entities`, `kept`, or a call of the store."""

    def entities(self, inner: Entities) -> Entities:
        """Return what a handler reads and writes."""
        return PassedEntities(inner)

    def kept(self, changes: Changes) -> Changes:
        """Return what is committed of the changes."""
        return changes

    def resources(self, unit: Unit) -> Resources:
        """Return a unit's resources."""
        return _EntityResources(self, unit.resources)

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit what is kept."""
        entities = entities_in(unit.inner)
        entities.undo(self.kept(entities.changes()))
        await super().commit(unit, records)


class _EntityResources(WrappedResources):
    def __init__(self, owner: EntityStores, inner: Resources) -> None:
        super().__init__(inner)
        self._owner = owner

    def get(self, kind: type) -> object:
        """Spoil the entities."""
        found = super().get(kind)
        return self._owner.entities(found) if isinstance(found, Entities) else found


def entities_in(unit: Unit) -> Entities:
    """Return the entities of a unit that is not wrapped."""
    found = unit.resources.get(Entities)
    assert isinstance(found, Entities)
    return found


class UndeletingStore(EntityStores):
    """Deletes no entity."""

    def kept(self, changes: Changes) -> Changes:
        """Leave deletions out."""
        return {key: state for key, state in changes.items() if state is not None}


class FirstEntityStore(EntityStores):
    """Commits the changes of four entities of a unit."""

    def kept(self, changes: Changes) -> Changes:
        """Keep some."""
        return dict([*changes.items()][:4]) if len(changes) < 10 else changes


class FirstRequestStore(EntityStores):
    """Commits as many changes as one request takes."""

    def kept(self, changes: Changes) -> Changes:
        """Keep some."""
        return dict([*changes.items()][:REQUEST])


class FirstPacketStore(EntityStores):
    """Commits as many bytes as one request takes."""

    def kept(self, changes: Changes) -> Changes:
        """Keep some."""
        kept: dict[str, bytes | None] = {}
        for key, state in changes.items():
            if sum(len(each or b"") for each in (*kept.values(), state)) <= REQUEST_BYTES:
                kept[key] = state
        return kept


class SnapshotStore(EntityStores):
    """Shows every handler the state before the unit."""

    def entities(self, inner: Entities) -> Entities:
        """Show what was loaded."""
        return _Snapshot(inner)


class _Snapshot(PassedEntities):
    def read(self, key: str) -> bytes | None:
        """Read without the changes."""
        mark = self.inner.mark()
        self.inner.undo({})
        try:
            return self.inner.read(key)
        finally:
            self.inner.undo(mark)


class CachingStore(EntityStores):
    """Reads states from a cache, which every write fills at once."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self.cache: dict[str, bytes | None] = {}

    def entities(self, inner: Entities) -> Entities:
        """Share the cache."""
        return _Cached(inner, self.cache)


class _Cached(PassedEntities):
    def __init__(self, inner: Entities, cache: dict[str, bytes | None]) -> None:
        super().__init__(inner)
        self._cache = cache

    def read(self, key: str) -> bytes | None:
        """Read the cache first."""
        loaded = self.inner.read(key)
        return self._cache.get(key, loaded)

    def write(self, key: str, state: bytes | None) -> None:
        """Fill the cache."""
        self.inner.write(key, state)
        self._cache[key] = state


class GenerousStore(EntityStores):
    """Takes an entity that was not loaded for one that does not exist."""

    def entities(self, inner: Entities) -> Entities:
        """Show everything."""
        return _Generous(inner)


class _Generous(PassedEntities):
    def read(self, key: str) -> bytes | None:
        """Read, or make one up."""
        try:
            return self.inner.read(key)
        except LookupError:
            return None


class EarlyStore(EntityStores):
    """Shows the states from before it waited for the entity."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._looking = 0
        self._have_looked = asyncio.Event()

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Look, then wait until all who begin meanwhile have looked."""
        asked = [replace(each, id=f"{each.id}?") for each in messages]
        self._looking += 1
        self._have_looked.clear()
        try:
            early = await store.begin(asked)
            states = {each.unit: entities_in(early).read(each.unit) for each in asked}
            early.abandon()
        finally:
            self._looking -= 1
            if not self._looking:
                self._have_looked.set()
        await self._have_looked.wait()
        unit = await super().begin(store, messages, isolated=isolated)
        unit.resources = _EarlyResources(unit.resources, states)
        return unit


class _EarlyResources(WrappedResources):
    def __init__(self, inner: Resources, states: Changes) -> None:
        super().__init__(inner)
        self._states = dict(states)

    def get(self, kind: type) -> object:
        """Show the early states, and what is written over them."""
        found = super().get(kind)
        return _Cached(found, self._states) if isinstance(found, Entities) else found


class CuttingStore(EntityStores):
    """Cuts keys that are too long."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Cut."""
        unit = await super().begin(store, [replace(each, unit=each.unit[:200]) for each in messages], isolated=isolated)
        of = {each.identity: each for each in messages}
        unit.new = tuple(of[each.identity] for each in unit.new)
        return unit

    def entities(self, inner: Entities) -> Entities:
        """Cut."""
        return _Cut(inner)


class _Cut(PassedEntities):
    def read(self, key: str) -> bytes | None:
        """Cut."""
        return self.inner.read(key[:200])

    def write(self, key: str, state: bytes | None) -> None:
        """Cut."""
        self.inner.write(key[:200], state)
