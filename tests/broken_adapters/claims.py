"""Stores that are wrong about what was handled before, or about who claims it."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import count

from msgspec.structs import replace

from onceonly.model.identity import Identity
from onceonly.model.message import Message, Send
from onceonly.model.record import Record
from onceonly_conformance.store_subject import StoreSubject, WholeStore
from onceonly_conformance.suite import ENDPOINT
from tests.broken_adapters.wrapped_stores import WrappedStores, WrappedUnit


class RenamingStores(WrappedStores):
    """Claims messages under other names than their own; by itself under the right ones."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self.names: dict[Identity, Identity] = {}

    def rename(self, identity: Identity) -> Identity:
        """Return the name under which a message is claimed."""
        return identity

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Begin a unit under the other names."""
        of = {self.rename(message.identity): message for message in messages}
        self.names |= {renamed: message.identity for renamed, message in of.items()}
        asked = [replace(message, source=renamed.source, id=renamed.id) for renamed, message in of.items()]
        unit = await super().begin(store, asked, isolated=isolated)
        unit.new = tuple(of[message.identity] for message in unit.new)
        unit.done = tuple(of[message.identity] for message in unit.done)
        unit.mismatched = tuple(of[message.identity] for message in unit.mismatched)
        unit.pending = tuple(Record(of[record.identity].identity, record.effects) for record in unit.pending)
        return unit

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit under the other names."""
        claimed = {self.names[message.identity]: message.identity for message in unit.inner.found.new}
        await super().commit(unit, [Record(claimed.get(each.identity, each.identity), each.effects) for each in records])


class ForgetfulStore(RenamingStores):
    """Claims deliveries instead of messages: every copy is new."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._numbers = count()

    def rename(self, identity: Identity) -> Identity:
        """Never give the same name twice."""
        return Identity(identity.source, f"{identity.id}#{next(self._numbers)}")


class UnclaimingStore(RenamingStores):
    """Forgets the claim together with the record."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._forgotten: dict[Identity, int] = defaultdict(int)

    def rename(self, identity: Identity) -> Identity:
        """Count how often it was forgotten."""
        return Identity(identity.source, f"{identity.id}#{self._forgotten[identity]}")

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Forget everything."""
        for record in records:
            self._forgotten[record.identity] += 1


class JoiningStore(RenamingStores):
    """Joins source and id."""

    def rename(self, identity: Identity) -> Identity:
        """Lose the border."""
        return Identity("", identity.source + identity.id)


class CaselessStore(RenamingStores):
    """Compares ids as a database with a friendly collation does."""

    def rename(self, identity: Identity) -> Identity:
        """Lose case and trailing blanks."""
        return Identity(identity.source, identity.id.casefold().rstrip(" "))


class ShorteningStore(RenamingStores):
    """Keeps ids in a column of 255 characters."""

    def rename(self, identity: Identity) -> Identity:
        """Cut."""
        return Identity(identity.source, identity.id[:255])


class SharingStore(WrappedStores):
    """Keeps one set of claims for all endpoints."""

    async def store(self, endpoint: str = ENDPOINT) -> WholeStore:
        """Open the one store."""
        return await super().store()


class DenyingStore(WrappedStores):
    """Takes every message for a copy."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Call the new ones done."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.done, unit.new = (*unit.done, *unit.new), ()
        return unit


class SortingStore(WrappedStores):
    """Answers in the order of its claims."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Sort."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.new = tuple(sorted(unit.new, key=lambda message: message.identity))
        return unit


class SilentStore(WrappedStores):
    """Answers about a batch without the messages that need nothing."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Leave out what is done."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.done = ()
        return unit


class ReissuingStore(WrappedStores):
    """Gives effects fresh ids when they are dispatched again."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Re-issue."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.pending = tuple(Record(record.identity, tuple(map(self._reissue, record.effects))) for record in unit.pending)
        return unit

    def _reissue(self, effect: Send) -> Send:
        return replace(effect, message=replace(effect.message, id=effect.message.id + "-again"))


class OnceOwingStore(WrappedStores):
    """Drops a record when it hands it out."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Forget what is pending."""
        unit = await super().begin(store, messages, isolated=isolated)
        await store.forget(unit.pending)
        return unit


class BodyBlindStore(WrappedStores):
    """Does not look at bodies."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Take a clash for a copy."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.done, unit.mismatched = (*unit.done, *unit.mismatched), ()
        return unit


class OverwritingStore(WrappedStores):
    """Lets another body replace the first one's record."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Drop the record of what clashes."""
        unit = await super().begin(store, messages, isolated=isolated)
        await store.forget([Record(message.identity) for message in unit.mismatched])
        return unit


class UnisolatedStore(WrappedStores):
    """Knows no savepoints."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Never isolate."""
        return await super().begin(store, messages, isolated=False)


class EarlyClaimStore(WrappedStores):
    """Commits the claims in a transaction of their own, before the handlers run."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Claim and commit, then open the unit."""
        claims = await store.begin(messages)
        await claims.commit([Record(message.identity) for message in claims.found.new])
        unit = await super().begin(store, [], isolated=isolated)
        found = claims.found
        unit.new, unit.pending, unit.done, unit.mismatched = found.new, found.pending, found.done, found.mismatched
        return unit


class UnsortedStore(WrappedStores):
    """Locks identities one after another, in the order asked."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._locks: dict[Identity, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Lock one by one."""
        for message in messages:
            await self._locks[message.identity].acquire()
            await asyncio.sleep(0)
        return await super().begin(store, messages, isolated=isolated)

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit and unlock."""
        await super().commit(unit, records)
        for message in (*unit.new, *unit.done):
            self._locks[message.identity].release()


class StuckStore(WrappedStores):
    """Keeps what a cancelled `begin` was waiting for."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._free = asyncio.Event()
        self._free.set()

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Never answer again after a cancellation."""
        await self._free.wait()
        try:
            return await super().begin(store, messages, isolated=isolated)
        except asyncio.CancelledError:
            self._free.clear()
            raise


REQUEST = 100
"""Items that one request takes."""


class FirstRequestStore(WrappedStores):
    """Claims as many messages as one request takes, and takes the others for new."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Claim some."""
        unit = await super().begin(store, messages[:REQUEST], isolated=isolated)
        unit.new = (*unit.new, *messages[REQUEST:])
        return unit

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit what is claimed."""
        claimed = {message.identity for message in unit.inner.found.new}
        await super().commit(unit, [record for record in records if record.identity in claimed])
