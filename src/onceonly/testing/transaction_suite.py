"""The contract of the Transactions port, rule by rule, and of the Attempts port beside it where a store cannot be searched.

Every look is taken by another process than the one that wrote.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import structs

from onceonly.model.entities import Entities
from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, TransactionMisused
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, attempt_unit
from onceonly.ports.transactions import Attempts, OpenTransaction, Transactions
from onceonly.testing.samples import effects
from onceonly.testing.store_subject import MOMENT_SECONDS, FencedStore
from onceonly.testing.suite import ENDPOINT, OTHER, Suite, raises

LIMIT_MS = 10_000
TIMELY_MS, LATE_MS = 9, 60
"""Milliseconds: of a commit in time, and of one that is late where `LATE // 2` are given."""
WAIT_MS, WAITED_SECONDS = 50, 4.0
"""Milliseconds for which a key is waited for that somebody has; and seconds within which that ends on a slow machine."""
CLIENTS = 6
ODD_KEYS = ("k", "K", "k ", " k", "ķ", "k\u0301", "\U0001f511", "k\n", "'; --", "k" * 255)
LONG = bytes(range(256)) * 200


class TransactionSubject(Protocol):
    """Transactions under test, with a table of texts by key as their business data."""

    async def transactions(self, endpoint: str = ENDPOINT) -> Transactions:
        """Open those of an endpoint, each time as a process of its own would."""

    async def store(self) -> FencedStore:
        """Open the store that they belong to."""

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:
        """Write one business value, as the block of a user would."""

    async def read(self) -> dict[str, str]:
        """Read the committed business data, from outside any transaction."""

    async def record(self, record: Record) -> Record | None:
        """Give what is committed of this attempt, found by its identity, and its unit."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the store's time pass; where that is the time of the world, wait for it."""


class AttemptsSubject(TransactionSubject, Protocol):
    """Transactions of a store that cannot be searched."""

    async def attempts(self) -> Attempts:
        """Open what control messages ask, as a process of its own would."""


def opening(attempt: str = "a1", *, key: str = "", endpoint: str = ENDPOINT, max_commit: int = LIMIT_MS) -> TransactionAttempt:
    """Make an attempt; what is asked under a key is told by the key."""
    fingerprint = key.encode().ljust(16, b".")[:16] if key else b""
    return TransactionAttempt(endpoint=endpoint, attempt=attempt, max_commit=max_commit, key=key, fingerprint=fingerprint)


def record_of(asked: TransactionAttempt, opened: OpenTransaction) -> Record:
    """Make the record of an attempt, with messages of every kind."""
    return Record(asked.identity, effects(), unit=opened.unit)


async def opened_by(subject: TransactionSubject, asked: TransactionAttempt) -> OpenTransaction:
    """Open one, as a process of its own, that is not known yet."""
    found = await (await subject.transactions(asked.endpoint)).open(asked)
    assert not isinstance(found, IdempotencyEntry), f"{asked.key!r} is known, and nobody has committed it: {found}"
    return found


async def done(
    subject: TransactionSubject,
    asked: TransactionAttempt,
    *,
    answer: bytes | None = None,
    writes: bool = True,
    sends: bool = True,
) -> Record:
    """Take one from beginning to end; gives its record, committed where it `sends`."""
    opened = await opened_by(subject, asked)
    if writes:
        await subject.write(opened, asked.attempt, "done")
    record = record_of(asked, opened)
    await opened.commit(record if sends else None, answer)
    return record


async def fence(subject: TransactionSubject, record: Record, asked: TransactionAttempt) -> Record | None:
    """Fence an attempt as a sweeper does that finds its tokens."""
    return await (await subject.store()).fence(record.unit or attempt_unit(asked.max_commit), record.identity)


async def wins(opened: OpenTransaction, record: Record) -> bool:
    """Commit; False for a ConflictError."""
    try:
        await opened.commit(record, b"an answer")
    except ConflictError:
        return False
    return True


class TransactionSuite(Suite):
    """Every promise of transactions. Override `open_transactions`."""

    def open_transactions(self) -> AbstractAsyncContextManager[TransactionSubject]:
        """Give a store in which nothing is, and clean up afterwards."""
        raise NotImplementedError

    # The commit

    async def test_a_commit_makes_everything_final(self) -> None:
        """Data, record, key and answer, for every process."""
        asked = opening(key="k")
        async with self.open_transactions() as subject:
            record = await done(subject, asked, answer=b"an answer")
            assert await subject.read() == {"a1": "done"}
            assert await subject.record(record) == record
            assert await kept(subject, "k") == IdempotencyEntry("a1", asked.fingerprint, b"an answer")

    async def test_a_fenced_attempt_is_never_committed(self) -> None:
        """However long it has been at work. The fence may wait for it instead, and then finds its record."""
        for key in ("", "k"):
            asked = opening(key=key)
            async with self.open_transactions() as subject:
                opened = await opened_by(subject, asked)
                await subject.write(opened, "a1", "done")
                await self._loses_or_is_found(subject, opened, asked)

    async def test_an_attempt_is_fenced_before_it_has_loaded_anything(self) -> None:
        """What it loads at its commit is too late."""
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
            found = await fencing
        assert (found is not None) == won
        committed = await subject.record(record)
        assert (committed is not None and bool(committed.effects)) == won

    async def test_a_fence_gives_the_record_of_what_is_committed(self) -> None:
        """The record is dispatched as usual."""
        for attempt, key in (("a1", ""), ("a2", "k")):
            asked = opening(attempt, key=key)
            async with self.open_transactions() as subject:
                record = await done(subject, asked, answer=b"an answer")
                found = await fence(subject, record, asked)
                assert found is not None
                assert found.effects == record.effects
                assert await subject.record(record) == record

    async def test_nothing_is_seen_before_the_commit(self) -> None:
        """Neither data nor key."""
        asked = opening(key="k")
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, asked)
            await subject.write(opened, "a1", "not yet")
            assert await subject.read() == {}
            opened.abandon()

    async def test_nothing_is_left_of_what_is_abandoned(self) -> None:
        """And the next attempt finds the key free."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening("a1", key="k"))
            await subject.write(opened, "a1", "never")
            opened.abandon()
            await done(subject, opening("a2", key="k"))
            assert await subject.read() == {"a2": "done"}

    async def test_data_alone_can_be_committed(self) -> None:
        """Without a key, without messages."""
        async with self.open_transactions() as subject:
            record = await done(subject, opening(), sends=False)
            assert await subject.read() == {"a1": "done"}
            assert await subject.record(record) is None

    async def test_messages_alone_can_be_committed(self) -> None:
        """With a key and without."""
        async with self.open_transactions() as subject:
            for asked in (opening("a1"), opening("a2", key="k")):
                record = await done(subject, asked, writes=False)
                assert await subject.record(record) == record

    async def test_nothing_at_all_can_be_committed(self) -> None:
        """A block may have decided to do nothing."""
        async with self.open_transactions() as subject:
            await done(subject, opening(), writes=False, sends=False)

    async def test_a_transaction_ends_once(self) -> None:
        """A second commit is refused, giving up after it changes nothing."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            await subject.write(opened, "a1", "done")
            await opened.commit(None, None)
            opened.abandon()
            async with raises(CommitFailed):
                await opened.commit(None, None)
            assert await subject.read() == {"a1": "done"}

    async def test_what_is_abandoned_cannot_be_committed(self) -> None:
        """That it was given up is final."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening(key="k"))
            opened.abandon()
            async with raises(CommitFailed, ConflictError):
                await opened.commit(None, b"an answer")
            assert await kept(subject, "k") is None

    async def test_a_late_commit_fails(self) -> None:
        """Its deadline is counted from the opening; nothing of it happens."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening(key="k", max_commit=LATE_MS // 2))
            await subject.write(opened, "a1", "late")
            await subject.pass_time(LATE_MS)
            async with raises(CommitFailed):
                await opened.commit(record_of(opening(), opened), b"late")
            assert (await subject.read(), await kept(subject, "k")) == ({}, None)

    async def test_a_commit_in_time_is_not_late(self) -> None:
        """Also when some time has passed."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            await subject.write(opened, "a1", "done")
            await subject.pass_time(TIMELY_MS)
            await opened.commit(None, None)
            assert await subject.read() == {"a1": "done"}

    async def test_a_dispatched_record_is_forgotten(self) -> None:
        """It has nothing to send any more; data and key stay."""
        async with self.open_transactions() as subject:
            for asked in (opening("a1"), opening("a2", key="k")):
                record = await done(subject, asked, answer=b"kept")
                await (await subject.store()).forget([record])
                left = await subject.record(record)
                assert left is None or not left.effects
            assert await subject.read() == {"a1": "done", "a2": "done"}
            assert await kept(subject, "k") == IdempotencyEntry("a2", opening(key="k").fingerprint, b"kept")

    # Keys

    async def test_a_key_that_is_committed_is_known(self) -> None:
        """To every later attempt, with the first answer."""
        asked = opening(key="k")
        async with self.open_transactions() as subject:
            await done(subject, asked, answer=b"first")
            transactions = await subject.transactions()
            for attempt in ("a2", "a3"):
                assert await transactions.open(opening(attempt, key="k")) == IdempotencyEntry("a1", asked.fingerprint, b"first")

    async def test_a_key_may_be_kept_without_an_answer(self) -> None:
        """Which is another thing than an empty one."""
        async with self.open_transactions() as subject:
            await done(subject, opening("a1", key="none"), answer=None)
            await done(subject, opening("a2", key="empty"), answer=b"")
            assert [(await found(subject, key)).answer for key in ("none", "empty")] == [None, b""]

    async def test_an_answer_is_exact(self) -> None:
        """Whatever bytes it has, and however many."""
        async with self.open_transactions() as subject:
            await done(subject, opening(key="k"), answer=LONG, writes=False, sends=False)
            assert (await found(subject, "k")).answer == LONG

    async def test_keys_are_exact(self) -> None:
        """Each character counts."""
        async with self.open_transactions() as subject:
            writer, reader = await subject.transactions(), await subject.transactions()
            for number, key in enumerate(ODD_KEYS):
                opened = await writer.open(opening(f"a{number}", key=key))
                assert not isinstance(opened, IdempotencyEntry), f"{key!r} is taken for {opened}"
                await opened.commit(None, key.encode())
            answers = {key: there.answer for key in ODD_KEYS if (there := await reader.kept(key)) is not None}
            assert answers == {key: key.encode() for key in ODD_KEYS}

    async def test_a_key_is_one_endpoints(self) -> None:
        """Another one has its own."""
        async with self.open_transactions() as subject:
            await done(subject, opening("a1", key="k"), answer=b"shop", writes=False)
            await done(subject, opening("a2", key="k", endpoint=OTHER), answer=b"other", writes=False)
            assert (await found(subject, "k")).answer == b"shop"
            assert (await found(subject, "k", OTHER)).answer == b"other"

    async def test_a_key_nobody_committed_is_not_there(self) -> None:
        """To look for it leaves no trace."""
        async with self.open_transactions() as subject:
            assert await kept(subject, "k") is None
            await done(subject, opening(key="k"))

    async def test_of_many_attempts_with_one_key_one_is_committed(self) -> None:
        """The others wait and find it known, or lose with a ConflictError: nothing of theirs happens."""
        async with self.open_transactions() as subject:
            names = [f"a{number}" for number in range(CLIENTS)]
            ended = await asyncio.gather(*(_attempt(subject, opening(name, key="k")) for name in names))
            (winner,) = [name for name, has_won in zip(names, ended, strict=True) if has_won]
            assert list(await subject.read()) == [winner]
            assert (await found(subject, "k")).attempt == winner

    async def test_who_has_a_key_is_waited_for_no_longer_than_asked(self) -> None:
        """Then it is a ConflictError, unless it shows at the commit; and nothing keeps the first one from being committed."""
        async with self.open_transactions() as subject:
            first = await opened_by(subject, opening("a1", key="k"))
            second, transactions = structs.replace(opening("a2", key="k"), wait=WAIT_MS), await subject.transactions()
            try:
                async with asyncio.timeout(WAITED_SECONDS):
                    found = await transactions.open(second)
            except ConflictError:
                found = None
            except TimeoutError:
                first.abandon()  # else the one that waits would wait on
                raise
            assert not isinstance(found, IdempotencyEntry)
            if found is not None:
                found.abandon()
            await first.commit(None, b"first")
            answered = await transactions.open(opening("a3", key="k"))
            assert isinstance(answered, IdempotencyEntry)
            assert answered.answer == b"first"


class EntitySuite(Suite):
    """What transactions promise of entities. Override `open_transactions`."""

    def open_transactions(self) -> AbstractAsyncContextManager[TransactionSubject]:
        """Give a store in which nothing is, and clean up afterwards."""
        raise NotImplementedError

    async def test_an_entity_is_there_for_the_next_transaction(self) -> None:
        """As it was committed; changed, and deleted."""
        async with self.open_transactions() as subject:
            seen = [await _change(subject, f"a{number}", state) for number, state in enumerate((b"1", b"[2]", None, b"3"))]
            assert seen == [None, b"1", b"[2]", None]

    async def test_an_entity_that_is_only_looked_at_stays(self) -> None:
        """Though the transaction commits something else."""
        async with self.open_transactions() as subject:
            await _change(subject, "a1", b"1")
            opened = await opened_by(subject, opening("a2", key="k"))
            await opened.load("Account/A")
            await opened.commit(None, b"looked")
            assert await _change(subject, "a3", b"1") == b"1"

    async def test_an_entity_is_loaded_once(self) -> None:
        """To ask again changes nothing of what was made of it."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            await opened.load("Account/A")
            entities_of(opened).write("Account/A", b"1")
            await opened.load("Account/A")
            assert entities_of(opened).read("Account/A") == b"1"
            opened.abandon()

    async def test_an_entity_with_a_key_too_long_is_refused(self) -> None:
        """Before anything is written."""
        async with self.open_transactions() as subject:
            opened = await opened_by(subject, opening())
            async with raises(CommitRefused):
                await opened.load("Account/" + "A" * 5000)
            opened.abandon()

    async def test_of_two_that_change_an_entity_none_overwrites_the_other(self) -> None:
        """One waits for the other, or loses with a ConflictError."""
        async with self.open_transactions() as subject:
            ended = await asyncio.gather(*(_append(subject, f"a{number}") for number in range(CLIENTS)))
            assert sum(ended) == len(await _change(subject, "last", None) or b"") > 0


class AttemptSuite(Suite):
    """What transactions of a store that cannot be searched promise to control messages. Override `open_attempts`."""

    def open_attempts(self) -> AbstractAsyncContextManager[AttemptsSubject]:
        """Give a store in which nothing is, and clean up afterwards."""
        raise NotImplementedError

    async def test_an_attempt_has_a_record_once_it_is_committed(self) -> None:
        """None before; without a key it stays when it is dispatched, and says that it is over."""
        async with self.open_attempts() as subject:
            asked = opening()
            opened = await opened_by(subject, asked)
            await subject.write(opened, "a1", "done")
            record = record_of(asked, opened)
            assert await subject.record(record) is None
            await opened.commit(record, None)
            await (await subject.store()).forget([record])
            assert await subject.record(record) == Record(asked.identity, unit=opened.unit)

    async def test_a_key_is_found_by_whoever_looks_after_its_endpoint(self) -> None:
        """Another endpoint's worker may."""
        async with self.open_attempts() as subject:
            await done(subject, opening(key="k"), answer=b"kept")
            attempts = await subject.attempts()
            assert (await attempts.kept("k", ENDPOINT), await attempts.kept("k", OTHER)) == (await kept(subject, "k"), None)

    async def test_what_is_buried_cannot_be_committed(self) -> None:
        """Whatever it is about: an entity, a key, neither."""
        async with self.open_attempts() as subject:
            for key, writes in (("", True), ("k", True), ("l", False), ("", False)):
                asked = opening(f"a{key}{writes}", key=key)
                opened = await opened_by(subject, asked)
                if writes:
                    await subject.write(opened, asked.attempt, "buried")
                await (await subject.attempts()).bury(asked.identity, opened.unit)
                async with raises(ConflictError):
                    await opened.commit(record_of(asked, opened), b"buried")
            assert (await subject.read(), await kept(subject, "k"), await kept(subject, "l")) == ({}, None, None)

    async def test_what_is_committed_cannot_be_buried(self) -> None:
        """Its record stays as it is."""
        async with self.open_attempts() as subject:
            for asked in (opening("a1"), opening("a2", key="k")):
                record = await done(subject, asked)
                async with raises(ConflictError):
                    await (await subject.attempts()).bury(asked.identity, record.unit)
                assert await subject.record(record) == record

    async def test_a_tombstone_says_that_it_is_over(self) -> None:
        """It is a record without messages, and there is no second one."""
        async with self.open_attempts() as subject:
            asked = opening()
            opened = await opened_by(subject, asked)
            attempts = await subject.attempts()
            await attempts.bury(asked.identity, opened.unit)
            assert await attempts.record(asked.identity, opened.unit) == Record(asked.identity, unit=opened.unit)
            async with raises(ConflictError):
                await attempts.bury(asked.identity, opened.unit)

    async def test_a_tombstone_outlives_the_deadline(self) -> None:
        """Though the document is written again and again."""
        async with self.open_attempts() as subject:
            asked = opening("slow", max_commit=LATE_MS // 2)
            slow = await opened_by(subject, asked)
            await subject.write(slow, "slow", "buried")
            await (await subject.attempts()).bury(asked.identity, slow.unit)
            await subject.pass_time(LATE_MS)
            await done(subject, opening("a2"))
            assert await (await subject.attempts()).record(asked.identity, slow.unit) is not None

    async def test_a_buried_attempt_does_not_block_its_key(self) -> None:
        """The client tries again."""
        async with self.open_attempts() as subject:
            for writes in (True, False):
                asked = opening(f"slow{writes}", key=f"k{writes}")
                slow = await opened_by(subject, asked)
                if writes:
                    await subject.write(slow, asked.attempt, "buried")
                await (await subject.attempts()).bury(asked.identity, slow.unit)
                await done(subject, opening(f"again{writes}", key=asked.key), writes=writes)
                assert (await found(subject, asked.key)).attempt == f"again{writes}"

    async def test_a_key_is_committed_once_whichever_entity_its_attempts_take(self) -> None:
        """Some take one that no other has, others none."""
        async with self.open_attempts() as subject:
            ended = await asyncio.gather(*(_on_an_entity(subject, f"a{number}") for number in range(CLIENTS)))
            winners = [name for name, has_won in ended if has_won]
            assert [(await found(subject, "k")).attempt] == winners

    async def test_a_second_entity_is_refused(self) -> None:
        """The first is still there to be committed."""
        async with self.open_attempts() as subject:
            opened = await opened_by(subject, opening())
            await opened.load("Account/A")
            async with raises(TransactionMisused):
                await opened.load("Account/B")
            entities_of(opened).write("Account/A", b"1")
            await opened.commit(None, None)
            assert await _change(subject, "a2", b"2") == b"1"


def entities_of(opened: OpenTransaction) -> Entities:
    """Give the entities of a transaction."""
    entities = opened.resources.get(Entities)
    assert isinstance(entities, Entities)
    return entities


async def kept(subject: TransactionSubject, key: str, endpoint: str = ENDPOINT) -> IdempotencyEntry | None:
    """Look for a key as a process of its own."""
    return await (await subject.transactions(endpoint)).kept(key)


async def found(subject: TransactionSubject, key: str, endpoint: str = ENDPOINT) -> IdempotencyEntry:
    """Look for a key that must be there."""
    there = await kept(subject, key, endpoint)
    assert there is not None, f"nothing is kept under {key!r}"
    return there


async def _attempt(subject: TransactionSubject, asked: TransactionAttempt) -> bool:
    """Try once; tells whether this very attempt was committed."""
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
    """Change an entity; gives what it was."""
    opened = await opened_by(subject, opening(attempt))
    await opened.load("Account/A")
    entities = entities_of(opened)
    before = entities.read("Account/A")
    entities.write("Account/A", state)
    await opened.commit(None, None)
    return before


async def _append(subject: TransactionSubject, attempt: str) -> bool:
    """Add a digit to an entity; tells whether that was committed. A deadlock may also be CommitFailed: nothing was written."""
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
    """Try, under one key, on an entity of its own or on none, until one is committed; tells whether it was this very one."""
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
