"""Rings that forget too early, too late, or what they must not; and stores that look at their labels in a wrong way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from onceonly.model.errors import CommitFailed, ConflictError
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import ANYWAY, Bucketing, Undecidable
from onceonly.ports.ring import PENDING_COUNTED, Ring, Rotation, TimeBucket, TimeBucketState
from onceonly.ports.store import UndecidableMessage
from onceonly_conformance.ring_subject import RETENTION_MS, WIDTH_MS, RingSubject
from onceonly_conformance.ring_suite import WAIT_SECONDS
from onceonly_conformance.store_subject import LATER, WholeStore
from onceonly_conformance.suite import ENDPOINT, steps
from tests.broken_adapters.wrapped_rings import WrappedRings
from tests.broken_adapters.wrapped_stores import WrappedUnit


def dated(message: Message, instant: int) -> Message:
    """Return a message that a store claims by another instant than its own, under the same identity."""
    copy = replace(message)
    copy.__dict__.update(instant=instant)
    return copy


class Unlabelled(WrappedRings):
    """Claims in no bucket what `is_wrongly_new` says of it: as if its label had not been in the way."""

    def is_wrongly_new(self, undecidable: UndecidableMessage) -> bool:
        """Tell."""
        return False

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Call them new."""
        unit = await super().begin(store, messages, isolated=isolated)
        wrong = [each for each in unit.undecidable if self.is_wrongly_new(each)]
        unit.undecidable = tuple(each for each in unit.undecidable if each not in wrong)
        unit.new = (*unit.new, *(each.message for each in wrong))
        return unit

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Commit what there is a claim for."""
        known = {message.identity for message in unit.inner.found.new}
        await super().commit(unit, [record for record in records if record.identity in known])


class LabelBlindRing(Unlabelled):
    """Never looks at a label: what is behind the horizon is new again."""

    def is_wrongly_new(self, undecidable: UndecidableMessage) -> bool:
        """Take all of them."""
        return True


class BoldRing(Unlabelled):
    """Takes what its bucket is not ready for."""

    def is_wrongly_new(self, undecidable: UndecidableMessage) -> bool:
        """Take those that should wait."""
        return undecidable.reason is Undecidable.SLOT_NOT_READY


class FarsightedRing(Unlabelled):
    """Takes what comes from the future."""

    def is_wrongly_new(self, undecidable: UndecidableMessage) -> bool:
        """Take those."""
        return undecidable.reason is Undecidable.TOO_NEW


class EarlierLookRing(Unlabelled):
    """Looks at the labels in an earlier step than it claims: a bucket that is rotated in between lets copies through."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Look, wait, claim; what was fine when it was looked at is new, and not looked at again."""
        ring = await self.rings.ring()
        bucketing, held = await ring.bucketing(), {bucket.start for bucket in await ring.buckets()}
        self._fine = {m.identity for m in messages if bucketing.start(m.instant) in held}
        await steps(8)
        return await super().begin(store, messages, isolated=isolated)

    def is_wrongly_new(self, undecidable: UndecidableMessage) -> bool:
        """Take those whose label was right, then."""
        return undecidable.message.identity in self._fine


class AnySliceRing(WrappedRings):
    """Rotates nothing while any record of a time slice is pending."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Look at all of them."""
        if any(bucket.pending for bucket in await ring.buckets()):
            return Rotation.PENDING
        return await super().rotate(ring, number, by_rows=by_rows)


class DecidingRing(WrappedRings):
    """Has each process cut time anew."""

    def __init__(self, inner: RingSubject) -> None:
        super().__init__(inner)
        self._readers = 0

    async def bucketing(self, ring: Ring) -> Bucketing:
        """Return later processes other time slices, when several ask at once."""
        self._readers += 1
        await steps(1)
        found, asked, self._readers = await super().bucketing(ring), self._readers, 0
        return Bucketing(2 * found.width) if asked > 1 else found


class FirstCheckRing(WrappedRings):
    """Checks a bucket before it waits for the units that use it, and not after."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Wait, and delete the records that were committed during the wait."""
        found = await super().rotate(ring, number, by_rows=by_rows)
        if found is not Rotation.BUSY:
            return found
        while found is Rotation.BUSY:
            await steps(1)
            found = await super().rotate(ring, number, by_rows=by_rows)
        store = await self.store()
        await store.forget(await store.undispatched(LATER, 100))
        return await super().rotate(ring, number, by_rows=by_rows)


class LabellingRing(WrappedRings):
    """Has units label buckets: whoever comes first for a slice takes its bucket, whatever is in it."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Rotate what is not rotated, then begin again."""
        unit = await super().begin(store, messages, isolated=isolated)
        if not any(each.reason is Undecidable.SLOT_NOT_READY for each in unit.undecidable):
            return unit
        self.abandon(unit)
        ring = await self.rings.ring()
        for each in unit.undecidable:
            await ring.rotate((await ring.bucketing()).bucket(each.message.instant))
        return await super().begin(store, messages, isolated=isolated)


class StallingRing(WrappedRings):
    """Bars a whole batch for one message of it."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Keep nothing but what is undecidable."""
        unit = await super().begin(store, messages, isolated=isolated)
        if unit.undecidable:
            unit.new, unit.done, unit.pending = (), (), ()
        return unit


class ClockRing(WrappedRings):
    """Refuses by a computed horizon what its bucket knows yet."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Bar what is older than the retention."""
        horizon = self.now() - RETENTION_MS - WIDTH_MS
        late = [message for message in messages if 0 < message.instant < horizon]
        unit = await super().begin(store, [message for message in messages if message not in late], isolated=isolated)
        unit.undecidable = (*unit.undecidable, *(UndecidableMessage(message, Undecidable.TOO_OLD) for message in late))
        return unit


class InstantlessRing(WrappedRings):
    """Puts no claim into a bucket."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Lose the instants."""
        of = {message.identity: message for message in messages}
        unit = await super().begin(store, [dated(message, 0) for message in messages], isolated=isolated)
        unit.new = tuple(of[message.identity] for message in unit.new)
        unit.done = tuple(of[message.identity] for message in unit.done)
        unit.mismatched = tuple(of[message.identity] for message in unit.mismatched)
        return unit


class FirstInstantRing(InstantlessRing):
    """Puts no claim into a bucket if the first message of the batch has no instant."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Look at the first."""
        kind = WrappedRings if messages and messages[0].instant else InstantlessRing
        return await kind.begin(self, store, messages, isolated=isolated)


class DatingRing(WrappedRings):
    """Gives messages without an instant the one of their arrival."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Date them."""
        now = self.now()
        asked = [message if message.instant else dated(message, now) for message in messages]
        return await super().begin(store, asked, isolated=isolated)


class StrictRing(WrappedRings):
    """Refuses also what a person has sent back."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Lose the mark."""
        asked = [replace(m, extensions=tuple(each for each in m.extensions if each[0] != ANYWAY)) for m in messages]
        return await super().begin(store, asked, isolated=isolated)


class ObedientRing(WrappedRings):
    """Claims what a person has sent back without its instant, whether its bucket would have taken it or not."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Lose the instants of those."""
        asked = [dated(message, 0) if message.extension(ANYWAY) else message for message in messages]
        return await super().begin(store, asked, isolated=isolated)


class SharingRing(WrappedRings):
    """Keeps one set of claims for all endpoints."""

    async def store(self, endpoint: str = ENDPOINT) -> WholeStore:
        """Open the one store."""
        return await super().store()


class ForgetfulRing(InstantlessRing):
    """Claims copies of messages with an instant under names of their own."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Never claim the same twice."""
        unit = await WrappedRings.begin(self, store, messages, isolated=isolated)
        with_instant = [message for message in unit.done if message.instant]
        unit.new = (*unit.new, *with_instant)
        unit.done = tuple(message for message in unit.done if not message.instant)
        return unit


class GreedyRing(WrappedRings):
    """Commits every claim of a unit, also of messages that were left out."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Add what is missing."""
        there = {record.identity for record in records}
        await super().commit(unit, [*records, *(Record(m.identity) for m in unit.new if m.identity not in there)])


class EdgyRing(WrappedRings):
    """Does not claim at the very beginning of a slice, where its label is."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Take what is there for new."""
        unit = await super().begin(store, messages, isolated=isolated)
        edge = [message for message in unit.done if message.instant and message.instant % WIDTH_MS == 0]
        unit.new, unit.done = (*unit.new, *edge), tuple(message for message in unit.done if message not in edge)
        return unit


class EverRing(WrappedRings):
    """Says that it rotated, and does not."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Do nothing."""
        return Rotation.ROTATED


class BoastingRing(WrappedRings):
    """Says that it rotated whatever came of it."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Rotate."""
        await ring.rotate(number, by_rows=by_rows)
        return Rotation.ROTATED


class IdleRing(WrappedRings):
    """Never rotates."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Find a reason."""
        return Rotation.BUSY


class CarelessRing(WrappedRings):
    """Forgets the records of a bucket with it."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Drop what is in the way."""
        outcome = await ring.rotate(number, by_rows=by_rows)
        if outcome is Rotation.PENDING:
            store = await self.rings.store()
            await store.forget(await store.undispatched(1 << 52, PENDING_COUNTED))
            outcome = await ring.rotate(number, by_rows=by_rows)
        return outcome


class ImpatientRing(WrappedRings):
    """Counts the retention from the middle of a slice."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Move the clock."""
        await self.pass_time(WIDTH_MS // 2)
        outcome = await ring.rotate(number, by_rows=by_rows)
        await self.pass_time(-WIDTH_MS // 2)
        return outcome


class RoundingRing(WrappedRings):
    """Rounds the instant of a message to the nearest time slice when its bucket is not ready."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Take those at the end of the last slice for messages from the future."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.undecidable = tuple(
            each._replace(reason=Undecidable.TOO_NEW) if self._is_rounded_up(each) else each for each in unit.undecidable
        )
        return unit

    def _is_rounded_up(self, undecidable: UndecidableMessage) -> bool:
        instant = undecidable.message.instant
        is_late = instant - instant % WIDTH_MS > self.now() + 2 * WIDTH_MS
        return undecidable.reason is Undecidable.SLOT_NOT_READY and is_late and instant % WIDTH_MS > WIDTH_MS // 2


class ObeyingRing(WrappedRings):
    """Rotates to the slice that its clock names, although the bucket holds a newer one."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Report that it did."""
        outcome = await ring.rotate(number, by_rows=by_rows)
        return Rotation.ROTATED if outcome is Rotation.EARLY else outcome


class BreakingRing(WrappedRings):
    """Rotates under units: they commit as if nothing had been."""

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Take a conflict for a success."""
        if any(message.instant for message in unit.new) and self._is_broken:
            unit.inner.abandon()
            return
        await super().commit(unit, records)

    _is_broken = False

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Break in."""
        outcome = await ring.rotate(number, by_rows=by_rows)
        self._is_broken = outcome is Rotation.BUSY
        return outcome


class RelabellingRing(WrappedRings):
    """Labels a bucket, and empties it a moment later: what was claimed meanwhile is gone."""

    def __init__(self, inner: RingSubject) -> None:
        super().__init__(inner)
        self._lost: set[object] = set()
        self._is_at_it = False

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Take some time for it."""
        self._is_at_it = True
        outcome = await ring.rotate(number, by_rows=by_rows)
        await steps(40)
        self._is_at_it = False
        return outcome

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Note what is lost."""
        await super().commit(unit, records)
        if self._is_at_it:
            self._lost |= {message.identity for message in unit.new}

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Take what was lost for new."""
        unit = await super().begin(store, messages, isolated=isolated)
        lost = [message for message in unit.done if message.identity in self._lost]
        unit.new, unit.done = (*unit.new, *lost), tuple(message for message in unit.done if message not in lost)
        return unit


class TwiceRing(WrappedRings):
    """Has nobody wait for who is at it: several rotate one bucket."""

    async def rotate(self, ring: Ring, number: int, *, by_rows: bool) -> Rotation:
        """Say what was found a moment ago."""
        (bucket,) = (each for each in await ring.buckets() if each.number == number)
        await steps(5)
        outcome = await ring.rotate(number, by_rows=by_rows)
        return Rotation.ROTATED if bucket.state is TimeBucketState.OLD and outcome is Rotation.CURRENT else outcome


class BlandRing(WrappedRings):
    """Shows every bucket as it should be."""

    async def buckets(self, ring: Ring) -> Sequence[TimeBucket]:
        """Smooth."""
        return tuple(replace(bucket, state=TimeBucketState.CURRENT, pending=0, late=0) for bucket in await ring.buckets())


class StoppedRing(WrappedRings):
    """Reads a clock that stands."""

    async def now_of(self, ring: Ring) -> int:
        """Return the same."""
        return RETENTION_MS


class HastyRing(WrappedRings):
    """Removes claims before their time."""

    async def remove_expired(self, ring: Ring, limit: int) -> int:
        """Be a slice ahead."""
        await self.pass_time(WIDTH_MS)
        gone = await ring.remove_expired(limit)
        await self.pass_time(-WIDTH_MS)
        return gone


class UnlimitedRing(WrappedRings):
    """Removes all at once."""

    async def remove_expired(self, ring: Ring, limit: int) -> int:
        """Ask for more."""
        return await ring.remove_expired(1000)


class ManyHeadedRing(WrappedRings):
    """Lets everybody lead."""

    @asynccontextmanager
    async def leading(self, ring: Ring) -> AsyncIterator[bool]:
        """Say yes."""
        yield True


class LosingRing(WrappedRings):
    """Lets two units commit the same claim: who loses is told that it won."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Take those done for new, once each."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.new, unit.done = (*unit.new, *unit.done), ()
        return unit

    async def commit(self, unit: WrappedUnit, records: Sequence[Record]) -> None:
        """Swallow the conflict."""
        known = {message.identity for message in unit.inner.found.new}
        try:
            await super().commit(unit, [record for record in records if record.identity in known])
        except ConflictError:
            return


class FirstMismatchRing(WrappedRings):
    """Reports one payload mismatch of a unit, and takes the others for copies."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Keep the first."""
        unit = await super().begin(store, messages, isolated=isolated)
        unit.done, unit.mismatched = (*unit.done, *unit.mismatched[1:]), unit.mismatched[:1]
        return unit


class OffendedRing(WrappedRings):
    """Reports an outage when it waits too long for another unit."""

    async def begin(self, store: WholeStore, messages: Sequence[Message], *, isolated: bool) -> WrappedUnit:
        """Wait for a moment."""
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                return await super().begin(store, messages, isolated=isolated)
        except TimeoutError as error:
            raise CommitFailed("the store does not answer") from error
