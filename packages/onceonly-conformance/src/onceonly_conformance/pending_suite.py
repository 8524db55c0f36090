"""The contract of the PendingRecords port, rule by rule, for stores that can be searched."""

from contextlib import AbstractAsyncContextManager

from msgspec.structs import replace

from onceonly.model.message import Send
from onceonly.model.record import Record
from onceonly_conformance.samples import effects, message, rich_message
from onceonly_conformance.store_subject import LATER, ONE_EFFECT, SearchedSubject, handle, undispatched
from onceonly_conformance.suite import OTHER, Suite

LEASE_MS = 10_000
"""Milliseconds."""
BACKLOG, PAGE = 1_050, 400
"""Records that a store may read in another way than a few, and how many of them are taken at a time."""


class PendingRecordsSuite(Suite):
    """The additional rules of a store that can be searched. Override `open_store`."""

    def open_store(self) -> AbstractAsyncContextManager[SearchedSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_undispatched_lists_the_oldest_first(self) -> None:
        """`undispatched` returns records in the order in which they were stored."""
        ids = ("m3", "m1", "m2")
        async with self.open_store() as subject:
            for name in ids:
                await handle(subject, message(name), decided=ONE_EFFECT)
                await subject.pass_time(1)
            assert [record.identity.id for record in await undispatched(subject)] == list(ids)

    async def test_undispatched_lists_only_what_is_older(self) -> None:
        """`older_than` is exclusive: a record stored at that very instant is not returned."""
        async with self.open_store() as subject:
            await handle(subject, message("m1"), decided=ONE_EFFECT)
            await subject.pass_time(1)
            between = subject.now()
            await handle(subject, message("m2"), decided=ONE_EFFECT)
            found = await (await subject.store()).undispatched(between, 10)
            assert [record.identity.id for record in found] == ["m1"]

    async def test_undispatched_lists_at_most_the_limit(self) -> None:
        """`undispatched` returns at most `limit` records, the oldest ones."""
        async with self.open_store() as subject:
            for name in ("m1", "m2", "m3"):
                await handle(subject, message(name), decided=ONE_EFFECT)
                await subject.pass_time(1)
            found = await (await subject.store()).undispatched(LATER, 2)
            assert [record.identity.id for record in found] == ["m1", "m2"]

    async def test_take_gives_each_record_once_within_the_lease(self) -> None:
        """During the lease, each record is returned by one `take` of one process. After the lease it is returned again."""
        ids = [f"m{number}" for number in range(7)]
        async with self.open_store() as subject:
            await handle(subject, *map(message, ids), decided=ONE_EFFECT)
            one, other = await subject.store(), await subject.store()
            pages = [await store.take(LATER, 2, lease=LEASE_MS) for store in (one, other, one, other, one)]
            assert sorted(record.identity.id for page in pages for record in page) == ids
            assert [len(page) for page in pages] == [2, 2, 2, 1, 0]
            await subject.pass_time(LEASE_MS + 1)
            assert len(await other.take(LATER, 100, lease=LEASE_MS)) == len(ids)

    async def test_take_gives_only_what_is_older(self) -> None:
        """`older_than` is exclusive: a record stored at that very instant is not taken."""
        async with self.open_store() as subject:
            await handle(subject, message("m1"), decided=ONE_EFFECT)
            await subject.pass_time(1)
            between = subject.now()
            await handle(subject, message("m2"), decided=ONE_EFFECT)
            found = await (await subject.store()).take(between, 10, lease=LEASE_MS)
            assert [record.identity.id for record in found] == ["m1"]

    async def test_take_gives_only_the_endpoints_own(self) -> None:
        """`take` returns the endpoint's own records, and starts no lease on others."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            assert await (await subject.store("other")).take(LATER, 10, lease=LEASE_MS) == ()
            (taken,) = await (await subject.store()).take(LATER, 10, lease=LEASE_MS)
            assert replace(taken, fingerprint=b"") == Record(message().identity, ONE_EFFECT)
            assert taken.fingerprint in (b"", message().fingerprint)

    async def test_take_goes_on_behind_a_record_that_may_be_gone(self) -> None:
        """`after` may name a deleted record. The order of the records is stable, also without a lease."""
        ids = [f"m{number}" for number in range(7)]
        async with self.open_store() as subject:
            await handle(subject, *map(message, ids), decided=ONE_EFFECT)
            store = await subject.store()
            pages = [await store.take(LATER, 2, lease=0)]
            while pages[-1]:
                last = pages[-1][-1]
                if len(pages) % 2:
                    await store.forget([last])
                pages.append(await store.take(LATER, 2, lease=0, after=last.identity))
                assert len(pages) <= len(ids)
            assert sorted(record.identity.id for page in pages for record in page) == ids

    async def test_take_goes_through_a_large_backlog(self) -> None:
        """Pages of a backlog follow each other in one order. Each record is in one page."""
        asked = [message(f"m{number}") for number in range(BACKLOG)]
        async with self.open_store() as subject:
            await handle(subject, *asked, decided=ONE_EFFECT)
            store = await subject.store()
            taken = [*await store.take(LATER, PAGE, lease=0)]
            while len(taken) <= BACKLOG and (more := await store.take(LATER, PAGE, lease=0, after=taken[-1].identity)):
                taken += more
            assert sorted(record.identity.id for record in taken) == sorted(each.id for each in asked)

    async def test_what_is_taken_is_listed_found_and_forgotten_all_the_same(self) -> None:
        """A lease does not lock a record: it can still be listed, found and deleted."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            store = await subject.store()
            (record,) = await store.take(LATER, 10, lease=LEASE_MS)
            assert await store.find([record.identity]) == await undispatched(subject) == (replace(record, fingerprint=b""),)
            await store.forget([record])
            assert await undispatched(subject) == ()

    async def test_find_gives_records_in_the_order_asked(self) -> None:
        """`find` returns complete records, in the order in which their identities were passed."""
        decided = (Send(message=rich_message("out-1"), to="billing"), *effects())
        async with self.open_store() as subject:
            for name in ("m2", "m1", "m3"):
                await handle(subject, message(name), decided=decided)
                await subject.pass_time(1)
            asked = [message(name).identity for name in ("m1", "m3", "m2")]
            assert await (await subject.store()).find(asked) == tuple(Record(identity, decided) for identity in asked)

    async def test_find_leaves_out_what_has_no_record(self) -> None:
        """`find` skips messages that are unknown, in an open unit, abandoned, without effects, or forgotten."""
        names = ("never", "open", "abandoned", "done", "forgotten", "there")
        async with self.open_store() as subject:
            store = await subject.store()
            (await store.begin([message("abandoned")])).abandon()
            await handle(subject, message("done"))
            await handle(subject, message("forgotten"), message("there"), decided=ONE_EFFECT)
            await store.forget([Record(message("forgotten").identity)])
            unit = await store.begin([message("open")])
            found = await (await subject.store()).find([message(name).identity for name in names])
            unit.abandon()
            assert [record.identity.id for record in found] == ["there"]

    async def test_very_many_records_are_found(self) -> None:
        """`find` accepts more identities than one request of the system, and keeps their order."""
        asked = [message(f"m{number}") for number in range(self.many)]
        async with self.open_store() as subject:
            store = await subject.store()
            unit = await store.begin(asked)
            await unit.commit([Record(each.identity, ONE_EFFECT) for each in asked])
            found = await store.find([each.identity for each in reversed(asked)])
            assert found == tuple(Record(each.identity, ONE_EFFECT) for each in reversed(asked))

    async def test_find_looks_at_its_own_endpoint_only(self) -> None:
        """`find` does not return records of another endpoint."""
        async with self.open_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            assert await (await subject.store(OTHER)).find([message().identity]) == ()
