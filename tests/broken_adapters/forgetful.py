"""Stores that are wrong about forgetting, where another place knows what is done."""

from collections.abc import Sequence

from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly_conformance.forgetful_suite import ForgetfulSubject
from onceonly_conformance.store_subject import LATER, WholeStore
from onceonly_conformance.suite import ENDPOINT
from tests.broken_adapters.wrapped_stores import WrappedStore, WrappedStores, WrappedUnit


class WrappedForgetful(WrappedStores):
    """A subject that passes everything on."""

    inner: ForgetfulSubject

    async def traces(self) -> int:
        """Count what is left."""
        return await self.inner.traces()


class RememberingForgetful(WrappedForgetful):
    """Forgets nothing: the claims stay."""

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Do nothing."""


class EffectsOnlyForgetful(WrappedForgetful):
    """Says that there is nothing to forget of a message without effects."""

    async def store(self, endpoint: str = ENDPOINT) -> WholeStore:
        """Open a store."""
        return _EffectsOnly(self, await self.inner.store(endpoint))


class _EffectsOnly(WrappedStore):
    def keeps(self, record: Record) -> bool:
        """Look at the effects."""
        return bool(record.effects)


class TokenLosingForgetful(WrappedForgetful):
    """Gives back the effects of a record, and nothing else."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Strip what is pending."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.pending = tuple(Record(record.identity, record.effects, unit=record.unit) for record in unit.pending)
        return unit


class HastyForgetful(WrappedForgetful):
    """Forgets a message without effects as soon as it is committed."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit and forget."""
        await super().commit(unit, records)
        await unit.store.forget([record for record in records if not record.effects])


class SweepingForgetful(WrappedForgetful):
    """Forgets whatever it knows with the one that it was asked to forget."""

    def __init__(self, inner: ForgetfulSubject) -> None:
        super().__init__(inner)
        self._known: list[Record] = []

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit."""
        await super().commit(unit, records)
        self._known += records

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Forget them all."""
        await super().forget(store, self._known)


class TombstoneForgetful(WrappedForgetful):
    """Leaves a mark when there is nothing to forget."""

    async def forget(self, store: WholeStore, records: Sequence[Record]) -> None:
        """Forget, or claim."""
        before = await self.traces()
        await super().forget(store, records)
        if not before:
            await _claim(store, records[0].identity)


class EarlyForgetful(WrappedForgetful):
    """Claims before its unit is committed."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Claim at once."""
        unit = await super().begin(store, messages, isolated=isolated)
        await _claim(store, messages[0].identity)
        return unit


class OverwritingForgetful(WrappedForgetful):
    """Saves what lost once more, on top of what won."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit, whatever happened since."""
        try:
            await super().commit(unit, records)
        except ConflictError:
            await (await unit.store.begin(unit.new)).commit(records)


class BlindForgetful(WrappedForgetful):
    """Fences without a look."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Find nothing."""
        await super().fence(store, unit, identity, message)
        return None


class UnwaitingForgetful(WrappedForgetful):
    """Looks for a record, and stops no attempt."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Look."""
        return next((each for each in await store.undispatched(LATER, 100) if each.identity == identity), None)


class ClaimingForgetful(WrappedForgetful):
    """Fences by a claim, and leaves it."""

    async def fence(self, store: WholeStore, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Claim what is new."""
        found = await super().fence(store, unit, identity, message)
        if found is None:
            await _claim(store, identity)
        return found


async def _claim(store: WholeStore, identity: Identity) -> None:
    unit = await store.begin([Message(id=identity.id, source=identity.source, type="claimed", body=b"")])
    await unit.commit([Record(message.identity) for message in unit.found.new])
