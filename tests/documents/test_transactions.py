"""What transactions leave in documents, for how long, and what answers that were lost come to."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.adapters.memory.world import Live
from onceonly.documents.store import DocumentStore
from onceonly.documents.transactions import DocumentTransaction, DocumentTransactions
from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt
from onceonly.ports.documents import Change, DocumentLimits, Version
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import effects
from onceonly_conformance.suite import ENDPOINT

HOUR = 3_600_000
DAY = 24 * HOUR
SMALL = DocumentLimits(service="this service", key=300, body=8192)


class Noting(MemoryDocuments):
    """Notes every write; fails at those it is told of."""

    def __init__(self) -> None:
        super().__init__(Live(), limits=SMALL)
        self.changes: list[Change] = []
        self.unanswered = ""

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write, and lose the answer where it is told so."""
        self.changes += changes
        answers = await super().save(changes)
        if self.unanswered and changes[0].key.startswith(self.unanswered):
            self.unanswered = ""
            raise OutcomeUnknown("no answer")
        return answers


class TransactionHarness:
    """Transactions on documents in memory, and the documents."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.documents = Noting()
        self.store = DocumentStore(self.documents, ENDPOINT, clock=self.clock, history=None)
        self.transactions = DocumentTransactions(self.store, retention=DAY)

    async def opened(self, attempt: str = "a1", key: str = "", entity: str = "") -> DocumentTransaction:
        """Open one."""
        opening = TransactionAttempt(
            endpoint=ENDPOINT, attempt=attempt, max_commit=1000, key=key, fingerprint=b"f" if key else b""
        )
        opened = await self.transactions.open(opening)
        assert not isinstance(opened, IdempotencyEntry)
        if entity:
            await opened.load(entity)
            self.entities(opened).write(entity, b'"state"')
        return opened

    def entities(self, opened: DocumentTransaction) -> Entities:
        """Return its entities."""
        found = opened.resources.get(Entities)
        assert isinstance(found, Entities)
        return found

    async def done(self, attempt: str = "a1", key: str = "", entity: str = "") -> Record:
        """Take one from beginning to end."""
        opened = await self.opened(attempt, key, entity)
        record = Record(
            TransactionAttempt(endpoint=ENDPOINT, attempt=attempt, max_commit=1).identity, effects(), unit=opened.unit
        )
        await opened.commit(record, b"answer")
        return record

    async def raw(self, key: str) -> dict[str, Any]:
        """Return a document as it is stored."""
        loaded = (await self.documents.load([key]))[key]
        found: dict[str, Any] = msgspec.json.decode(loaded.body)
        return found


async def test_what_a_transaction_leaves_is_gone_a_day_later() -> None:
    """Key, answer and the emptied record leave the entity's document when it is next written; its state stays."""
    harness = TransactionHarness()
    for attempt, key in (("a1", "k"), ("a2", "")):
        await harness.store.forget([await harness.done(attempt, key, "Account/A")])
    document = await harness.raw("entity/Account/A")
    assert (len(document["keys"]), len(document["records"])) == (1, 1)
    harness.clock.advance(DAY + 2 * HOUR)
    opened = await harness.opened("a3", entity="Account/A")
    harness.entities(opened).write("Account/A", b'"later"')
    await opened.commit(None, None)
    assert await harness.raw("entity/Account/A") == {"onceonly": 1, "state": "later"}
    assert await harness.transactions.entry("k") is None


async def test_a_record_that_is_pending_stays_however_long_it_takes() -> None:
    """Only its dispatch ends it."""
    harness = TransactionHarness()
    record = await harness.done(entity="Account/A")
    harness.clock.advance(100 * DAY)
    opened = await harness.opened("a2", entity="Account/A")
    harness.entities(opened).write("Account/A", b'"later"')
    await opened.commit(None, None)
    assert await harness.transactions.record(record.identity, record.unit) == record


async def test_documents_of_keys_and_attempts_may_expire_once_nothing_is_pending() -> None:
    """Not before what is in them is over; an entity's never does."""
    harness = TransactionHarness()
    for attempt, key in (("a1", "k"), ("a2", "")):
        record = await harness.done(attempt, key)
        assert harness.documents.changes[-1].expires == 0
        await harness.store.forget([record])
        assert harness.documents.changes[-1].expires >= harness.clock.now() + DAY
    await harness.store.forget([await harness.done("a3", "l", "Account/A")])
    by_kind = {change.key.partition("/")[0]: change.expires for change in harness.documents.changes}
    assert by_kind["entity"] == 0
    assert all(by_kind[kind] >= harness.clock.now() + DAY for kind in ("key", "attempt"))


async def test_a_key_whose_way_was_not_answered_is_committed_by_the_next_attempt() -> None:
    """The caller is told that nothing happened, and so it was."""
    harness = TransactionHarness()
    harness.documents.unanswered = "key/"
    opened = await harness.opened("a1", "k", "Account/A")
    with pytest.raises(CommitFailed, match="nothing was committed"):
        await opened.commit(None, b"first")
    assert await harness.transactions.entry("k") is None
    await harness.done("a2", "k", "Account/B")
    kept = await harness.transactions.entry("k")
    assert kept is not None
    assert kept.attempt == "a2"


async def test_a_commit_that_was_not_answered_may_have_happened() -> None:
    """The key tells."""
    harness = TransactionHarness()
    harness.documents.unanswered = "entity/"
    opened = await harness.opened("a1", "k", "Account/A")
    with pytest.raises(OutcomeUnknown):
        await opened.commit(None, b"first")
    assert await harness.transactions.entry("k") == IdempotencyEntry("a1", b"f", b"first")


async def test_what_is_too_large_is_refused_before_it_is_written() -> None:
    """With its size, and what the service holds."""
    harness = TransactionHarness()
    opened = await harness.opened("a1", "", "Account/A")
    harness.entities(opened).write("Account/A", msgspec.json.encode("x" * 8000))
    with pytest.raises(CommitRefused, match="this service stores 8,192"):
        await opened.commit(None, None)
    assert harness.documents.changes == []


async def test_a_state_that_is_no_json_is_refused() -> None:
    """It would make the document useless for every other worker."""
    harness = TransactionHarness()
    opened = await harness.opened(entity="Account/A")
    harness.entities(opened).write("Account/A", b"{")
    with pytest.raises(CommitRefused, match="is not JSON"):
        await opened.commit(None, None)


async def test_a_document_of_somebody_else_is_refused() -> None:
    """Nothing is written over it."""
    harness = TransactionHarness()
    await harness.documents.save([Change(key="entity/Account/A", body=b"{}")])
    with pytest.raises(CommitRefused, match="was not written by onceonly"):
        await harness.opened(entity="Account/A")
