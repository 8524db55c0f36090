"""The dedup store on documents, beyond what every dedup store promises: what it costs, what it leaves, how it fails."""

import json
from datetime import timedelta

import pytest

from onceonly.algorithms.admission import DedupStoreAdmission
from onceonly.documents.compare_and_set import TRIES
from onceonly.documents.dedup import DocumentMarkStore, ExpiredMarks
from onceonly.model.errors import CommitFailed, OutcomeUnknown, SetupError
from onceonly.model.identity import Identity, claim_key, fingerprint, outgoing_id
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.documents import Change, Documents
from onceonly_conformance.clock import ManualClock
from tests.documents.fakes import ContestedDocuments, RecordingDocuments

A, B, C = (bytes([number]) * 16 for number in (0xA, 0xB, 0xC))
DAY = 86_400_000
HOUR = DAY // 24


def opened(documents: Documents, clock: ManualClock | None = None) -> DocumentMarkStore:
    """Open a store that remembers for a day."""
    return DocumentMarkStore(documents, retention=timedelta(days=1), clock=clock or ManualClock())


async def test_new_keys_are_added_in_one_call() -> None:
    """However many they are; nothing is looked up before."""
    documents = RecordingDocuments()
    await opened(documents).add([A, B, C])
    assert documents.calls == ["save"]
    assert [change.key for change in documents.written] == [f"done/{key.hex()}" for key in (A, B, C)]


async def test_a_mark_says_until_when_it_counts_and_so_does_the_hint() -> None:
    """An hour beyond its retention, because clocks differ."""
    documents, clock = RecordingDocuments(), ManualClock()
    await opened(documents, clock).add([A])
    until = clock.now() + DAY + HOUR
    assert [(change.body, change.expires) for change in documents.written] == [(b'{"until":%d}' % until, until)]


async def test_a_key_added_again_within_the_hour_is_not_written_again() -> None:
    """Its mark lasts long enough for both."""
    documents, clock = RecordingDocuments(), ManualClock()
    await opened(documents, clock).add([A])
    clock.advance(HOUR)
    await opened(documents, clock).add([A])
    assert documents.calls == ["save", "save", "load"]


async def test_a_mark_that_would_not_last_is_written_again() -> None:
    """Else it might be dropped as soon as `add` has returned."""
    documents, clock = RecordingDocuments(), ManualClock()
    store = opened(documents, clock)
    await store.add([A])
    clock.advance(HOUR + 1)
    await store.add([A, B])
    assert documents.calls == ["save", "save", "load", "save"]
    assert documents.written[-1].expires == clock.now() + DAY + HOUR


async def test_a_mark_of_an_older_version_has_no_fingerprint() -> None:
    """It counts, and fits every body; what is added with a fingerprint later has it from then on."""
    documents, clock = RecordingDocuments(), ManualClock()
    until = clock.now() + DAY + HOUR
    await documents.inner.save([Change(key=f"done/{A.hex()}", body=b'{"until":%d}' % until)])
    store = opened(documents, clock)
    assert await store.contains([A]) == {A: b""}
    await store.add([A, B], {A: b"12345678", B: b"87654321"})
    assert await store.contains([A, B, C]) == {A: b"12345678", B: b"87654321"}


async def test_a_mark_decides_by_its_body_who_is_admitted() -> None:
    """Another body clashes; the same one is done, and so is any body where the mark has none."""
    documents, clock = RecordingDocuments(), ManualClock()
    store = opened(documents, clock)
    admission = DedupStoreAdmission("shop", store)
    names = ("new", "same", "other", "old")
    of = {name: Message(id=name, source="till", type="t", body=b"{}") for name in names}
    await store.add([claim_key("shop", of["old"].identity)])
    await admission.retire([Record(of["same"].identity, fingerprint=of["same"].fingerprint)])
    await admission.retire([Record(of["other"].identity, fingerprint=fingerprint(b"another body"))])
    documents.calls.clear()
    told = await admission.admits(list(of.values()))
    assert told == (frozenset({of["new"].identity}), frozenset({of["other"].identity}), ())
    assert documents.calls == ["load"]


async def test_a_fingerprint_is_read_and_written_in_the_calls_that_are_made_anyway() -> None:
    """One to add, one to look."""
    documents, clock = RecordingDocuments(), ManualClock()
    store = opened(documents, clock)
    await store.add([A], {A: b"12345678"})
    await store.contains([A])
    await store.add([A], {A: b"12345678"})
    assert documents.calls == ["save", "load", "save", "load"]
    until = clock.now() + DAY + HOUR
    assert documents.written[0].body == b'{"until":%d,"body":"3132333435363738"}' % until


async def test_each_mark_of_a_batch_is_kept_from_its_own_instant_on() -> None:
    """Senders' clocks may be ahead: a message from the future is known until its own instant is behind the horizon."""
    documents, clock = RecordingDocuments(), ManualClock()
    admission = DedupStoreAdmission("shop", opened(documents, clock))
    instants = {f"{ahead}": clock.now() + ahead * HOUR for ahead in (1, 2, 3)}
    sent = [
        Identity("till", outgoing_id("till", Identity("web", name), 0, instant))
        for name, instant in [*instants.items(), ("none", 0)]
    ]
    await admission.retire([Record(identity) for identity in sent])
    kept = {change.key: json.loads(change.body or b"")["until"] for change in documents.written}
    first = kept.pop(min(kept, key=lambda each: kept[each]))
    assert first == clock.now() + DAY + HOUR
    assert sorted(kept.values()) == [instant + DAY + HOUR for instant in instants.values()]


async def test_an_old_mark_still_counts() -> None:
    """The message was handled, whatever any clock says."""
    documents, clock = RecordingDocuments(), ManualClock()
    store = opened(documents, clock)
    await store.add([A])
    clock.advance(100 * DAY)
    assert set(await store.contains([A])) == {A}


async def test_sweeping_drops_what_is_past_its_time() -> None:
    """And nothing else, page by page."""
    documents, clock = RecordingDocuments(), ManualClock()
    store = opened(documents, clock)
    await store.add([A, B])
    clock.advance(HOUR + DAY)
    await store.add([C])
    await documents.inner.save([Change(key="order/1", body=b"{}"), Change(key="token/shop/1", body=b"{}")])
    after, pages = await store.sweep(limit=2), 1
    assert set(await store.contains([A, B, C])) == {A, B, C}
    clock.advance(1)
    after = ""
    while after := await store.sweep(after=after, limit=2):
        pages += 1
    assert (set(await store.contains([A, B, C])), pages) == ({C}, 3)
    assert await documents.keys("") == (f"done/{C.hex()}", "order/1", "token/shop/1")


async def test_sweeping_leaves_a_mark_that_is_added_again_meanwhile() -> None:
    """What was looked at is what is deleted, or nothing."""
    documents, clock = ContestedDocuments(), ManualClock()
    store = opened(documents, clock)
    await store.add([A])
    clock.advance(2 * DAY)
    with pytest.raises(CommitFailed, match="other workers kept changing"):
        await store.sweep()
    assert set(await store.contains([A])) == {A}


async def test_losing_every_time_ends() -> None:
    """It failed: nothing was written."""
    documents = ContestedDocuments()
    await opened(documents).add([A])
    with pytest.raises(CommitFailed, match="gave up after 20 attempts"):
        await opened(documents).remove([A])
    assert documents.calls.count("save") == 1 + TRIES


@pytest.mark.parametrize("spoiled", [1, 2])
async def test_failing_after_some_were_written_is_unknown(spoiled: int) -> None:
    """CommitFailed would say that nothing happened."""
    documents, clock = RecordingDocuments(), ManualClock()
    await opened(documents, clock).add([A])
    clock.advance(DAY)
    documents.calls.clear()
    documents.spoils[spoiled] = CommitFailed("away")
    with pytest.raises(OutcomeUnknown, match="some documents were written"):
        await opened(documents, clock).add([A, B])


async def test_failing_before_anything_was_written_is_failed() -> None:
    """The first call was the only one."""
    documents = RecordingDocuments()
    documents.spoils[0] = CommitFailed("away")
    with pytest.raises(CommitFailed, match="away"):
        await opened(documents).add([A])


async def test_a_mark_of_another_format_is_a_mark() -> None:
    """It is written anew when its key is added."""
    documents = RecordingDocuments()
    await documents.inner.save([Change(key=f"done/{A.hex()}", body=b'{"until":"for ever"}')])
    assert set(await opened(documents).contains([A])) == {A}
    await opened(documents).add([A])
    assert b"for ever" not in (await documents.inner.load([f"done/{A.hex()}"]))[f"done/{A.hex()}"].body


async def test_nothing_is_asked_about_nothing() -> None:
    """No call for an empty list."""
    documents = RecordingDocuments()
    store = opened(documents)
    await store.add([])
    await store.remove([])
    await store.contains([])
    assert documents.calls == []


def test_a_store_that_remembers_for_no_time_is_refused() -> None:
    """It would be no dedup store."""
    with pytest.raises(SetupError, match="longer than 0"):
        DocumentMarkStore(RecordingDocuments(), retention=timedelta(), clock=ManualClock())


async def test_expired_marks_are_looked_for_page_by_page() -> None:
    """So many pages at a time, going on where the last look stopped, and beginning anew at the end."""
    documents, clock = RecordingDocuments(), ManualClock()
    done = DocumentMarkStore(documents, retention=timedelta(days=1), clock=clock)
    await done.add([bytes([number] * 16) for number in range(5)])
    clock.advance(3 * 86_400_000)
    await done.add([bytes([9] * 16)])
    marks = ExpiredMarks(done, pages=1)
    left = []
    for _ in range(4):
        await marks.remove_expired(2)
        left.append(await done.count(100))
    assert left == [4, 2, 1, 1]
