"""The store on documents: what it writes, what it must not let go, and what stands in its way."""

import asyncio

import pytest

from onceonly.documents.store import DocumentStore
from onceonly.model.artifact import Reservation
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, OutcomeUnknown, PermanentFailure, UpgradeRequired
from onceonly.model.record import Record
from onceonly.ports.documents import Change
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from onceonly_conformance.suite import ENDPOINT
from tests.documents.fakes import ContestedDocuments
from tests.documents.harness import ENTITY, ONE_EFFECT, ORDER, WEEK, StoreHarness, about, handle

DAY = 86_400_000
PLACES = [WEEK, None]


# What the service may drop


async def test_a_document_that_owes_messages_never_expires() -> None:
    """The service would drop the effects with it; and the message, handled again, would send others."""
    harness = StoreHarness()
    await handle(harness.store(), about(unit=""), ONE_EFFECT)
    assert [change.expires for change in harness.documents.written] == [0]


async def test_a_finished_message_without_an_entity_may_be_dropped() -> None:
    """Its history is over some time after it was finished, whether it had effects or not."""
    harness = StoreHarness()
    store = harness.store()
    await handle(store, about(unit=""))
    record = await handle(store, about("m2", unit=""), ONE_EFFECT)
    harness.clock.advance(DAY)
    await store.forget([record])
    first, _, last = (change.expires for change in harness.documents.written)
    assert last - first == DAY
    assert first >= harness.clock.now() + 6 * DAY


async def test_a_document_with_a_register_row_never_expires() -> None:
    """The row permits an attempt to commit, and names what it made."""
    harness = StoreHarness()
    store = harness.store()
    unit = store.unit_key(about(unit=""))
    await harness.register().open([Reservation(identity=about().identity, unit=unit, attempt="a1", at=harness.clock.now())])
    assert {change.expires for change in harness.documents.written} == {0}


async def test_an_entity_never_expires() -> None:
    """It is the user's."""
    harness = StoreHarness()
    await handle(harness.store(), about())
    assert [change.expires for change in harness.documents.written] == [0]


# History


async def test_history_is_trimmed_by_when_a_message_was_finished() -> None:
    """Not by when it was handled; and what still has pending stays, however old."""
    harness = StoreHarness()
    store = harness.store()
    pending = await handle(store, about("owing"), ONE_EFFECT)
    late = await handle(store, about("late"), ONE_EFFECT)
    await handle(store, about("early"))
    harness.clock.advance(6 * DAY)
    await store.forget([late])
    harness.clock.advance(2 * DAY)
    await handle(store, about("now"))
    assert set((await harness.entity()).records) == {
        store.name_of(each.identity) for each in (pending, late, Record(about("now").identity))
    }


async def test_clocks_may_differ_by_an_hour() -> None:
    """What a worker whose clock is behind finished is kept for its whole time."""
    harness = StoreHarness()
    await handle(harness.store(), about())
    harness.clock.advance(round(WEEK.total_seconds() * 1000) + 3_500_000)
    await handle(harness.store(), about("m2"))
    assert (await harness.store().begin([about()])).found.done == (about(),)


async def test_what_an_earlier_history_knew_is_not_trimmed_at_once() -> None:
    """Whoever stops keeping history still knows what was handled while it was kept."""
    harness = StoreHarness()
    await handle(harness.store(WEEK), about())
    harness.clock.advance(DAY)
    store = harness.store(None)
    await handle(store, about("m2"))
    assert (await store.begin([about()])).found.done == (about(),)


async def test_two_workers_may_forget_at_once() -> None:
    """Each sees to it, and the second finds nothing to do."""
    for history in PLACES:
        harness = StoreHarness()
        first, second = harness.store(history), harness.store(history)
        records = [await handle(first, about(name), ONE_EFFECT) for name in ("m1", "m2")]
        await asyncio.gather(first.forget(records), second.forget(records[::-1]))
        kept = (await harness.entity()).records.values()
        assert [each.pending for each in kept] == ["", ""][: len(kept)]
        assert len(kept) == (2 if history else 0)


async def test_forgetting_that_loses_every_time_ends_in_failed() -> None:
    """The message comes again, and its record is still there."""
    documents = ContestedDocuments()
    store = DocumentStore(documents, ENDPOINT, clock=ManualClock(), history=WEEK)
    quiet = DocumentStore(documents.inner, ENDPOINT, clock=ManualClock(), history=WEEK)
    record = await handle(quiet, about(), ONE_EFFECT)
    with pytest.raises(CommitFailed, match="kept changing"):
        await store.forget([record])
    assert (await quiet.begin([about()])).found.pending == (record,)


async def test_a_record_is_forgotten_without_a_load() -> None:
    """The version of the commit is known: load, commit, and the write that forgets."""
    for history in PLACES:
        harness = StoreHarness()
        store = harness.store(history)
        record = await handle(store, about(), ONE_EFFECT)
        await store.forget([record])
        assert harness.documents.calls == ["load", "save", "save"]
        assert [each.pending for each in (await harness.entity()).records.values()] == ([""] if history else [])


async def test_a_record_that_was_found_again_is_forgotten_without_a_load() -> None:
    """After a crash `begin` has read the document."""
    for history in PLACES:
        harness = StoreHarness()
        await handle(harness.store(history), about(), ONE_EFFECT)
        harness.documents.calls.clear()
        restarted = harness.store(history)
        unit = await restarted.begin([about()])
        await restarted.forget(unit.found.pending)
        assert harness.documents.calls == ["load", "save"]


async def test_a_document_that_others_changed_is_loaded_again() -> None:
    """The write by the earlier version is refused, and what the other worker saved stays."""
    for history in PLACES:
        harness = StoreHarness()
        first, second = harness.store(history), harness.store(history)
        record = await handle(first, about(), ONE_EFFECT)
        other = await handle(second, about("m2"), ONE_EFFECT)
        harness.documents.calls.clear()
        await first.forget([record])
        assert harness.documents.calls == ["save", "load", "save"]
        assert (await second.begin([about("m2")])).found.pending == (other,)
        assert not (await second.begin([about()])).found.pending


async def test_a_record_that_another_process_forgot_is_left_alone() -> None:
    """One refused write, and one read that finds nothing to do."""
    for history in PLACES:
        harness = StoreHarness()
        first, second = harness.store(history), harness.store(history)
        record = await handle(first, about(), ONE_EFFECT)
        await second.forget([record])
        before = await harness.entity()
        harness.documents.calls.clear()
        await first.forget([record])
        assert harness.documents.calls == ["save", "load"]
        assert await harness.entity() == before


async def test_a_commit_without_an_answer_leaves_no_guess() -> None:
    """Whatever was known of the document may be out of date: the next write loads it first."""
    harness = StoreHarness()
    store = harness.store(None)
    record = await handle(store, about(), ONE_EFFECT)
    unit = await store.begin([about("m2")])
    harness.documents.spoils[len(harness.documents.calls)] = OutcomeUnknown("no answer")
    with pytest.raises(OutcomeUnknown):
        await unit.commit([Record(about("m2").identity, ONE_EFFECT, unit=unit.key)])
    harness.documents.calls.clear()
    await store.forget([record])
    assert harness.documents.calls == ["load", "save"]


async def test_a_finished_record_is_not_remembered() -> None:
    """With history, a message without effects is finished by its commit: nothing is written again."""
    harness = StoreHarness()
    store = harness.store(WEEK)
    await handle(store, about())
    assert not store.recent.take([ENTITY])


async def test_a_fence_leaves_no_guess() -> None:
    """It writes the document, so an earlier version of it is out of date."""
    harness = StoreHarness()
    store = harness.store(None)
    record = await handle(store, about(), ONE_EFFECT)
    await store.fence(record.unit, about("m2").identity)
    harness.documents.calls.clear()
    await store.forget([record])
    assert harness.documents.calls == ["load", "save"]


# Units


async def test_a_stalled_attempt_loses_to_the_fence() -> None:
    """Load, prepare, stall; the sweeper fences and discards; the commit is a ConflictError. With a document and without."""
    for history in PLACES:
        for state in (b"1", None):
            harness = StoreHarness()
            store = harness.store(history)
            if state:
                await handle(store, about("before"))
            unit = await store.begin([about()])
            assert await harness.store(history).fence(unit.key, about().identity) is None
            with pytest.raises(ConflictError):
                await unit.commit([Record(about().identity, ONE_EFFECT, unit=unit.key)])
            assert (await store.begin([about()])).found.new == (about(),)


async def test_a_fence_that_came_too_late_finds_the_record() -> None:
    """Committed between the sweeper's look and its write: a ConflictError, and then the record."""
    harness = StoreHarness()
    store = harness.store()
    unit = await store.begin([about()])
    record = Record(about().identity, ONE_EFFECT, unit=unit.key)
    racing = ContestedDocuments(harness.documents.inner._driver)  # type: ignore[arg-type]
    await handle(store, about("before"))
    with pytest.raises(ConflictError):
        await DocumentStore(racing, ENDPOINT, clock=harness.clock, history=WEEK).fence(unit.key, about().identity)
    unit = await store.begin([about()])
    await unit.commit([record])
    assert await store.fence(unit.key, about().identity) == record


async def test_a_commit_whose_answer_is_lost_is_found_again() -> None:
    """OutcomeUnknown, and then pending: nothing is handled twice."""
    harness = StoreHarness()
    unit = await harness.store().begin([about()])
    record = Record(about().identity, ONE_EFFECT, unit=unit.key)
    applied = harness.documents.save

    async def cut(changes: object) -> None:
        await applied(changes)  # type: ignore[arg-type]
        raise OutcomeUnknown("no answer")

    harness.documents.save = cut  # type: ignore[assignment, method-assign]
    with pytest.raises(OutcomeUnknown):
        await unit.commit([record])
    assert (await harness.store().begin([about()])).found.pending == (record,)


async def test_a_unit_that_changed_nothing_still_says_what_is_done() -> None:
    """A handler without writes and effects leaves its record all the same: with nothing elsewhere, that is all there is."""
    for history in PLACES:
        harness = StoreHarness()
        await handle(harness.store(history), about())
        found = await harness.store(history).begin([about()])
        assert (found.found.new, found.found.done) == ((), (about(),))


@pytest.mark.parametrize("unit", ["\ud800", "k" * 2000])
async def test_a_key_that_nobody_can_hold_is_refused(unit: str) -> None:
    """So its message becomes a dead letter; any other error would give back its whole batch, for ever."""
    harness = StoreHarness()
    with pytest.raises(PermanentFailure, match="key"):
        await harness.store().begin([about(unit=unit)])
    with pytest.raises(PermanentFailure, match="key"):
        await harness.register().open([Reservation(identity=about().identity, unit=f"entity/{unit}", attempt="a", at=1)])
    assert await harness.kept() == []


async def test_a_state_that_is_no_json_is_refused() -> None:
    """Saved, it would make every later message of its entity a dead letter."""
    harness = StoreHarness()
    for state in (b"{", b"NaN", b"1,", b"", b"\xff"):
        unit = await harness.store().begin([about()])
        entities = unit.resources.get(Entities)
        assert isinstance(entities, Entities)
        entities.write(ORDER, state)
        with pytest.raises(CommitRefused, match="JSON"):
            await unit.commit([Record(about().identity)])
    assert await harness.kept() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"total": 17}',
        b'{"onceonly": 1, "records": 7}',
        b"\xff\xfe",
        b'{"onceonly": 1, "records": {"NAME": {"body": "HASH", "owes": "!"}}}',
        b'{"onceonly": 1, "records": {"NAME": {"body": "HASH", "owes": "AcE="}}}',
    ],
)
async def test_a_document_of_somebody_else_is_refused(body: bytes) -> None:
    """Its messages become dead letters, and it stays as it is."""
    harness = StoreHarness()
    store = harness.store()
    body = body.replace(b"NAME", store.name_of(about().identity).encode()).replace(b"HASH", about().fingerprint.hex().encode())
    await harness.documents.save([Change(key=ENTITY, body=body)])
    with pytest.raises(PermanentFailure, match=ORDER):
        await store.begin([about()])
    assert (await harness.documents.inner.load([ENTITY]))[ENTITY].body == body


@pytest.mark.parametrize(
    "body",
    [
        b'{"onceonly": 3, "records": []}',
        b'{"onceonly": 1, "records": {"NAME": {"body": "HASH", "owes": "CQ=="}}}',
    ],
)
async def test_a_document_of_a_newer_version_waits(body: bytes) -> None:
    """It is nobody's failure: another process can read it, so the message is given back, uncounted."""
    harness = StoreHarness()
    store = harness.store()
    body = body.replace(b"NAME", store.name_of(about().identity).encode()).replace(b"HASH", about().fingerprint.hex().encode())
    await harness.documents.save([Change(key=ENTITY, body=body)])
    with pytest.raises(UpgradeRequired, match="newer onceonly"):
        await store.begin([about()])


async def test_messages_without_an_entity_share_documents_only_where_nothing_stays() -> None:
    """With history each has its own, which the service may drop; without, there are never more than 256."""
    harness = StoreHarness()
    names = [message(f"m{number}") for number in range(2_000)]
    assert len({harness.store(WEEK).unit_key(each) for each in names}) == 2_000
    assert len({harness.store(None).unit_key(each) for each in names}) == 256


async def test_another_body_is_a_clash_in_a_bucket_too() -> None:
    """As long as the first one's record is there."""
    harness = StoreHarness()
    store = harness.store(None)
    first, other = message(), message(body=b"{}")
    record = await handle(store, first, ONE_EFFECT)
    assert (await store.begin([other])).found.mismatched == (other,)
    await store.forget([record])
    assert (await store.begin([other])).found.new == (other,)
