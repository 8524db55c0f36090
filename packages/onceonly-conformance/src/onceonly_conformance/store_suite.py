"""The contract of the Store and Unit ports, rule by rule. Every check runs in another process than the write."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from onceonly.model.errors import CommitRefused, OnceOnlyError
from onceonly.model.record import Record
from onceonly.ports.store import BeginResult
from onceonly_conformance.samples import effects, message, rich_message
from onceonly_conformance.store_subject import (
    LATER,
    MOMENT_SECONDS,
    ONE_EFFECT,
    FenceResult,
    StoreSubject,
    cancel,
    compete,
    every_one_is_new,
    fence,
    handle,
    look,
    undispatched,
    unit_of,
    wins,
    work,
    write,
    write_and_fail,
)
from onceonly_conformance.suite import OTHER, Suite, raises, steps


class StoreSuite(Suite):
    """The rules of a store. Override `open_store`."""

    def open_store(self) -> AbstractAsyncContextManager[StoreSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    # What `begin` finds

    async def test_a_message_never_seen_is_new(self) -> None:
        """The first claim of an identity succeeds."""
        async with self.open_store() as subject:
            assert await look(subject, message()) == BeginResult(new=(message(),))

    async def test_new_messages_are_in_the_order_asked(self) -> None:
        """`begin` returns new messages in the order in which they were passed, even if it sorts its claims."""
        asked = tuple(message(name) for name in ("m3", "m1", "m9", "m2", "m7"))
        async with self.open_store() as subject:
            assert (await look(subject, *asked)).new == asked

    async def test_a_handled_message_with_effects_is_pending(self) -> None:
        """`begin` returns the record of a handled message until its effects are dispatched and the record is deleted."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            assert await look(subject, message()) == BeginResult(pending=(Record(message().identity, ONE_EFFECT),))

    async def test_owed_effects_are_identical_to_those_committed(self) -> None:
        """Pending effects have the ids, bodies and order with which they were committed, whatever they contain."""
        async with self.open_store() as subject:
            await handle(subject, rich_message(), decided=effects())
            assert (await look(subject, rich_message())).pending == (Record(rich_message().identity, effects()),)

    async def test_looking_at_an_pending_message_changes_nothing(self) -> None:
        """`begin` does not change a pending record. The worker may crash between `begin` and dispatch."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            first = await look(subject, message())
            assert await look(subject, message()) == first

    async def test_a_handled_message_without_effects_is_done(self) -> None:
        """The claim of a handled message stays."""
        async with self.open_store() as subject:
            await handle(subject, message())
            assert await look(subject, message()) == BeginResult(done=(message(),))

    async def test_a_handled_message_without_effects_leaves_no_record(self) -> None:
        """A message without effects leaves no pending record."""
        async with self.open_store() as subject:
            await handle(subject, message())
            assert await undispatched(subject) == ()

    async def test_another_body_is_mismatched(self) -> None:
        """A known identity with another body is a payload mismatch, neither new nor done."""
        other = message(body=b"{}")
        async with self.open_store() as subject:
            await handle(subject, message())
            assert await look(subject, other) == BeginResult(mismatched=(other,))

    async def test_another_body_is_mismatched_with_an_pending_message_too(self) -> None:
        """`begin` does not return a pending record for a message with another body."""
        other = message(body=b"{}")
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            assert await look(subject, other) == BeginResult(mismatched=(other,))

    async def test_a_clash_leaves_the_first_message_as_it_was(self) -> None:
        """A payload mismatch does not change the claim and the record of the first message, even if the unit commits."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            await handle(subject, message(body=b"{}"), message("m2"))
            assert (await look(subject, message())).pending == (Record(message().identity, ONE_EFFECT),)

    async def test_a_batch_is_sorted_completely(self) -> None:
        """Each message of a batch is in exactly one part of the result."""
        pending, done, mismatch, new = (message(name) for name in ("m1", "m2", "m3", "m4"))
        other = message("m3", body=b"{}")
        async with self.open_store() as subject:
            await handle(subject, pending, decided=ONE_EFFECT)
            await handle(subject, done, mismatch)
            found = await look(subject, new, other, done, pending)
            assert found == BeginResult((new,), (Record(pending.identity, ONE_EFFECT),), (done,), (other,))

    async def test_very_many_messages_share_a_unit(self) -> None:
        """A unit accepts more messages than one request of the system. `commit` and `forget` accept as many records."""
        asked = tuple(message(f"m{number}") for number in range(self.many))
        async with self.open_store() as subject:
            store = await subject.store()
            unit = await store.begin(asked)
            assert unit.found.new == asked
            await unit.commit([Record(each.identity, ONE_EFFECT) for each in asked[1:-1]])
            found = await look(subject, *asked)
            assert found.new == (asked[0], asked[-1])
            assert {record.identity for record in found.pending} == {each.identity for each in asked[1:-1]}
            await store.forget(found.pending)
            assert await undispatched(subject) == ()

    async def test_very_many_messages_can_be_left_out_of_a_commit(self) -> None:
        """The commit releases the claims of more messages than one request of the system names."""
        asked = tuple(message(f"m{number}") for number in range(self.many))
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin(asked)
            await unit.commit([Record(asked[0].identity)])
            found = await look(subject, *asked)
            assert (found.new, found.done) == (asked[1:], asked[:1])

    # The fence

    async def test_an_attempt_that_began_before_a_fence_is_not_committed_after_it(self) -> None:
        """The fence waits for the attempt, raises ConflictError, or makes the attempt fail."""
        async with self.open_store() as subject:
            first = await (await subject.store()).begin([message()])
            await write(subject, first, "first")
            second = asyncio.create_task(fence(subject, first.key))
            await asyncio.wait([second], timeout=min(self.patience, MOMENT_SECONDS))  # it may have to wait for the first
            won = await wins(first, Record(message().identity, ONE_EFFECT))
            first.abandon()
            async with asyncio.timeout(self.patience):
                assert await second is not FenceResult.OUT or not won
            assert len((await look(subject, message())).pending) == won

    async def test_a_fence_finds_a_record(self) -> None:
        """A fence returns a committed record and does not change it."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            assert await fence(subject, await unit_of(subject)) is FenceResult.COMMITTED
            assert (await look(subject, message())).pending == (Record(message().identity, ONE_EFFECT),)

    async def test_a_fence_leaves_a_message_new(self) -> None:
        """After a fence, the message is new and can be handled. A person may retry it."""
        async with self.open_store() as subject:
            assert await fence(subject, await unit_of(subject)) is FenceResult.OUT
            assert await look(subject, message()) == BeginResult(new=(message(),))
            await handle(subject, message(), decided=ONE_EFFECT)
            assert (await look(subject, message())).pending == (Record(message().identity, ONE_EFFECT),)

    async def test_a_fence_finds_a_handled_message_without_effects(self) -> None:
        """A fence returns a record, perhaps an empty one. Otherwise a handled message would become a dead letter."""
        async with self.open_store() as subject:
            await handle(subject, message())
            assert await fence(subject, await unit_of(subject)) is FenceResult.COMMITTED

    async def test_a_fence_after_forget_finds_a_message_that_is_done(self) -> None:
        """A fence returns a record of each message that `begin` finds done. A store that deletes its claims finds it new."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            await (await subject.store()).forget([Record(message().identity)])
            is_done = (await look(subject, message())).done == (message(),)
            assert await fence(subject, await unit_of(subject)) is (FenceResult.COMMITTED if is_done else FenceResult.OUT)

    # Identity

    async def test_ids_that_join_to_the_same_text_are_distinct(self) -> None:
        """Source and id are compared separately, not as one joined text."""
        pairs = (
            ("ab", "c"),
            ("a", "bc"),
            ("a/b", "c"),
            ("a", "b/c"),
            ("a\0b", "c"),
            ("a", "b\0c"),
            ("", "abc"),
            ("abc", "abc"),
        )
        async with self.open_store() as subject:
            await every_one_is_new(subject, [message(name, source=source) for source, name in pairs])

    async def test_ids_are_exact(self) -> None:
        """Ids are compared exactly: case, spaces, Unicode normal form, zero bytes, and all characters of long ids."""
        long = "x" * 20_000
        ids = (
            "a",
            "A",
            "a ",
            " a",
            "a\0",
            "é",
            "e\u0301",
            "ß",
            "ss",
            "🛫",
            "a\n",
            "%",
            "_",
            "'",
            long,
            long + "y",
            long[1:] + "y",
        )
        async with self.open_store() as subject:
            await every_one_is_new(subject, [message(name) for name in ids])

    async def test_endpoints_do_not_share_claims(self) -> None:
        """Each endpoint handles its own copy of an event."""
        async with self.open_store() as subject:
            await handle(subject, message())
            assert await look(subject, message(), endpoint=OTHER) == BeginResult(new=(message(),))

    async def test_endpoints_do_not_share_records(self) -> None:
        """An endpoint neither lists nor deletes the records of another one."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            other = await subject.store(OTHER)
            assert await other.undispatched(LATER, 10) == ()
            await other.forget([Record(message().identity)])
            assert len(await undispatched(subject)) == 1

    async def test_a_message_has_one_unit_key(self) -> None:
        """The unit key of a message is the same in every process and at any time."""
        async with self.open_store() as subject:
            keys = {(await subject.store()).unit_key(message()) for _ in range(3)}
            assert len(keys) == 1

    # Commit and abandon

    async def test_nothing_is_visible_before_commit(self) -> None:
        """Business data and records are not visible to other processes before the commit."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await write(subject, unit, "m1")
            assert (await subject.read(), await undispatched(subject)) == ({}, ())
            unit.abandon()

    async def test_commit_makes_everything_visible_together(self) -> None:
        """The commit makes business data, record and claim visible."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            record = Record(message().identity, ONE_EFFECT)
            assert await subject.read() == {"m1": "handled"}
            assert await undispatched(subject) == (record,)
            assert await look(subject, message()) == BeginResult(pending=(record,))

    async def test_abandon_leaves_nothing(self) -> None:
        """An abandoned unit leaves neither business data nor a claim."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await write(subject, unit, "m1")
            unit.abandon()
            assert await look(subject, message()) == BeginResult(new=(message(),))
            assert await subject.read() == {}

    async def test_an_abandoned_unit_holds_nobody_back(self) -> None:
        """`abandon` is synchronous. Its claims become free without another call on the unit."""
        async with self.open_store() as subject:
            store = await subject.store()
            unit = await store.begin([message()])
            await write(subject, unit, "m1")
            unit.abandon()
            async with asyncio.timeout(self.patience):
                await handle(subject, message())
                await handle(subject, message("m2"), store=store)
            assert await subject.read() == {"m1": "handled", "m2": "handled"}

    async def test_a_message_left_out_of_commit_is_new_again(self) -> None:
        """The commit releases the claims of messages that it does not name. Failed and postponed messages become new again."""
        left, kept, pending = message("m1"), message("m2"), message("m3")
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([left, kept, pending])
            await unit.commit([Record(kept.identity), Record(pending.identity, ONE_EFFECT)])
            assert await look(subject, left, kept, pending) == BeginResult(
                (left,), (Record(pending.identity, ONE_EFFECT),), (kept,), ()
            )

    async def test_a_unit_without_messages_commits_its_writes(self) -> None:
        """A unit without messages commits its writes and claims nothing. Transactions outside of handlers use it."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([])
            await write(subject, unit, "k")
            await unit.commit([])
            assert await subject.read() == {"k": "handled"}

    async def test_a_refused_commit_leaves_nothing(self) -> None:
        """A commit that the unit's own writes make impossible raises CommitRefused. It leaves nothing, and blocks no unit."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await write(subject, unit, "m1")
            await subject.refuse(unit.resources)
            async with raises(CommitRefused):
                await unit.commit([Record(message().identity, ONE_EFFECT)])
            unit.abandon()
            async with asyncio.timeout(self.patience):
                assert await look(subject, message()) == BeginResult(new=(message(),))
            assert (await subject.read(), await undispatched(subject)) == ({}, ())

    async def test_a_unit_commits_once(self) -> None:
        """A second commit raises an error and changes nothing."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await unit.commit([Record(message().identity, ONE_EFFECT)])
            async with raises(OnceOnlyError, RuntimeError):
                await unit.commit([Record(message().identity)])
            assert await undispatched(subject) == (Record(message().identity, ONE_EFFECT),)

    async def test_an_abandoned_unit_cannot_commit(self) -> None:
        """The commit of an abandoned unit raises an error, and its messages stay new."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            unit.abandon()
            async with raises(OnceOnlyError, RuntimeError):
                await unit.commit([Record(message().identity)])
            assert await look(subject, message()) == BeginResult(new=(message(),))

    async def test_abandoning_twice_is_harmless(self) -> None:
        """A second `abandon` does not affect the next unit of the same store."""
        async with self.open_store() as subject:
            store = await subject.store()
            unit = await store.begin([message()])
            unit.abandon()
            await handle(subject, message(), store=store)
            unit.abandon()
            assert await look(subject, message()) == BeginResult(done=(message(),))

    async def test_abandoning_after_commit_changes_nothing(self) -> None:
        """`abandon` does not undo a commit."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await write(subject, unit, "m1")
            await unit.commit([Record(message().identity)])
            unit.abandon()
            assert await look(subject, message()) == BeginResult(done=(message(),))
            assert await subject.read() == {"m1": "handled"}

    async def test_a_cancelled_commit_is_all_or_nothing(self) -> None:
        """A commit may be cancelled at any point. The effect is the same as that of a crash."""
        async with self.open_store() as subject:
            for steps in range(8):
                asked = message(f"m{steps}")
                unit = await (await subject.store()).begin([asked])
                await write(subject, unit, asked.id)
                await cancel(unit.commit([Record(asked.identity, ONE_EFFECT)]), steps)
                unit.abandon()
                applied = (await look(subject, asked)).pending == (Record(asked.identity, ONE_EFFECT),)
                assert (asked.id in await subject.read()) is applied

    # Records

    async def test_a_forgotten_message_is_done(self) -> None:
        """`forget` deletes the record and keeps the claim."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            await (await subject.store()).forget([Record(message().identity)])
            assert await look(subject, message()) == BeginResult(done=(message(),))
            assert await undispatched(subject) == ()

    async def test_forgetting_twice_is_fine(self) -> None:
        """`forget` accepts records that are already deleted, also among others."""
        records = [Record(message("m1").identity), Record(message("m2").identity)]
        async with self.open_store() as subject:
            await handle(subject, message("m1"), message("m2"), decided=ONE_EFFECT)
            store = await subject.store()
            await store.forget(records[:1])
            await store.forget(records)
            assert await undispatched(subject) == ()

    async def test_forgetting_leaves_other_records(self) -> None:
        """`forget` deletes only the records passed to it."""
        async with self.open_store() as subject:
            await handle(subject, message("m1"), message("m2"), decided=ONE_EFFECT)
            await (await subject.store()).forget([Record(message("m1").identity)])
            assert await undispatched(subject) == (Record(message("m2").identity, ONE_EFFECT),)

    async def test_forgetting_a_message_never_seen_claims_nothing(self) -> None:
        """`forget` accepts a message without a record. The message stays new."""
        async with self.open_store() as subject:
            await (await subject.store()).forget([Record(message().identity)])
            assert await look(subject, message()) == BeginResult(new=(message(),))

    # Resources

    async def test_a_failed_isolated_attempt_is_undone_alone(self) -> None:
        """A failed attempt is rolled back. The work of other handlers, before and after it, stays."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message(name) for name in ("m1", "m2", "m3")], isolated=True)
            await write(subject, unit, "m1")
            async with raises(ZeroDivisionError):
                await write_and_fail(subject, unit, "m2")
            await write(subject, unit, "m3")
            await unit.commit([Record(message("m1").identity), Record(message("m3").identity)])
            assert await subject.read() == {"m1": "handled", "m3": "handled"}
            assert await look(subject, message("m2")) == BeginResult(new=(message("m2"),))

    async def test_a_handlers_own_error_passes_through(self) -> None:
        """An attempt does not hide the handler's error, isolated or not."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            async with raises(ZeroDivisionError):
                await write_and_fail(subject, unit, "m1")
            unit.abandon()
            assert await subject.read() == {}

    async def test_a_synchronous_handler_writes_in_the_unit(self) -> None:
        """`run_sync` returns the handler's result. Its writes are committed with the unit."""

        def handler(get: Callable[[type], object]) -> str:
            subject.write_now(get, "m1", "handled")
            return "answer"

        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()])
            async with unit.resources.attempt():
                answer = await unit.resources.run_sync(handler)
            assert (answer, await subject.read()) == ("answer", {})
            await unit.commit([Record(message().identity)])
            assert await subject.read() == {"m1": "handled"}

    async def test_a_synchronous_handlers_own_error_passes_through(self) -> None:
        """`run_sync` raises the handler's error, and an isolated attempt rolls back its writes."""

        def handler(get: Callable[[type], object]) -> None:
            subject.write_now(get, "m1", "handled")
            raise ZeroDivisionError

        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message()], isolated=True)
            async with raises(ZeroDivisionError), unit.resources.attempt():
                await unit.resources.run_sync(handler)
            await unit.commit([])
            assert await subject.read() == {}

    async def test_a_resource_of_an_unknown_kind_is_a_lookup_error(self) -> None:
        """`resources.get` raises LookupError, so that an endpoint reports at start what it cannot inject."""
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([])
            async with raises(LookupError):
                unit.resources.get(StoreSuite)
            unit.abandon()

    # Several workers

    async def test_two_units_never_both_handle_a_message(self) -> None:
        """The second unit waits for the first and finds its record, or one of them raises ConflictError at begin or commit."""
        async with self.open_store() as subject:
            first = await (await subject.store()).begin([message()])
            await write(subject, first, "first")
            second = asyncio.create_task(compete(subject, "second"))
            await steps(10)
            first_won = await wins(first, Record(message().identity, ONE_EFFECT))
            async with asyncio.timeout(self.patience):
                found = await second
            assert first_won is not (found is not None and found.new == (message(),))
            assert await subject.read() == {"first" if first_won else "second": "handled"}
            if first_won:
                assert found in (None, BeginResult(pending=(Record(message().identity, ONE_EFFECT),)))

    async def test_a_claim_given_up_is_free_for_whoever_waits(self) -> None:
        """A waiting unit, or the next one, handles the message that the first unit abandoned."""
        async with self.open_store() as subject:
            first = await (await subject.store()).begin([message()])
            await write(subject, first, "first")
            second = asyncio.create_task(compete(subject, "second"))
            await steps(10)
            first.abandon()
            async with asyncio.timeout(self.patience):
                await second
            assert await subject.read() in ({}, {"second": "handled"})
            async with asyncio.timeout(self.patience):
                await compete(subject, "third")
            assert len(await subject.read()) == 1

    async def test_a_cancelled_claim_holds_nobody_back(self) -> None:
        """A worker that is cancelled while it waits for a claim holds no claim afterwards."""
        async with self.open_store() as subject:
            first = await (await subject.store()).begin([message()])
            second = asyncio.create_task(compete(subject, "second", commits=False))
            await steps(10)
            second.cancel()
            await first.commit([])
            async with asyncio.timeout(self.patience):
                await asyncio.wait([second])
                await handle(subject, message())
            assert await subject.read() == {"m1": "handled"}

    async def test_overlapping_batches_do_not_deadlock(self) -> None:
        """Batches that overlap in any order are all handled, each message once."""
        ids = [f"m{number}" for number in range(9)]
        batches = (ids[:6], ids[:2:-1], ids[::2])
        async with self.open_store() as subject:
            async with asyncio.timeout(self.patience), asyncio.TaskGroup() as workers:
                for number, batch in enumerate(batches):
                    workers.create_task(work(subject, str(number), [message(name) for name in batch]))
            handled = [key.split("/")[0] for key in await subject.read()]
            assert sorted(handled) == ids
