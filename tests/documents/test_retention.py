"""The retention that is stored in documents: read once a minute, changed by a command, and never relied on too soon."""

from datetime import timedelta

import pytest
from msgspec.structs import replace

from onceonly.documents.dedup import DocumentMarkStore
from onceonly.documents.retention import REFRESH_MS, DocumentRetentions, StoredRetention
from onceonly.documents.store import DocumentStore
from onceonly.model.changed_retention import KnownRetention
from onceonly.model.errors import CommitFailed
from onceonly.model.record import Record
from onceonly.model.retention import CLOCK_MARGIN_MS, GRACE_MS, in_milliseconds
from onceonly.model.ring import Undecidable
from onceonly.ports.documents import Change
from onceonly_conformance.ring_subject import at
from onceonly_conformance.suite import ENDPOINT
from tests.documents.harness import StoreHarness, handle

DAY, WEEK = 86_400_000, 7 * 86_400_000
KEY = f"retention/{ENDPOINT}"


class RetentionHarness(StoreHarness):
    """Stores whose retention is stored, each in a process of its own."""

    def stored(self, code: int = WEEK) -> StoredRetention:
        """Open the retention."""
        return StoredRetention(self.documents, ENDPOINT, clock=self.clock, configured=code)

    def store(self, history: timedelta | None = timedelta(days=7)) -> DocumentStore:
        """Open a store whose code says this."""
        assert history is not None
        return DocumentStore(
            self.documents, ENDPOINT, clock=self.clock, history=history, retention=self.stored(in_milliseconds(history))
        )

    def marks(self) -> DocumentMarkStore:
        """Open a dedup store."""
        return DocumentMarkStore(self.documents, retention=timedelta(days=7), clock=self.clock, stored=self.stored())

    async def change(self, kept: int) -> KnownRetention:
        """Change it, as the command does."""
        return await DocumentRetentions(self.stored(), clock=self.clock).change(kept)


async def reasons(store: DocumentStore, name: str, instant: int) -> list[Undecidable]:
    """Return why a message is refused."""
    unit = await store.begin([replace(at(instant, name), unit="order/17")])
    unit.abandon()
    return [each.reason for each in unit.found.undecidable]


async def test_the_first_process_stores_what_its_code_says_and_no_later_one_does() -> None:
    """So processes with different code keep one rule."""
    harness = RetentionHarness()
    assert (await harness.stored(WEEK).read()).latest == WEEK
    assert (await harness.stored(DAY).read()).latest == WEEK
    assert await DocumentRetentions(harness.stored(DAY), clock=harness.clock).find() == KnownRetention(kept=WEEK)


async def test_it_is_read_once_a_minute() -> None:
    """A call for many messages, and none while it is fresh."""
    harness = RetentionHarness()
    store = harness.store()
    await reasons(store, "m1", 0)
    harness.documents.calls.clear()
    for _ in range(10):
        await reasons(store, "m1", 0)
        harness.clock.advance(REFRESH_MS // 10)
    assert harness.documents.calls == ["load"] * 10
    await reasons(store, "m1", 0)
    assert harness.documents.calls == ["load"] * 12


async def test_an_entity_keeps_what_it_knows_when_the_retention_is_raised() -> None:
    """A copy of a message that was handled before the change is known for the new time, by old processes and new ones."""
    harness = RetentionHarness()
    old, sent = harness.store(), harness.clock.now()
    await handle(old, replace(at(sent, "m1"), unit="order/17"))
    harness.clock.advance(WEEK - REFRESH_MS)
    assert (await harness.change(30 * DAY)).kept == 30 * DAY
    harness.clock.advance(2 * REFRESH_MS + CLOCK_MARGIN_MS)
    await handle(old, replace(at(harness.clock.now(), "m2"), unit="order/17"))  # which trims
    unit = await old.begin([replace(at(sent, "m1"), unit="order/17")])
    assert [message.id for message in unit.found.done] == [at(sent, "m1").id]


async def test_a_longer_retention_is_not_relied_on_before_claims_are_kept_that_long() -> None:
    """A copy from before the change, whose record is trimmed, is refused; it is younger than the new retention."""
    harness = RetentionHarness()
    sent = harness.clock.now()
    await handle(harness.store(), replace(at(sent, "m1"), unit="order/17"))
    harness.clock.advance(WEEK + CLOCK_MARGIN_MS + 1)
    await handle(harness.store(), replace(at(harness.clock.now(), "m2"), unit="order/17"))  # which trims the first
    known = await harness.change(30 * DAY)
    assert await reasons(harness.store(), "m1", sent) == [Undecidable.TOO_OLD]
    assert known.known_since > sent
    harness.clock.advance(WEEK)
    assert await reasons(harness.store(), "m1", sent) == [Undecidable.TOO_OLD]
    assert await reasons(harness.store(), "m3", harness.clock.now() - WEEK + GRACE_MS) == []


async def test_a_process_that_has_not_read_a_shorter_retention_finds_what_it_accepts() -> None:
    """Nobody deletes by the shorter one while it may still go by the longer one."""
    harness = RetentionHarness()
    late, sent = harness.store(timedelta(days=7)), harness.clock.now()
    await handle(late, replace(at(sent, "m1"), unit="order/17"))
    harness.clock.advance(2 * DAY)
    await handle(late, replace(at(harness.clock.now(), "m2"), unit="order/17"))  # it has read the retention just now
    await harness.change(DAY)
    await handle(harness.store(), replace(at(harness.clock.now(), "m3"), unit="order/17"))
    unit = await late.begin([replace(at(sent, "m1"), unit="order/17")])
    assert unit.found.done


async def test_lowering_forgets_only_what_is_older() -> None:
    """Once all processes know of it."""
    harness = RetentionHarness()
    sent = harness.clock.now()
    await handle(harness.store(), replace(at(sent, "m1"), unit="order/17"))
    harness.clock.advance(2 * DAY)
    young = harness.clock.now()
    await handle(harness.store(), replace(at(young, "m2"), unit="order/17"))
    await harness.change(DAY)
    harness.clock.advance(GRACE_MS)
    await handle(harness.store(), replace(at(harness.clock.now(), "m3"), unit="order/17"))
    assert len((await harness.entity()).records) == 2
    assert await reasons(harness.store(), "m1", sent) == [Undecidable.TOO_OLD]
    unit = await harness.store().begin([replace(at(young, "m2"), unit="order/17")])
    assert unit.found.done


async def test_a_process_that_cannot_read_it_for_long_deletes_nothing() -> None:
    """A handler took an hour: what it read before may have been changed since."""
    harness = RetentionHarness()
    await handle(harness.store(), replace(at(harness.clock.now(), "m1"), unit="order/17"))
    harness.clock.advance(2 * WEEK)
    store, asked = harness.store(), replace(at(harness.clock.now(), "m2"), unit="order/17")
    unit = await store.begin([asked])
    await harness.change(30 * DAY)
    harness.clock.advance(CLOCK_MARGIN_MS)
    await unit.commit([Record(asked.identity)])
    assert len((await harness.entity()).records) == 2


async def test_marks_keep_the_time_that_they_were_made_with() -> None:
    """And the horizon knows it: a mark from before the change may be gone, one from after it is there."""
    harness = RetentionHarness()
    marks = harness.marks()
    before = at(harness.clock.now(), "before")
    await marks.add([b"a" * 16])
    await harness.change(30 * DAY)
    harness.clock.advance(GRACE_MS)
    after = at(harness.clock.now(), "after")
    await marks.add([b"b" * 16])
    assert [change.expires for change in harness.documents.written if change.key.startswith("done/")] == [
        before.instant + WEEK + CLOCK_MARGIN_MS,
        after.instant + 30 * DAY + CLOCK_MARGIN_MS,
    ]
    harness.clock.advance(WEEK)
    assert [each.message for each in await marks.undecidable([before, after])] == [before]
    harness.clock.advance(20 * DAY)
    assert [each.message for each in await marks.undecidable([before, after])] == [before]


async def test_a_retention_that_cannot_be_read_stops_messages_and_is_not_replaced() -> None:
    """Whoever replaced it would not know what was forgotten; messages wait, and none becomes a dead letter for it."""
    harness = RetentionHarness()
    await harness.documents.save([Change(key=KEY, body=b"{")])
    with pytest.raises(CommitFailed, match="is not a retention"):
        await harness.store().begin([at(0)])
    with pytest.raises(CommitFailed, match="is not a retention"):
        await harness.change(DAY)
    assert (await harness.documents.load([KEY]))[KEY].body == b"{"
