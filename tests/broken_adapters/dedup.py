"""Broken dedup stores."""

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from onceonly.model.errors import CommitFailed, ConflictError, OutcomeUnknown
from onceonly.model.identity import timed_id
from onceonly.model.message import Message
from onceonly.model.ring import Undecidable
from onceonly.ports.admission import NO_FINGERPRINTS, NO_INSTANTS, MarkStore
from onceonly.ports.store import UndecidableMessage
from onceonly_conformance.dedup_suite import DedupSubject
from onceonly_conformance.documents_subject import Moment

PAGE = 100


class WrappedDedupStore:
    """A dedup store whose calls go through a `WrappedDedup`; `known` is for what this process alone remembers."""

    def __init__(self, owner: "WrappedDedup", inner: MarkStore) -> None:
        self.inner = inner
        self.known: dict[bytes, bool] = {}
        self._owner = owner

    async def add(
        self,
        keys: Sequence[bytes],
        fingerprints: Mapping[bytes, bytes] = NO_FINGERPRINTS,
        instants: Mapping[bytes, int] = NO_INSTANTS,
    ) -> None:
        """Add, as the wrapper does it."""
        self._owner.instants = instants
        await self._owner.add(self, keys, fingerprints)

    async def undecidable(self, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Decide, as the wrapper does it."""
        return await self._owner.undecidable(self, messages)

    async def contains(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Look, as the wrapper does it."""
        return await self._owner.contains(self, keys)

    async def remove(self, keys: Sequence[bytes]) -> None:
        """Remove, as the wrapper does it."""
        await self._owner.remove(self, keys)


class WrappedDedup:
    """A subject that passes everything on. What breaks a promise overrides one of these methods."""

    def __init__(self, inner: DedupSubject) -> None:
        self.subject = inner
        self.seen: dict[bytes, int] = {}
        """For what a broken service remembers, by key."""
        self.instants: Mapping[bytes, int] = NO_INSTANTS
        """The instants of the call of `add` that is made."""

    async def dedup_store(self) -> MarkStore:
        """Open a store."""
        return WrappedDedupStore(self, await self.subject.dedup_store())

    async def cut(self, moment: Moment) -> MarkStore:
        """Open a store that is cut off once."""
        return WrappedDedupStore(self, await self.subject.cut(moment))

    def now(self) -> int:
        """Return the time."""
        return self.subject.now()

    def retention(self) -> int:
        """Return the retention."""
        return self.subject.retention()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        await self.subject.pass_time(milliseconds)

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Add keys."""
        await store.inner.add(keys, bodies, self.instants)

    async def undecidable(self, store: WrappedDedupStore, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Find messages that are too old."""
        return await store.inner.undecidable(messages)

    async def contains(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Look keys up."""
        return await store.inner.contains(keys)

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Remove keys."""
        await store.inner.remove(keys)


class AgreeableDedup(WrappedDedup):
    """Knows everything."""

    async def contains(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return all."""
        return dict.fromkeys(keys, b"")


class PrivateDedup(WrappedDedup):
    """Remembers in the process only."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Keep it to itself."""
        store.known.update(dict.fromkeys(keys, True))

    async def contains(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Look there."""
        return {key: b"" for key in keys if key in store.known}


class CachingDedup(WrappedDedup):
    """Answers what it answered before, as a stale replica does."""

    async def contains(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Ask once for each key."""
        found = await store.inner.contains(keys)
        return {key: found.get(key, b"") for key in keys if store.known.setdefault(key, key in found)}


class StrictDedup(WrappedDedup):
    """Takes a key that is there for somebody else's success."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Look first."""
        if await store.inner.contains(keys):
            raise ConflictError("it is there already")
        await store.inner.add(keys, bodies)


class FussyDedup(WrappedDedup):
    """Passes keys on as they come, to a service that takes each once in a request."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Refuse what is there twice."""
        if len(set(keys)) < len(keys):
            raise CommitFailed("a key is there twice in the request")
        await store.inner.add(keys, bodies)


class LockingDedup(WrappedDedup):
    """Lets nobody add what somebody is adding, and forgets to unlock when it is cancelled."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Lock, add, unlock."""
        if self.seen.keys() & set(keys):
            raise CommitFailed("somebody else is adding it")
        self.seen.update(dict.fromkeys(keys, 1))
        await asyncio.sleep(0)
        await store.inner.add(keys, bodies)
        for key in keys:
            self.seen.pop(key, None)


class OnePageDedup(WrappedDedup):
    """Writes what fits into one request."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Drop the rest."""
        await store.inner.add(keys[:PAGE], bodies)


class CaselessDedup(WrappedDedup):
    """Keeps keys as text, under a collation that ignores case."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Add in lower case."""
        await store.inner.add([key.lower() for key in keys], {key.lower(): body for key, body in bodies.items()})

    async def contains(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Look in lower case."""
        found = await store.inner.contains([key.lower() for key in keys])
        return {key: found[key.lower()] for key in keys if key.lower() in found}


class SweepingDedup(WrappedDedup):
    """Forgets more than it was asked to."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Note what there is."""
        self.seen.update(dict.fromkeys(keys, 1))
        await store.inner.add(keys, bodies)

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Forget everything."""
        await store.inner.remove(list(self.seen))


class KeepingDedup(WrappedDedup):
    """Forgets nothing."""

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Do nothing."""


class ExactingDedup(WrappedDedup):
    """Complains when there is nothing to forget."""

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Look first."""
        if set(await store.inner.contains(keys)) != set(keys):
            raise LookupError("there is no such key")
        await store.inner.remove(keys)


class TombstoneDedup(WrappedDedup):
    """Never takes again what was removed."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Leave it out."""
        await store.inner.add([key for key in keys if key not in self.seen], bodies)

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Note it."""
        self.seen.update(dict.fromkeys(keys, 1))
        await store.inner.remove(keys)


class DroppingDedup(WrappedDedup):
    """Drops what is older than it should be; `renews` says whether adding again counts."""

    renews = True
    passed = 0

    def lasts(self) -> int:
        """Return the age at which a key is dropped, in milliseconds."""
        return self.retention()

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Note when."""
        for key in keys:
            if self.renews or key not in self.seen:
                self.seen[key] = self.passed + max(0, self.instants.get(key, 0) - self.now())
        await store.inner.add(keys, bodies)

    async def pass_time(self, milliseconds: int) -> None:
        """Drop what is too old."""
        await self.subject.pass_time(milliseconds)
        self.passed += milliseconds
        old = [key for key, added in self.seen.items() if self.passed - added >= self.lasts()]
        await (await self.subject.dedup_store()).remove(old)
        for key in old:
            del self.seen[key]


class HastyDedup(DroppingDedup):
    """Does not keep what it was asked to keep."""

    def lasts(self) -> int:
        """Return half of the time."""
        return self.retention() // 2


class FirstAddDedup(DroppingDedup):
    """Takes a key that is there already, and may be gone at once, for one that it just added."""

    renews = False


class RenewingDedup(DroppingDedup):
    """Writes an old key anew when it is added again, with the fingerprint of that call."""

    def lasts(self) -> int:
        """Keep keys for a long time."""
        return self.retention() * 10

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Forget the first fingerprint of what is old."""
        await store.inner.remove([key for key in keys if self.passed - self.seen.get(key, 0) > self.oldest()])
        await super().add(store, keys, bodies)

    def oldest(self) -> int:
        """Return the age up to which a key is not written anew."""
        return self.retention()


class PlainRenewingDedup(RenewingDedup):
    """Forgets the fingerprint of an old key that is added again without one."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Leave those alone that have one."""
        await (super() if not bodies else super(RenewingDedup, self)).add(store, keys, bodies)

    def oldest(self) -> int:
        """Write it anew before its retention ends."""
        return self.retention() // 2


class VagueDedup(WrappedDedup):
    """Says that it failed whenever it does not know."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Translate."""
        try:
            await store.inner.add(keys, bodies)
        except OutcomeUnknown as error:
            raise CommitFailed("it did not work") from error

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Translate."""
        try:
            await store.inner.remove(keys)
        except OutcomeUnknown as error:
            raise CommitFailed("it did not work") from error


class HopefulDedup(WrappedDedup):
    """Takes a lost answer for a good one."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Hide it."""
        try:
            await store.inner.add(keys, bodies)
        except OutcomeUnknown:
            return

    async def remove(self, store: WrappedDedupStore, keys: Sequence[bytes]) -> None:
        """Hide it."""
        try:
            await store.inner.remove(keys)
        except OutcomeUnknown:
            return


class BodilessDedup(WrappedDedup):
    """Keeps keys alone."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Drop the fingerprints."""
        await store.inner.add(keys)


class LastBodyDedup(WrappedDedup):
    """Keeps the last fingerprint of a key, not the first."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Forget the one before."""
        await store.inner.remove([*bodies])
        await store.inner.add(keys, bodies)


class ClingingDedup(WrappedDedup):
    """Keeps the fingerprint of a key that was removed."""

    def __init__(self, inner: DedupSubject) -> None:
        super().__init__(inner)
        self.bodies: dict[bytes, bytes] = {}

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Use it again."""
        self.bodies = {**bodies, **self.bodies}
        await store.inner.add(keys, {key: self.bodies[key] for key in keys if key in self.bodies})


class FirstCallDedup(WrappedDedup):
    """Takes a fingerprint with a new key only."""

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Drop those of others."""
        found = await store.inner.contains(keys)
        await store.inner.add(keys, {key: body for key, body in bodies.items() if key not in found})


class TrustingDedup(WrappedDedup):
    """Takes each message that it does not know for a new one, however old it is."""

    async def undecidable(self, store: WrappedDedupStore, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Return none."""
        return ()


class SuspiciousDedup(WrappedDedup):
    """Refuses each message that is older than half of the retention."""

    async def undecidable(self, store: WrappedDedupStore, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Look at what the next messages would be."""
        half = self.retention() // 2
        older = [replace(each, id=timed_id(each.source, each.instant - half, bytes(10))) for each in messages if each.instant]
        refused = {each.message.instant + half for each in await store.inner.undecidable(older)}
        return tuple(UndecidableMessage(each, Undecidable.TOO_OLD) for each in messages if each.instant in refused)


class ThoroughDedup(WrappedDedup):
    """Refuses messages without an instant as well."""

    async def undecidable(self, store: WrappedDedupStore, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Refuse them."""
        plain = [UndecidableMessage(each, Undecidable.TOO_OLD) for each in messages if not each.instant]
        return (*plain, *await store.inner.undecidable(messages))


class SternDedup(WrappedDedup):
    """Refuses again what a person has sent back."""

    async def undecidable(self, store: WrappedDedupStore, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Leave the attribute out."""
        plain = {replace(each, extensions=()).identity: each for each in messages}
        found = await store.inner.undecidable([replace(each, extensions=()) for each in messages])
        return tuple(UndecidableMessage(plain[each.message.identity], each.reason) for each in found)


class TimelessDedup(WrappedDedup):
    """Keeps a key for the retention from now on, also when its message is from the future."""

    def __init__(self, inner: DedupSubject) -> None:
        super().__init__(inner)
        self.passed = 0
        self.until: dict[bytes, int] = {}

    async def add(self, store: WrappedDedupStore, keys: Sequence[bytes], bodies: Mapping[bytes, bytes]) -> None:
        """Note when."""
        self.until.update(dict.fromkeys(keys, self.passed + self.retention()))
        await store.inner.add(keys, bodies)

    async def pass_time(self, milliseconds: int) -> None:
        """Drop what is old enough."""
        await self.subject.pass_time(milliseconds)
        self.passed += milliseconds
        await (await self.subject.dedup_store()).remove([key for key, until in self.until.items() if until < self.passed])


class HopelessDedup(WrappedDedup):
    """Accepts messages of any time in the future."""

    async def undecidable(self, store: WrappedDedupStore, messages: Sequence[Message]) -> tuple[UndecidableMessage, ...]:
        """Leave them out."""
        return tuple(each for each in await store.inner.undecidable(messages) if each.reason is not Undecidable.TOO_NEW)
