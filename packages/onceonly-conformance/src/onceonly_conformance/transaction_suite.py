"""The contract of the Transactions port, rule by rule, and of the Attempts port that control messages use.

Every check runs in another process than the write.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

from msgspec import structs

from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, TransactionMisused
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, attempt_unit
from onceonly.ports.transactions import Attempts, OpenTransaction, Transactions
from onceonly_conformance.samples import effects
from onceonly_conformance.store_subject import MOMENT_SECONDS, FencedStore
from onceonly_conformance.suite import ENDPOINT, OTHER, Suite, moments, raises, steps

LIMIT_MS = 10_000
TIMELY_MS, LATE_MS = 9, 60
"""Milliseconds before a commit that is in time, and before one that is late if `max_commit` is `LATE_MS // 2`."""
WAIT_MS, WAITED_SECONDS = 50, 4.0
"""Milliseconds to wait for a key that another attempt has, and the limit of that wait in seconds on a slow machine."""
CLIENTS = 6
ODD_KEYS = ("k", "K", "k ", " k", "ķ", "k\u0301", "\U0001f511", "k\n", "'; --", "k" * 255)
LONG = bytes(range(256)) * 200


class TransactionSubject(Protocol):
    """Transactions under test. Their business data is a table of texts by key."""

    async def transactions(self, endpoint: str = ENDPOINT) -> Transactions:
        """Open the transactions of an endpoint. Each call opens them as a separate process would."""

    async def store(self) -> FencedStore:
        """Open the store of the transactions."""

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:
        """Write one business value, as a user's block would."""

    async def read(self) -> dict[str, str]:
        """Read the committed business data outside of any transaction."""

    async def record(self, record: Record) -> Record | None:
        """Return the committed record of an attempt, found by its identity and unit."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the store's time pass. A store that uses the real time waits for it."""


class AttemptsSubject(TransactionSubject, Protocol):
    """Transactions that control messages finish."""

    async def attempts(self) -> Attempts:
        """Open the attempts that control messages check, as a separate process would."""


def opening(attempt: str = "a1", *, key: str = "", endpoint: str = ENDPOINT, max_commit: int = LIMIT_MS) -> TransactionAttempt:
    """Return an attempt. The key determines the fingerprint of the request."""
    fingerprint = key.encode().ljust(16, b".")[:16] if key else b""
    return TransactionAttempt(endpoint=endpoint, attempt=attempt, max_commit=max_commit, key=key, fingerprint=fingerprint)


def record_of(asked: TransactionAttempt, opened: OpenTransaction) -> Record:
    """Return the record of an attempt, with messages of every kind."""
    return Record(asked.identity, effects(), unit=opened.unit)


async def opened_by(subject: TransactionSubject, asked: TransactionAttempt) -> OpenTransaction:
    """Open an attempt as a separate process. Its key must not be committed."""
    found = await (await subject.transactions(asked.endpoint)).open(asked)
    assert not isinstance(found, IdempotencyEntry), f"the key {asked.key!r} was not committed, but `open` found {found}"
    return found


async def done(
    subject: TransactionSubject,
    asked: TransactionAttempt,
    *,
    answer: bytes | None = None,
    writes: bool = True,
    sends: bool = True,
) -> Record:
    """Run one transaction from begin to commit. Return its record, which is committed if `sends` is true."""
    opened = await opened_by(subject, asked)
    if writes:
        await subject.write(opened, asked.attempt, "done")
    record = record_of(asked, opened)
    await opened.commit(record if sends else None, answer)
    return record


async def fence(subject: TransactionSubject, record: Record, asked: TransactionAttempt) -> Record | None:
    """Fence an attempt, as a sweeper does that finds its tokens."""
    return await (await subject.store()).fence(record.unit or attempt_unit(asked.max_commit), record.identity)


async def wins(opened: OpenTransaction, record: Record) -> bool:
    """Commit. Return False for a ConflictError."""
    try:
        await opened.commit(record, b"an answer")
    except ConflictError:
        return False
    return True


class TransactionSuite(Suite):
    """The rules of transactions. Override `open_transactions`."""

    def open_transactions(self) -> AbstractAsyncContextManager[TransactionSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    # The commit

    async def test_a_commit_makes_everything_final(self) -> None:
        """Every process sees business data, record, key and answer after the commit."""
        asked = opening(key="k")
        async with self.open_transactions() as subject:
            record = await done(subject, asked, answer=b"an answer")
            assert await subject.read() == {"a1": "done"}
            assert await subject.record(record) == record
            assert without_records(await kept(subject, "k")) == IdempotencyEntry("a1", asked.fingerprint, b"an answer")

    async def test_a_fenced_attempt_is_never_committed(self) -> None:
        """The fence makes a running attempt fail, or waits for it and returns its record."""
        for key in ("", "k"):
            asked = opening(key=key)
            async with self.open_transactions() as subject:
                opened = await opened_by(subject, asked)
                await subject.write(opened, "a1", "done")
                await self._loses_or_is_found(subject, opened, asked)

    async def test_an_attempt_is_fenced_before_it_has_loaded_anything(self) -> None:
        """A fence also affects an attempt that has not loaded anything yet."""
        for key in ("", "k"):
            asked = opening(key=key)
            async with self.open_transactions() as subject:
                await self._loses_or_is_found(subject, await opened_by(subject, asked), asked)

    async def _loses_or_is_found(self, subject: TransactionSubject, opened: OpenTransaction, asked: TransactionAttempt) -> None:
        record = record_of(asked, opened)
        fencing = asyncio.create_task(fence(subject, record, asked))
        await asyncio.wait([fencing], timeout=min(self.patience, MOMENT_SECONDS))
        won = await wins(opened, record)
        opened.abandon()
        async with asyncio.timeout(self.patience):
            try:
                found = await fencing
            except ConflictError:  # the commit came between its read and its write, so it is repeated
                assert won
                found = await fence(subject, record, asked)
        assert (found is not None) == won
        committed = await subject.record(record)
        assert (committed is not None and bool(committed.effects)) == won

    async def test_a_fence_gives_the_record_of_what_is_committed(self) -> None:
        """A fence returns the committed record, which stays for its dispatch."""
        for attempt, key in (("a1", ""), ("a2", "k")):
            asked = opening(attempt, key=key)
            async with self.open_transactions() as subject:
                record = await done(subject, asked, answer=b"an answer")
                found = await fence(subject, record, asked)
                assert found is not None
                assert found.effects == record.effects
                assert await subject.record(record) == record

    async def test_a_fence_may_be_repeated(self) -> None:
        """Each fence of an attempt gives the same answer: its record, or nothing. Other attempts do not matter."""
        async with self.open_transactions() as subject:
            lost = opening("lost")
            opened = await opened_by(subject, lost)
            await subject.write(opened, "lost", "never")
            record = record_of(lost, opened)
            opened.abandon()
            kept = opening("kept")
            committed = await done(subject, kept)
            for _ in range(3):
                assert await fence(subject, record, lost) is None
                found = await fence(subject, committed, kept)
                assert found is not None
                assert found.effects == committed.effects
            assert await subject.read() == {"kept": "done"}

    async def test_a_fence_outlasts_the_fences_of_others(self) -> None:
        """An open attempt that is fenced is never committed, whatever is fenced after it."""
        async with self.open_transactions() as subject:
            first = opening("first")
            opened = await opened_by(subject, first)
            await subject.write(opened, "first", "never")
            record = record_of(first, opened)
            fencing = asyncio.create_task(fence(subject, record, first))
            await asyncio.wait([fencing], timeout=min(self.patience, MOMENT_SECONDS))
            for other in map(opening, ("a", "b", "c") if fencing.done() else ()):  # else it waits for the attempt
                assert await fence(subject, Record(other.identity, unit=record.unit), other) is None
            won = await wins(opened, record)
            opened.abandon()
            async with asyncio.timeout(self.patience):
                assert (await fencing is not None) == won
            assert await subject.read() == ({"first": "never"} if won else {})

    async def test_nothing_is_seen_before_the_commit(self) -> None:
        """Business data is not visible to other processes before the commit."""
        asked = opening(key="k")
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, asked)
            await subject.write(opened, "a1", "not yet")
            assert await subject.read() == {}
            opened.abandon()

    async def test_nothing_is_left_of_what_is_abandoned(self) -> None:
        """An abandoned transaction writes nothing, and releases its key."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening("a1", key="k"))
            await subject.write(opened, "a1", "never")
            opened.abandon()
            await done(subject, opening("a2", key="k"))
            assert await subject.read() == {"a2": "done"}

    async def test_data_alone_can_be_committed(self) -> None:
        """A transaction without a key and without messages commits its business data."""
        async with self.open_transactions() as subject:
            record = await done(subject, opening(), sends=False)
            assert await subject.read() == {"a1": "done"}
            assert await subject.record(record) is None

    async def test_messages_alone_can_be_committed(self) -> None:
        """A transaction without business data commits its messages, with and without a key."""
        async with self.open_transactions() as subject:
            for asked in (opening("a1"), opening("a2", key="k")):
                record = await done(subject, asked, writes=False)
                assert await subject.record(record) == record

    async def test_nothing_at_all_can_be_committed(self) -> None:
        """A transaction without data and messages commits without an error."""
        async with self.open_transactions() as subject:
            await done(subject, opening(), writes=False, sends=False)

    async def test_a_transaction_ends_once(self) -> None:
        """A second commit raises CommitFailed. `abandon` after a commit changes nothing."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            await subject.write(opened, "a1", "done")
            await opened.commit(None, None)
            opened.abandon()
            async with raises(CommitFailed):
                await opened.commit(None, None)
            assert await subject.read() == {"a1": "done"}

    async def test_what_is_abandoned_cannot_be_committed(self) -> None:
        """The commit of an abandoned transaction raises an error and stores nothing."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening(key="k"))
            opened.abandon()
            async with raises(CommitFailed, ConflictError):
                await opened.commit(None, b"an answer")
            assert await kept(subject, "k") is None

    async def test_a_late_commit_fails(self) -> None:
        """A commit later than `max_commit` after the opening raises CommitFailed and changes nothing."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening(key="k", max_commit=LATE_MS // 2))
            await subject.write(opened, "a1", "late")
            await subject.pass_time(LATE_MS)
            async with raises(CommitFailed):
                await opened.commit(record_of(opening(), opened), b"late")
            assert (await subject.read(), await kept(subject, "k")) == ({}, None)

    async def test_a_commit_in_time_is_not_late(self) -> None:
        """A commit within `max_commit` of the opening succeeds."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            await subject.write(opened, "a1", "done")
            await subject.pass_time(TIMELY_MS)
            await opened.commit(None, None)
            assert await subject.read() == {"a1": "done"}

    async def test_a_dispatched_record_is_forgotten(self) -> None:
        """`forget` deletes the effects of a record. Business data and key stay."""
        async with self.open_transactions() as subject:
            for asked in (opening("a1"), opening("a2", key="k")):
                record = await done(subject, asked, answer=b"kept")
                await (await subject.store()).forget([record])
                left = await subject.record(record)
                assert left is None or not left.effects
            assert await subject.read() == {"a1": "done", "a2": "done"}
            entry = IdempotencyEntry("a2", opening(key="k").fingerprint, b"kept")
            assert without_records(await kept(subject, "k")) == entry

    # Keys

    async def test_a_key_that_is_committed_is_known(self) -> None:
        """Every later attempt with the key receives the entry of the first, with its answer."""
        asked = opening(key="k")
        async with self.open_transactions() as subject:
            await done(subject, asked, answer=b"first")
            transactions = await subject.transactions()
            for attempt in ("a2", "a3"):
                opened = await transactions.open(opening(attempt, key="k"))
                assert isinstance(opened, IdempotencyEntry), (
                    f"the key is committed, but `open` began another attempt: {attempt}"
                )
                assert without_records(opened) == IdempotencyEntry("a1", asked.fingerprint, b"first")

    async def test_a_known_key_has_the_record_until_it_is_forgotten(self) -> None:
        """The caller that repeats a key may be the only one left to dispatch what was committed under it."""
        async with self.open_transactions() as subject:
            record = await done(subject, opening("a1", key="k"), answer=b"first")
            await done(subject, opening("a2"), answer=None)
            transactions = await subject.transactions()
            opened = await transactions.open(opening("a3", key="k"))
            assert isinstance(opened, IdempotencyEntry)
            assert (opened.records, (await found(subject, "k")).records) == ((record,), (record,))
            await (await subject.store()).forget([record])
            opened = await transactions.open(opening("a4", key="k"))
            assert isinstance(opened, IdempotencyEntry)
            assert (opened.records, (await found(subject, "k")).records) == ((), ())

    async def test_a_key_may_be_kept_without_an_answer(self) -> None:
        """No answer and an empty answer are stored as different values."""
        async with self.open_transactions() as subject:
            await done(subject, opening("a1", key="none"), answer=None)
            await done(subject, opening("a2", key="empty"), answer=b"")
            assert [(await found(subject, key)).answer for key in ("none", "empty")] == [None, b""]

    async def test_an_answer_is_exact(self) -> None:
        """An answer is stored byte for byte, also a long one."""
        async with self.open_transactions() as subject:
            await done(subject, opening(key="k"), answer=LONG, writes=False, sends=False)
            assert (await found(subject, "k")).answer == LONG

    async def test_keys_are_exact(self) -> None:
        """Every character of a key counts."""
        async with self.open_transactions() as subject:
            writer, reader = await subject.transactions(), await subject.transactions()
            for number, key in enumerate(ODD_KEYS):
                opened = await writer.open(opening(f"a{number}", key=key))
                assert not isinstance(opened, IdempotencyEntry), f"`open` found the entry of another key for {key!r}: {opened}"
                await opened.commit(None, key.encode())
            answers = {key: there.answer for key in ODD_KEYS if (there := await reader.entry(key)) is not None}
            assert answers == {key: key.encode() for key in ODD_KEYS}

    async def test_a_key_is_one_endpoints(self) -> None:
        """Each endpoint has its own keys."""
        async with self.open_transactions() as subject:
            await done(subject, opening("a1", key="k"), answer=b"shop", writes=False)
            await done(subject, opening("a2", key="k", endpoint=OTHER), answer=b"other", writes=False)
            assert (await found(subject, "k")).answer == b"shop"
            assert (await found(subject, "k", OTHER)).answer == b"other"

    async def test_a_key_nobody_committed_is_not_there(self) -> None:
        """`entry` returns None for a key that is not committed, and leaves nothing."""
        async with self.open_transactions() as subject:
            assert await kept(subject, "k") is None
            await done(subject, opening(key="k"))

    async def test_of_many_attempts_with_one_key_one_is_committed(self) -> None:
        """Of concurrent attempts with one key, exactly one commits.

        The others wait and receive its entry, or raise ConflictError. They change nothing.
        """
        async with self.open_transactions() as subject:
            names = [f"a{number}" for number in range(CLIENTS)]
            ended = await asyncio.gather(*(_attempt(subject, opening(name, key="k")) for name in names))
            (winner,) = [name for name, has_won in zip(names, ended, strict=True) if has_won]
            assert list(await subject.read()) == [winner]
            assert (await found(subject, "k")).attempt == winner

    async def test_who_has_a_key_is_waited_for_no_longer_than_asked(self) -> None:
        """`open` waits at most `wait` milliseconds for another attempt with the key, then raises ConflictError.

        A store may raise it at the commit instead. The first attempt can still commit.
        """
        async with self.open_transactions() as subject:
            first = await opened_by(subject, opening("a1", key="k"))
            second, transactions = structs.replace(opening("a2", key="k"), wait=WAIT_MS), await subject.transactions()
            try:
                async with asyncio.timeout(WAITED_SECONDS):
                    found = await transactions.open(second)
            except ConflictError:
                found = None
            except TimeoutError:
                first.abandon()  # else the second attempt would wait longer
                raise
            assert not isinstance(found, IdempotencyEntry)
            if found is not None:
                found.abandon()
            await first.commit(None, b"first")
            answered = await transactions.open(opening("a3", key="k"))
            assert isinstance(answered, IdempotencyEntry)
            assert answered.answer == b"first"

    async def test_a_cancelled_opening_holds_nobody_back(self) -> None:
        """An attempt that is cancelled while it opens has no key afterwards, and its transaction has ended.

        `open` is cancelled later and later, until it is not any more.
        """
        async with self.open_transactions() as subject:
            transactions = await subject.transactions()
            await transactions.entry("k")  # connects
            for turns in moments():
                attempt = asyncio.create_task(transactions.open(opening(f"a{turns}", key=f"k{turns}")))
                await steps(turns)
                attempt.cancel()
                await asyncio.wait([attempt])
                if not attempt.cancelled():
                    opened = attempt.result()
                    assert not isinstance(opened, IdempotencyEntry)
                    opened.abandon()
                async with asyncio.timeout(self.patience):
                    await done(subject, opening(f"b{turns}", key=f"k{turns}"))
                if not attempt.cancelled():
                    break


class EntitySuite(Suite):
    """The rules of transactions on entities. Override `open_transactions`."""

    def open_transactions(self) -> AbstractAsyncContextManager[TransactionSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_an_entity_is_there_for_the_next_transaction(self) -> None:
        """The next transaction loads an entity in the state that was committed, changed or deleted."""
        async with self.open_transactions() as subject:
            seen = [await _change(subject, f"a{number}", state) for number, state in enumerate((b"1", b"[2]", None, b"3"))]
            assert seen == [None, b"1", b"[2]", None]

    async def test_an_entity_that_is_only_looked_at_stays(self) -> None:
        """A transaction that loads an entity without changing it does not write it."""
        async with self.open_transactions() as subject:
            await _change(subject, "a1", b"1")
            opened = await opened_by(subject, opening("a2", key="k"))
            await opened.load("Account/A")
            await opened.commit(None, b"looked")
            assert await _change(subject, "a3", b"1") == b"1"

    async def test_an_entity_is_loaded_once(self) -> None:
        """A second `load` keeps the changes made since the first."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            await opened.load("Account/A")
            entities_of(opened).write("Account/A", b"1")
            await opened.load("Account/A")
            assert entities_of(opened).read("Account/A") == b"1"
            opened.abandon()

    async def test_an_entity_with_a_key_too_long_is_refused(self) -> None:
        """`load` raises CommitRefused for a key that is too long."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            async with raises(CommitRefused):
                await opened.load("Account/" + "A" * 5000)
            opened.abandon()

    async def test_of_two_that_change_an_entity_none_overwrites_the_other(self) -> None:
        """Concurrent changes of an entity wait for each other, or raise ConflictError. No change is lost."""
        async with self.open_transactions() as subject:
            ended = await asyncio.gather(*(_append(subject, f"a{number}") for number in range(CLIENTS)))
            assert sum(ended) == len(await _change(subject, "last", None) or b"") > 0


class AttemptSuite(Suite):
    """The rules about control messages that finish transactions. Override `open_attempts`."""

    def open_attempts(self) -> AbstractAsyncContextManager[AttemptsSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_an_attempt_has_a_record_once_it_is_committed(self) -> None:
        """An attempt has no record before its commit.

        Without a key, a record without effects stays after the dispatch. It shows that the attempt has ended.
        """
        async with self.open_attempts() as subject:
            asked = opening()
            opened = await opened_by(subject, asked)
            await subject.write(opened, "a1", "done")
            record = structs.replace(record_of(asked, opened), unit=unit_of(asked, opened))
            assert await ended(subject, record) is None
            await opened.commit(record, None)
            assert await ended(subject, record) == record
            await (await subject.store()).forget([record])
            assert await ended(subject, record) == Record(asked.identity, unit=record.unit)

    async def test_an_attempt_with_a_key_has_none_after_its_dispatch(self) -> None:
        """Its key shows that it was committed."""
        async with self.open_attempts() as subject:
            asked = opening(key="k")
            opened = await opened_by(subject, asked)
            record = structs.replace(record_of(asked, opened), unit=unit_of(asked, opened))
            await opened.commit(record, b"kept")
            assert await ended(subject, record) == record
            await (await subject.store()).forget([record])
            assert await ended(subject, record) is None
            assert (await found(subject, "k")).attempt == asked.attempt

    async def test_a_key_is_found_by_whoever_looks_after_its_endpoint(self) -> None:
        """`entry` finds a key by its endpoint. The worker of another endpoint may check it."""
        async with self.open_attempts() as subject:
            await done(subject, opening(key="k"), answer=b"kept")
            attempts = await subject.attempts()
            assert (await attempts.entry("k", ENDPOINT), await attempts.entry("k", OTHER)) == (await kept(subject, "k"), None)

    async def test_what_is_buried_cannot_be_committed(self) -> None:
        """Of `bury` and the commit of an open attempt, one succeeds, whether it has an entity, a key or neither."""
        for key, writes in (("", True), ("k", True), ("l", False), ("", False)):
            async with self.open_attempts() as subject:
                asked = opening(f"a{key}{writes}", key=key)
                opened = await opened_by(subject, asked)
                if writes:
                    await subject.write(opened, asked.attempt, "buried")
                burying = asyncio.create_task((await subject.attempts()).bury(asked.identity, unit_of(asked, opened)))
                await asyncio.wait([burying], timeout=min(self.patience, MOMENT_SECONDS))  # it may wait for the attempt
                won = await wins(opened, record_of(asked, opened))
                opened.abandon()
                async with asyncio.timeout(self.patience), raises(ConflictError) if won else nullcontext():
                    await burying
                assert await subject.read() == ({asked.attempt: "buried"} if won and writes else {})
                assert (await kept(subject, key) is not None if key else False) == (won and bool(key))

    async def test_what_is_committed_cannot_be_buried(self) -> None:
        """`bury` raises ConflictError for a committed attempt, and keeps its record."""
        async with self.open_attempts() as subject:
            for asked in (opening("a1"), opening("a2", key="k")):
                record = await done(subject, asked)
                unit = record.unit or attempt_unit(asked.max_commit)
                async with raises(ConflictError):
                    await (await subject.attempts()).bury(asked.identity, unit)
                kept_record = await ended(subject, structs.replace(record, unit=unit))
                assert kept_record is not None
                assert kept_record.effects == record.effects

    async def test_a_tombstone_says_that_it_is_over(self) -> None:
        """A tombstone is a record without effects. A second `bury` raises ConflictError."""
        async with self.open_attempts() as subject:
            asked = opening()
            opened = await opened_by(subject, asked)
            opened.abandon()
            attempts, unit = await subject.attempts(), unit_of(asked, opened)
            await attempts.bury(asked.identity, unit)
            assert await attempts.record(asked.identity, unit) == Record(asked.identity, unit=unit)
            async with raises(ConflictError):
                await attempts.bury(asked.identity, unit)

    async def test_a_tombstone_outlives_the_deadline(self) -> None:
        """A tombstone stays after the attempt's deadline, even if its document is written again."""
        async with self.open_attempts() as subject:
            asked = opening("slow", max_commit=LATE_MS // 2)
            slow = await opened_by(subject, asked)
            await subject.write(slow, "slow", "buried")
            slow.abandon()
            await (await subject.attempts()).bury(asked.identity, unit_of(asked, slow))
            await subject.pass_time(LATE_MS)
            await done(subject, opening("a2"))
            assert await (await subject.attempts()).record(asked.identity, unit_of(asked, slow)) is not None

    async def test_a_buried_attempt_does_not_block_its_key(self) -> None:
        """A new attempt can commit the key of a buried one."""
        async with self.open_attempts() as subject:
            for writes in (True, False):
                asked = opening(f"slow{writes}", key=f"k{writes}")
                slow = await opened_by(subject, asked)
                if writes:
                    await subject.write(slow, asked.attempt, "buried")
                slow.abandon()
                await (await subject.attempts()).bury(asked.identity, unit_of(asked, slow))
                await done(subject, opening(f"again{writes}", key=asked.key), writes=writes)
                assert (await found(subject, asked.key)).attempt == f"again{writes}"


class OneEntitySuite(Suite):
    """The rules of transactions that cover one entity, on documents. Override `open_attempts`."""

    def open_attempts(self) -> AbstractAsyncContextManager[AttemptsSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_key_is_committed_once_whichever_entity_its_attempts_take(self) -> None:
        """Of attempts with one key, exactly one commits, whether they change different entities or none."""
        async with self.open_attempts() as subject:
            ended = await asyncio.gather(*(_on_an_entity(subject, f"a{number}") for number in range(CLIENTS)))
            winners = [name for name, has_won in ended if has_won]
            assert [(await found(subject, "k")).attempt] == winners

    async def test_a_second_entity_is_refused(self) -> None:
        """`load` raises TransactionMisused for a second entity. The transaction can still commit the first."""
        async with self.open_attempts() as subject:
            opened = await opened_by(subject, opening())
            await opened.load("Account/A")
            async with raises(TransactionMisused):
                await opened.load("Account/B")
            entities_of(opened).write("Account/A", b"1")
            await opened.commit(None, None)
            assert await _change(subject, "a2", b"2") == b"1"


def unit_of(asked: TransactionAttempt, opened: OpenTransaction) -> str:
    """Return the unit of an attempt's record, as its control message has it."""
    return opened.unit or attempt_unit(asked.max_commit)


async def ended(subject: AttemptsSubject, record: Record) -> Record | None:
    """Return what a control message finds in the place of this record."""
    return await (await subject.attempts()).record(record.identity, record.unit)


def entities_of(opened: OpenTransaction) -> Entities:
    """Return the entities of a transaction."""
    entities = opened.resources.get(Entities)
    assert isinstance(entities, Entities)
    return entities


async def kept(subject: TransactionSubject, key: str, endpoint: str = ENDPOINT) -> IdempotencyEntry | None:
    """Read the entry of a key as a separate process, or None."""
    return await (await subject.transactions(endpoint)).entry(key)


def without_records(entry: IdempotencyEntry | None) -> IdempotencyEntry | None:
    """Return an entry without the records that are to be dispatched. Another rule compares these."""
    return None if entry is None else structs.replace(entry, records=())


async def found(subject: TransactionSubject, key: str, endpoint: str = ENDPOINT) -> IdempotencyEntry:
    """Read the entry of a key that must be committed."""
    there = await kept(subject, key, endpoint)
    assert there is not None, f"no entry is stored for the key {key!r}"
    return there


async def _attempt(subject: TransactionSubject, asked: TransactionAttempt) -> bool:
    """Try once. Return whether this attempt was committed."""
    try:
        opened = await (await subject.transactions()).open(asked)
        if isinstance(opened, IdempotencyEntry):
            return False
        await subject.write(opened, asked.attempt, "done")
        await opened.commit(record_of(asked, opened), asked.attempt.encode())
    except ConflictError:
        return False
    return True


async def _change(subject: TransactionSubject, attempt: str, state: bytes | None) -> bytes | None:
    """Change an entity, and return its earlier state."""
    opened = await opened_by(subject, opening(attempt))
    await opened.load("Account/A")
    entities = entities_of(opened)
    before = entities.read("Account/A")
    entities.write("Account/A", state)
    await opened.commit(None, None)
    return before


async def _append(subject: TransactionSubject, attempt: str) -> bool:
    """Append a digit to an entity. Return whether that was committed.

    A deadlock may also raise CommitFailed: nothing was written.
    """
    try:
        opened = await opened_by(subject, opening(attempt))
        await opened.load("Account/A")
        entities = entities_of(opened)
        entities.write("Account/A", (entities.read("Account/A") or b"") + b"1")
        await opened.commit(None, None)
    except (ConflictError, CommitFailed):
        return False
    return True


async def _on_an_entity(subject: TransactionSubject, attempt: str) -> tuple[str, bool]:
    """Retry under one key, on an own entity or none, until one attempt commits. Return whether it was this one."""
    transactions = await subject.transactions()
    while True:
        opened = await transactions.open(opening(attempt, key="k"))
        if isinstance(opened, IdempotencyEntry):
            return attempt, False
        try:
            if attempt != "a0":
                await opened.load(f"Order/{attempt}")
                entities_of(opened).write(f"Order/{attempt}", b"1")
            await opened.commit(None, attempt.encode())
        except ConflictError:
            await asyncio.sleep(0)
        else:
            return attempt, True
