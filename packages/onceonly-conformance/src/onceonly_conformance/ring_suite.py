"""The contract of the Ring port and of stores with time buckets, rule by rule. Checks run in other processes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from onceonly.model.errors import ConflictError, RetryableError
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.ring import Bucketing, Undecidable
from onceonly.ports.ring import Ring, Rotation, TimeBucketState
from onceonly_conformance.ring_subject import (
    RETENTION_MS,
    WIDTH_MS,
    RingSubject,
    Seen,
    at,
    begun,
    name_of,
    rotate_all,
    rotated,
    see,
    take,
)
from onceonly_conformance.store_subject import ONE_EFFECT, handle, wins
from onceonly_conformance.suite import OTHER, Suite, steps

LONG_MS = 20 * WIDTH_MS
"""After this time every bucket may be rotated."""
ACCEPTED = ("first", "last")
REFUSED = {"old": Undecidable.TOO_OLD, "early": Undecidable.TOO_NEW}
MOMENTS = 6
LONG_WAIT_SECONDS = 1.0
"""Seconds after which a store with short time limits gives up waiting for another unit."""
WAIT_SECONDS = 0.05
"""Seconds that a rotation waits for a unit before the unit commits. Databases may give up after 0.1 seconds."""


class RingSuite(Suite):
    """The rules of a ring. Override `open_ring`."""

    def open_ring(self) -> AbstractAsyncContextManager[RingSubject]:
        """Open an empty store that keeps claims for `RETENTION_MS` milliseconds, and clean up afterwards."""
        raise NotImplementedError

    @asynccontextmanager
    async def _begun(self) -> AsyncIterator[tuple[RingSubject, Bucketing, int]]:
        """Open a store, and begin as `begun` does."""
        async with self.open_ring() as subject:
            yield subject, *await begun(subject)

    # What a unit finds

    async def test_a_message_with_an_instant_is_handled_once(self) -> None:
        """A copy is pending until the effects are forgotten, then done. Another body is a payload mismatch."""
        async with self._begun() as (subject, _, now):
            assert await see(subject, at(now)) == Seen(new=("m1",))
            await handle(subject, at(now), decided=ONE_EFFECT)
            assert await see(subject, at(now)) == Seen(pending=("m1",))
            await (await subject.store()).forget([Record(at(now).identity, ONE_EFFECT)])
            assert await see(subject, at(now)) == Seen(done=("m1",))
            assert await see(subject, at(now, body=b"other")) == Seen(mismatched=("m1",))

    async def test_a_batch_may_mix_messages_with_and_without_an_instant(self) -> None:
        """Also in the first unit of a process. Each message is known to all others afterwards."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(0, "plain"), at(now))
            assert await see(subject, at(now)) == Seen(done=("m1",))
            assert await see(subject, at(0, "plain")) == Seen(done=("plain",))

    async def test_every_slice_of_the_retention_has_its_bucket(self) -> None:
        """One batch may contain messages of every time slice. Each message is known afterwards."""
        async with self._begun() as (subject, bucketing, now):
            asked = [
                at(now + number * WIDTH_MS, f"m{number}")
                for number in range(-bucketing.full, bucketing.buckets - bucketing.full)
            ]
            assert (await see(subject, *asked)).new == tuple(name_of(each.identity) for each in asked)
            await handle(subject, *asked)
            for each in asked:
                assert await see(subject, each) == Seen(done=(name_of(each.identity),))

    async def test_the_ends_of_a_slice_are_in_it(self) -> None:
        """A time slice includes its first and its last millisecond."""
        async with self._begun() as (subject, bucketing, now):
            start = bucketing.start(now)
            asked = (at(start, "first"), at(start + WIDTH_MS - 1, "last"))
            await handle(subject, *asked)
            assert await see(subject, *asked) == Seen(done=("first", "last"))

    async def test_a_message_left_out_of_a_commit_is_new_again(self) -> None:
        """The commit removes the claims of messages that it does not name from their buckets."""
        async with self._begun() as (subject, _, now):
            unit = await (await subject.store()).begin([at(now, "a"), at(now, "b"), at(now - WIDTH_MS, "c")])
            await unit.commit([Record(at(now, "a").identity)])
            seen = await see(subject, at(now, "a"), at(now, "b"), at(now - WIDTH_MS, "c"))
            assert seen == Seen(new=("b", "c"), done=("a",))

    async def test_endpoints_do_not_share_claims_in_a_bucket(self) -> None:
        """Each endpoint has its own claims, even if the tables are shared."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now))
            assert await see(subject, at(now), endpoint=OTHER) == Seen(new=("m1",))

    async def test_two_units_never_both_handle_a_message_with_an_instant(self) -> None:
        """Of concurrent units with one message, exactly one handles it. The others wait or raise ConflictError."""
        async with self._begun() as (subject, _, now):
            tries = [take(subject, at(now), mark=str(number)) for number in range(4)]
            done = await asyncio.gather(*tries, return_exceptions=True)
            lost = [each for each in done if isinstance(each, BaseException)]
            assert [each for each in done if each == ("m1",)] == [("m1",)]
            assert all(isinstance(each, ConflictError) for each in lost)

    async def test_a_unit_that_waits_for_long_gets_the_result_or_a_conflict(self) -> None:
        """`begin` waits for the other unit with the message. When it gives up, it raises ConflictError, and claims nothing."""
        async with self._begun() as (subject, _, now):
            for asked in (at(now), at(0)):
                first = await (await subject.store()).begin([asked])
                second = asyncio.create_task(take(subject, asked, mark="second"))
                await asyncio.wait([second], timeout=min(self.patience, LONG_WAIT_SECONDS))
                won = await wins(first, Record(asked.identity))
                first.abandon()
                async with asyncio.timeout(self.patience):
                    (handled,) = await asyncio.gather(second, return_exceptions=True)
                assert isinstance(handled, ConflictError) or handled == (() if won else ("m1",))
                assert await take(subject, asked, mark="third") == (() if won or handled == ("m1",) else ("m1",))

    async def test_a_message_without_an_instant_is_in_no_bucket(self) -> None:
        """Rotation does not delete the claim of a message without an instant."""
        async with self.open_ring() as subject:
            await begun(subject)
            await handle(subject, at(0))
            await subject.pass_time(LONG_MS)
            assert await rotate_all(subject) == {Rotation.ROTATED}
            assert await see(subject, at(0)) == Seen(done=("m1",))

    async def test_every_message_with_another_body_is_a_payload_mismatch(self) -> None:
        """A unit reports each of several payload mismatches, in every time slice. Copies with the same body are done."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now, "a"), at(now, "b"), at(now, "c"), at(now - WIDTH_MS, "d"))
            asked = (at(now, "a", b"other"), at(now, "b", b"other"), at(now, "c"), at(now - WIDTH_MS, "d", b"other"))
            assert await see(subject, *asked) == Seen(done=("c",), mismatched=("a", "b", "d"))

    # What is refused

    async def test_what_a_person_sends_back_is_new_although_its_bucket_refuses_it(self) -> None:
        """A message that a person retries is new once, although its time is too old or too new. Then it is known.

        A message in a bucket that accepts it is treated as usual.
        """
        async with self._begun() as (subject, bucketing, now):
            await handle(subject, at(now))
            future = now + bucketing.buckets * WIDTH_MS
            asked = (at(1, "old", anyway=True), at(future, "early", anyway=True), at(now, anyway=True))
            assert await see(subject, *asked) == Seen(new=("old", "early"), done=("m1",))
            assert await take(subject, *asked, mark="x") == ("old", "early")
            assert await see(subject, *asked) == Seen(done=("old", "early", "m1"))

    async def test_what_a_person_sends_back_waits_for_its_bucket(self) -> None:
        """A message that a person retries is undecidable until its bucket is rotated."""
        async with self.open_ring() as subject:
            await begun(subject)
            await subject.pass_time(LONG_MS)
            assert await see(subject, at(subject.now(), anyway=True)) == Seen(undecidable=(("m1", Undecidable.SLOT_NOT_READY),))

    async def test_a_message_behind_the_horizon_is_undecidable(self) -> None:
        """A message older than the retention is undecidable. The check changes nothing."""
        async with self._begun() as (subject, _, now):
            old = at(now - RETENTION_MS - WIDTH_MS)
            for _ in range(2):
                assert await see(subject, old) == Seen(undecidable=(("m1", Undecidable.TOO_OLD),))
            assert await take(subject, old, mark="x") == ()

    async def test_a_message_from_the_future_is_undecidable(self) -> None:
        """A message too far in the future is undecidable, because its bucket still holds older claims."""
        async with self._begun() as (subject, bucketing, now):
            early = at(now + (bucketing.buckets - bucketing.full) * WIDTH_MS)
            assert await see(subject, early) == Seen(undecidable=(("m1", Undecidable.TOO_NEW),))

    async def test_a_slice_decides_alike_from_its_first_to_its_last_millisecond(self) -> None:
        """Which messages are accepted, too old, too new or waiting changes with the time slice, and never within one."""
        async with self.open_ring() as subject:
            bucketing, _ = await begun(subject, inside=0)
            for inside in (0, 1, WIDTH_MS // 2, WIDTH_MS - 1):
                await subject.pass_time(inside - subject.now() % WIDTH_MS)
                seen = await see(subject, *_edges(bucketing, subject.now()))
                assert (seen.new, dict(seen.undecidable)) == (ACCEPTED, REFUSED)
                await subject.pass_time(LONG_MS)
                seen = await see(subject, *_edges(bucketing, subject.now())[1:])
                waiting = dict.fromkeys(ACCEPTED, Undecidable.SLOT_NOT_READY)
                assert dict(seen.undecidable) == {**waiting, "early": Undecidable.TOO_NEW}
                await rotate_all(subject)

    async def test_a_message_whose_bucket_is_not_rotated_waits(self) -> None:
        """A message is undecidable until its bucket is rotated, then new."""
        async with self.open_ring() as subject:
            await begun(subject)
            await subject.pass_time(LONG_MS)
            late = at(subject.now())
            for _ in range(2):
                assert await see(subject, late) == Seen(undecidable=(("m1", Undecidable.SLOT_NOT_READY),))
            assert await rotated(subject, late.instant) is Rotation.ROTATED
            assert await take(subject, late, mark="x") == ("m1",)
            assert await see(subject, late) == Seen(done=("m1",))

    async def test_a_undecidable_message_does_not_hold_up_its_batch(self) -> None:
        """The other messages of a batch are handled, whatever makes one undecidable."""
        async with self._begun() as (subject, bucketing, now):
            await handle(subject, at(now, "done"))
            bad = (at(1, "behind"), at(2, "behind too"), at(now + bucketing.buckets * WIDTH_MS, "future"))
            asked = (at(now, "done"), *bad, at(now - WIDTH_MS, "new"), at(0, "plain"))
            seen = await see(subject, *asked)
            assert (seen.new, seen.done, set(seen.undecidable)) == (
                ("new", "plain"),
                ("done",),
                {("behind", Undecidable.TOO_OLD), ("behind too", Undecidable.TOO_OLD), ("future", Undecidable.TOO_NEW)},
            )
            assert await take(subject, *asked, mark="x") == ("new", "plain")

    async def test_a_unit_never_labels_a_bucket(self) -> None:
        """A unit does not label a time bucket. Only rotation does."""
        async with self._begun() as (subject, bucketing, now):
            await handle(subject, at(now))
            before = [bucket.start for bucket in await (await subject.ring()).buckets()]
            await subject.pass_time(bucketing.buckets * WIDTH_MS)
            assert await take(subject, at(subject.now(), "late"), at(0, "plain"), mark="x") == ("plain",)
            assert [bucket.start for bucket in await (await subject.ring()).buckets()] == before
            assert await see(subject, at(now)) == Seen(done=("m1",))

    async def test_what_is_not_rotated_is_known_however_late_a_copy_comes(self) -> None:
        """A claim is found until its bucket is rotated, whatever the clock shows. A pending record can still be dispatched."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now), decided=ONE_EFFECT)
            await handle(subject, at(now, "m2"))
            await subject.pass_time(100 * LONG_MS)
            assert await see(subject, at(now), at(now, "m2")) == Seen(pending=("m1",), done=("m2",))

    # Rotation

    async def test_a_rotated_bucket_has_forgotten_and_refuses(self) -> None:
        """After the rotation, a copy of an earlier message is undecidable (`TOO_OLD`), not new."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now))
            await subject.pass_time(LONG_MS)
            assert await rotated(subject, now) is Rotation.ROTATED
            assert await see(subject, at(now)) == Seen(undecidable=(("m1", Undecidable.TOO_OLD),))

    async def test_a_bucket_that_holds_the_slice_it_should_is_left_alone(self) -> None:
        """The rotation of a current bucket changes nothing."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now))
            assert await rotate_all(subject) == {Rotation.CURRENT}
            assert await see(subject, at(now)) == Seen(done=("m1",))

    async def test_a_bucket_is_not_rotated_before_its_time(self) -> None:
        """A bucket is rotated only when its time slice ended at least a retention ago, exact to the millisecond."""
        async with self._begun() as (subject, bucketing, now):
            await handle(subject, at(now))
            await subject.pass_time(bucketing.start(now) + WIDTH_MS + RETENTION_MS - 1 - subject.now())
            assert await rotated(subject, now) is not Rotation.ROTATED
            assert await see(subject, at(now)) == Seen(done=("m1",))
            await subject.pass_time(1)
            assert await rotated(subject, now) is Rotation.ROTATED

    async def test_a_bucket_that_is_ahead_of_the_clock_is_not_rotated(self) -> None:
        """When the clock is set back, a bucket keeps the newer time slice that it holds, and `buckets` reports it."""
        async with self.open_ring() as subject:
            await begun(subject)
            await subject.pass_time(LONG_MS)
            await rotate_all(subject)
            late = at(subject.now())
            await handle(subject, late)
            await subject.pass_time(-LONG_MS)
            assert {bucket.state for bucket in await (await subject.ring()).buckets()} == {TimeBucketState.AHEAD}
            assert Rotation.ROTATED not in await rotate_all(subject)
            assert await see(subject, late) == Seen(done=("m1",))

    async def test_a_bucket_that_owes_is_not_rotated(self) -> None:
        """A bucket with a pending record of its time slice is not rotated. Records of other time slices do not matter."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now), decided=ONE_EFFECT)
            await handle(subject, at(0, "plain"), decided=ONE_EFFECT)
            await subject.pass_time(LONG_MS)
            assert await rotated(subject, now) is Rotation.PENDING
            assert await rotated(subject, now - WIDTH_MS) is Rotation.ROTATED
            assert await see(subject, at(now)) == Seen(pending=("m1",))
            await (await subject.store()).forget([Record(at(now).identity, ONE_EFFECT)])
            assert await rotated(subject, now) is Rotation.ROTATED

    async def test_a_pending_record_of_an_earlier_slice_keeps_no_later_bucket(self) -> None:
        """A bucket is rotated although a record of an earlier time slice is pending."""
        async with self._begun() as (subject, _, now):
            await handle(subject, at(now - WIDTH_MS), decided=ONE_EFFECT)
            await subject.pass_time(LONG_MS)
            assert await rotated(subject, now) is Rotation.ROTATED
            assert await rotated(subject, now - WIDTH_MS) is Rotation.PENDING

    async def test_processes_that_begin_at_once_cut_time_alike(self) -> None:
        """One process initializes the ring. The others read its time slices, and label no bucket again."""
        async with self.open_ring() as subject:
            rings = [await subject.ring() for _ in range(3)]
            found = await asyncio.gather(*map(_bucketing, rings))
            assert found == [found[0]] * len(rings)
            assert {bucket.state for bucket in await rings[0].buckets()} == {TimeBucketState.CURRENT}

    async def test_a_bucket_in_use_is_not_rotated_under_a_unit(self) -> None:
        """When a unit uses the bucket, the rotation returns BUSY, or the unit's commit raises ConflictError."""
        async with self._begun() as (subject, _, now):
            await subject.pass_time(LONG_MS)
            unit = await (await subject.store()).begin([at(now)])
            assert [name_of(each.identity) for each in unit.found.new] == ["m1"]
            outcome = await rotated(subject, now)
            try:
                await unit.commit([Record(at(now).identity)])
            except ConflictError:
                assert outcome is Rotation.ROTATED
            else:
                assert outcome is Rotation.BUSY
                assert await see(subject, at(now)) == Seen(done=("m1",))

    async def test_what_is_committed_while_a_rotation_waits_is_not_deleted(self) -> None:
        """A rotation checks the bucket after it has waited for a unit. The unit's record then keeps the bucket."""
        async with self._begun() as (subject, bucketing, _):
            ring, store = await subject.ring(), await subject.store()
            for by_rows in (False, True):
                late = at(subject.now())
                await subject.pass_time(LONG_MS)
                unit = await store.begin([late])
                rotating = asyncio.create_task(ring.rotate(bucketing.bucket(late.instant), by_rows=by_rows))
                await asyncio.wait([rotating], timeout=WAIT_SECONDS)  # it may have to wait for the unit
                won = await wins(unit, Record(late.identity, ONE_EFFECT))
                async with asyncio.timeout(self.patience):
                    outcome = await rotating
                assert (outcome is Rotation.ROTATED) is not won
                if won:
                    assert await see(subject, late) == Seen(pending=("m1",))
                await store.forget([Record(late.identity, ONE_EFFECT)])
                await rotate_all(subject)

    async def test_rotating_beside_copies_never_makes_one_new(self) -> None:
        """A rotation at any point of a unit, with or without `by_rows`, does not make a copy new."""
        async with self._begun() as (subject, bucketing, _):
            ring, store = await subject.ring(), await subject.store()
            for moment in range(MOMENTS):
                now = subject.now()
                await ring.rotate(bucketing.bucket(now))
                await handle(subject, at(now, f"m{moment}"), store=store)
                await subject.pass_time(LONG_MS)
                copy = asyncio.ensure_future(take(subject, at(now, f"m{moment}"), mark="copy", store=store))
                await steps(4 * moment)
                await ring.rotate(bucketing.bucket(now), by_rows=moment % 2 == 1)
                (handled,) = await asyncio.gather(copy, return_exceptions=True)
                assert handled == () or isinstance(handled, ConflictError)

    async def test_what_is_handled_while_its_bucket_is_rotated_stays(self) -> None:
        """A message of the new time slice waits for a rotation that is under way, or its claim survives it."""
        async with self._begun() as (subject, bucketing, _):
            ring, store = await subject.ring(), await subject.store()
            for moment in range(MOMENTS):
                await subject.pass_time(LONG_MS)
                late = at(subject.now(), f"m{moment}")
                rotating = asyncio.ensure_future(ring.rotate(bucketing.bucket(late.instant), by_rows=moment % 2 == 1))
                await steps(4 * moment)
                try:
                    taken = await take(subject, late, mark="x", store=store)
                except ConflictError:
                    taken = ()
                await rotating
                assert await see(subject, late, store=store) != Seen(new=taken or ("never",))

    async def test_two_who_rotate_one_bucket_rotate_it_once(self) -> None:
        """Of concurrent rotations of a bucket, exactly one rotates it.

        The others return HELD, CURRENT or BUSY.
        """
        async with self._begun() as (subject, _, now):
            await subject.pass_time(LONG_MS)
            outcomes = await asyncio.gather(*(rotated(subject, now) for _ in range(3)))
            assert outcomes.count(Rotation.ROTATED) == 1
            assert set(outcomes) <= {Rotation.ROTATED, Rotation.HELD, Rotation.CURRENT, Rotation.BUSY}

    # Looking

    async def test_buckets_say_what_they_hold_and_what_keeps_them(self) -> None:
        """`buckets` returns the current and the wanted time slice, the pending records, and the delay of the rotation."""
        async with self._begun() as (subject, bucketing, now):
            fresh = await (await subject.ring()).buckets()
            assert [bucket.number for bucket in fresh] == list(range(bucketing.buckets))
            assert {(bucket.state, bucket.pending, bucket.late) for bucket in fresh} == {(TimeBucketState.CURRENT, 0, 0)}
            assert {bucket.start for bucket in fresh} == {bucket.wanted for bucket in fresh}
            await handle(subject, at(now), at(now, "m2"), decided=ONE_EFFECT)
            await subject.pass_time(bucketing.buckets * WIDTH_MS)
            bucket = (await (await subject.ring()).buckets())[bucketing.bucket(now)]
            assert (bucket.start, bucket.end, bucket.pending) == (bucketing.start(now), bucketing.start(now) + WIDTH_MS, 2)
            assert (bucket.state, bucket.wanted) == (TimeBucketState.OLD, bucketing.start(now) + bucketing.buckets * WIDTH_MS)
            assert bucket.late == subject.now() - bucket.wanted + (bucketing.buckets - bucketing.full - 1) * WIDTH_MS

    async def test_the_ring_tells_the_time_that_decides(self) -> None:
        """`now` returns the database's time, and `bucketing` the same values in every process."""
        async with self._begun() as (subject, bucketing, _):
            ring = await subject.ring()
            assert (bucketing.width, bucketing.retention) == (WIDTH_MS, RETENTION_MS)
            before = await ring.now()
            await subject.pass_time(WIDTH_MS)
            assert await ring.now() - before >= WIDTH_MS

    # Claims without an instant

    async def test_a_claim_without_an_instant_expires_after_the_retention(self) -> None:
        """`remove_expired` deletes at most `limit` claims, only after the retention, and none with pending effects."""
        async with self.open_ring() as subject:
            await begun(subject)
            await handle(subject, at(0, "a"), at(0, "b"))
            await handle(subject, at(0, "pending"), decided=ONE_EFFECT)
            await subject.pass_time(RETENTION_MS)
            ring = await subject.ring()
            assert await ring.remove_expired() == 0
            assert await see(subject, at(0, "a"), at(0, "b")) == Seen(done=("a", "b"))
            await subject.pass_time(1)
            assert [await ring.remove_expired(1) for _ in range(3)] == [1, 1, 0]
            assert await see(subject, at(0, "a"), at(0, "b"), at(0, "pending")) == Seen(new=("a", "b"), pending=("pending",))

    # Leading

    async def test_there_is_one_leader_at_a_time(self) -> None:
        """A second process learns at once that it is not the leader. It can lead when the first has ended."""
        async with self.open_ring() as subject:
            first, second = await subject.ring(), await subject.ring()
            async with first.leading() as leads:
                assert leads
                async with second.leading() as leads_too:
                    assert not leads_too
            async with second.leading() as leads:
                assert leads


def _edges(bucketing: Bucketing, now: int) -> tuple[Message, ...]:
    """Return the newest message that is too old, the oldest and the newest that are accepted, and the first too new one."""
    start = now - now % WIDTH_MS
    first, early = start - bucketing.full * WIDTH_MS, start + (bucketing.buckets - bucketing.full) * WIDTH_MS
    return at(first - 1, "old"), at(first, "first"), at(early - 1, "last"), at(early, "early")


async def _bucketing(ring: Ring) -> Bucketing:
    """Read how time is cut. Other processes that decide it at the same moment may be in the way."""
    while True:
        try:
            return await ring.bucketing()
        except RetryableError:
            await steps(1)
