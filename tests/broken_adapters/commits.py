"""Stores that are wrong about what they commit, keep and offer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count
from typing import Any

from onceonly.model.errors import CommitRefused, OnceOnlyError, OutcomeUnknown
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.store import Resources, Unit
from onceonly_conformance.samples import effects
from onceonly_conformance.store_subject import LATER, StoreSubject, WholeStore
from tests.broken_adapters.wrapped_stores import WrappedResources, WrappedStores, WrappedUnit


class EagerStore(WrappedStores):
    """Makes every write visible at once, as a connection in autocommit does."""

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Write in a unit of its own."""
        unit = await (await self.inner.store()).begin([])
        await self.inner.write(unit.resources, key, value)
        await unit.commit([])


class VagueStore(WrappedStores):
    """Does not say whose fault it was."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Translate every error into the same."""
        try:
            await unit.inner.commit(records)
        except OnceOnlyError as error:
            raise OutcomeUnknown("the commit did not work") from error


class ForgivingStore(WrappedStores):
    """Takes a refused commit for one that worked."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Hide the error."""
        with suppress(CommitRefused):
            await unit.inner.commit(records)


class ClaimlessStore(WrappedStores):
    """Commits the business data only."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Leave out the records, and with them the claims."""
        await unit.inner.commit([])


class TwoStepStore(WrappedStores):
    """Commits the business data first, and the claims and records right after."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit twice."""
        await unit.inner.commit([])
        await asyncio.sleep(0)
        again = await unit.store.begin(unit.new)
        await again.commit(records)


class EffectsOnlyStore(WrappedStores):
    """Keeps the claims of messages with effects only."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Leave out the others."""
        await unit.inner.commit([record for record in records if record.effects])


class HoardingStore(WrappedStores):
    """Keeps a record for every message."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Pretend that there are effects."""
        await unit.inner.commit([Record(record.identity, record.effects or effects()) for record in records])


class GreedyStore(WrappedStores):
    """Keeps the claims of failed and postponed messages too."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit every claim."""
        handled = {record.identity for record in records}
        rest = [Record(message.identity) for message in unit.new if message.identity not in handled]
        await unit.inner.commit([*records, *rest])


class IdleStore(WrappedStores):
    """Commits nothing when nothing was claimed."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Save the round trip."""
        if records:
            await unit.inner.commit(records)
        else:
            unit.inner.abandon()


class RepeatableStore(WrappedStores):
    """Accepts a second commit."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Do nothing the second time."""
        if not unit.is_over:
            await unit.inner.commit(records)


class ClingingStore(WrappedStores):
    """Does not let go of an abandoned unit."""

    def abandon(self, unit: WrappedUnit) -> None:
        """Do nothing."""


class StrictStore(WrappedStores):
    """Complains about a unit that is over."""

    def abandon(self, unit: WrappedUnit) -> None:
        """Abandon once."""
        if unit.is_over:
            raise LookupError("there is no such unit")
        unit.inner.abandon()


class SwallowingResources(WrappedResources):
    """Resources that hide a handler's error."""

    def attempt(self) -> AbstractAsyncContextManager[None]:
        """Enclose, and hide."""
        return self._attempt()

    @asynccontextmanager
    async def _attempt(self) -> AsyncIterator[None]:
        with suppress(Exception):
            async with self.inner.attempt():
                yield


class SwallowingStore(WrappedStores):
    """Hides what a handler raises."""

    def resources(self, unit: Unit) -> Resources:
        """Hide errors."""
        return SwallowingResources(unit.resources)


class MuteResources(WrappedResources):
    """Resources that lose what a synchronous handler gives back."""

    async def run_sync(self, function: Callable[[Callable[[type], object]], Any]) -> object:
        """Run it, and give nothing."""
        await self.inner.run_sync(function)
        return None


class MuteStore(WrappedStores):
    """Loses the answers of synchronous handlers."""

    def resources(self, unit: Unit) -> Resources:
        """Lose answers."""
        return MuteResources(unit.resources)


class AgreeableResources(WrappedResources):
    """Resources that have something for everyone."""

    def get(self, kind: type) -> object:
        """Return None for what there is not."""
        with suppress(LookupError):
            return self.inner.get(kind)
        return None


class AgreeableStore(WrappedStores):
    """Offers what it does not have."""

    def resources(self, unit: Unit) -> Resources:
        """Offer anything."""
        return AgreeableResources(unit.resources)


class UnforgettingStore(WrappedStores):
    """Keeps records for ever."""

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Do nothing."""


class OnceForgettingStore(WrappedStores):
    """Complains when there is nothing to forget."""

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Look first."""
        there = {record.identity for record in await store.undispatched(LATER, 1000)}
        if not there.issuperset(record.identity for record in records):
            raise LookupError("there is no such record")
        await store.forget(records)


class SweepingStore(WrappedStores):
    """Forgets more than it was asked to."""

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Forget everything."""
        await store.forget(await store.undispatched(LATER, 1000))


class TombstoneStore(WrappedStores):
    """Writes a claim for what it is asked to forget."""

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Forget, and claim."""
        await store.forget(records)
        gone = [record.identity for record in records]
        unit = await store.begin([Message(id=each.id, source=each.source, type="", body=b"") for each in gone])
        await unit.commit([Record(message.identity) for message in unit.found.new])


class FickleStore(WrappedStores):
    """Gives a message another unit key every time."""

    def __init__(self, inner: StoreSubject) -> None:
        super().__init__(inner)
        self._numbers = count()

    def unit_key(self, store: WholeStore, message: Message) -> str:
        """Count."""
        return str(next(self._numbers))


class BlindStore(WrappedStores):
    """Finds no record behind its fence."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence, and look at nothing."""
        await super().fence(store, unit, identity, message)
        return None


class RecordsOnlyStore(WrappedStores):
    """Finds behind its fence what still has effects to dispatch, and nothing else."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Leave out what is done."""
        found = await super().fence(store, unit, identity, message)
        return found if found is not None and found.is_pending else None


class FencelessStore(WrappedStores):
    """Looks for a record, and stops no attempt."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Look."""
        return next(iter(await store.find([identity])), None)


class WalledStore(WrappedStores):
    """Fences by a claim, and leaves it."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Claim what is new."""
        found = await super().fence(store, unit, identity, message)
        if found is None and message is not None:
            claimed = await store.begin([message])
            await claimed.commit([Record(each.identity) for each in claimed.found.new])
        return found


class FirstReleaseStore(WrappedStores):
    """Releases as many claims as one request takes. The others stay."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit the claims of others as if they were handled."""
        handled = {record.identity for record in records}
        left = [message for message in unit.inner.found.new if message.identity not in handled]
        await super().commit(unit, [*records, *(Record(message.identity) for message in left[100:])])
