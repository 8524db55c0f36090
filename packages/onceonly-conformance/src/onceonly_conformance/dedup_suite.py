"""The contract of the MarkStore port, rule by rule. Every check runs in another process than the write."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.model.identity import claim_key, fingerprint
from onceonly.model.message import Message
from onceonly.model.ring import Undecidable
from onceonly.ports.admission import MarkStore
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.ring_subject import at
from onceonly_conformance.samples import message
from onceonly_conformance.store_subject import cancel
from onceonly_conformance.suite import ENDPOINT, Suite, cut_off, returns

MANY = 150
HOUR_MS = 3_600_000
ONE, OTHER_BODY = fingerprint(b"{}"), fingerprint(b"other")
NEVER = bytes(15) + b"\1"
ODD_KEYS = (
    bytes(16),
    b"\xff" * 16,
    b"a" * 16,
    b"A" * 16,
    b"\n" * 16,
    b" " * 16,
    b"%" * 16,
    bytes(range(16)),
    bytes(range(16))[::-1],
)


class DedupSubject(Protocol):
    """A dedup store under test, empty at first."""

    async def dedup_store(self) -> MarkStore:
        """Open the store. Each call opens it as a separate process would."""

    async def cut(self, moment: Moment) -> MarkStore:
        """Open the store with a client whose next write is cut off once.

        The write is cut off before or after the service applies it. All other requests succeed.
        """

    def now(self) -> int:
        """Return the store's time, in milliseconds since 1970."""

    def retention(self) -> int:
        """Return the minimum number of milliseconds for which a key is stored."""

    async def pass_time(self, milliseconds: int) -> None:
        """Let the store's time pass. A store that uses the real time moves its own clock instead."""


def key(name: str = "m1") -> bytes:
    return claim_key(ENDPOINT, message(name).identity)


class DedupSuite(Suite):
    """The rules of a dedup store. Override `open_dedup`."""

    def open_dedup(self) -> AbstractAsyncContextManager[DedupSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    # Adding

    async def test_a_key_never_added_is_not_remembered(self) -> None:
        """`contains` does not return a key that was not added, even if it returns others."""
        async with self.open_dedup() as subject:
            assert await _known(subject, key()) == set()
            await _add(subject, key("m2"))
            assert await _known(subject, key(), key("m2")) == {key("m2")}

    async def test_an_added_key_is_remembered_everywhere(self) -> None:
        """Every process finds the key after `add` returns."""
        async with self.open_dedup() as subject:
            await _add(subject, key())
            assert [await _known(subject, key()) for _ in range(3)] == [{key()}] * 3

    async def test_an_added_key_is_seen_by_who_asked_before(self) -> None:
        """Reads are not stale: a process that checked before the `add` finds the key afterwards."""
        async with self.open_dedup() as subject:
            reader = await subject.dedup_store()
            for name in ("m1", "m2", "m3"):
                assert not await reader.contains([key(name)])
                await _add(subject, key(name))
                assert set(await reader.contains([key(name)])) == {key(name)}

    async def test_adding_twice_is_fine(self) -> None:
        """`add` accepts known keys, from any process and together with new ones."""
        async with self.open_dedup() as subject:
            store = await subject.dedup_store()
            await store.add([key()])
            await store.add([key()])
            await _add(subject, key("m2"), key(), key("m3"))
            assert await _known(subject, key(), key("m2"), key("m3")) == {key(), key("m2"), key("m3")}

    async def test_a_key_may_be_named_twice_in_one_call(self) -> None:
        """`add` and `contains` accept duplicate keys. A batch may contain two deliveries of one message."""
        async with self.open_dedup() as subject:
            await _add(subject, key(), key("m2"), key())
            assert await _known(subject, key(), key("m2"), key()) == {key(), key("m2")}

    async def test_many_may_add_a_key_at_once(self) -> None:
        """Concurrent calls of `add` with the same key all succeed."""
        async with self.open_dedup() as subject:
            stores = [await subject.dedup_store() for _ in range(5)]
            await asyncio.gather(*(store.add([key("m1"), key(f"n{number}")]) for number, store in enumerate(stores)))
            assert len(await _known(subject, key("m1"), *(key(f"n{number}") for number in range(5)))) == 6

    async def test_many_keys_at_once(self) -> None:
        """`add` and `contains` accept more keys than one request of the service does."""
        added, others = [key(f"m{n}") for n in range(MANY)], [key(f"n{n}") for n in range(MANY)]
        async with self.open_dedup() as subject:
            await _add(subject, *added)
            assert await _known(subject, *others, *added) == set(added)

    async def test_keys_are_exact(self) -> None:
        """All 16 bytes of a key count, whatever their values are."""
        async with self.open_dedup() as subject:
            await _add(subject, *ODD_KEYS[::2])
            assert await _known(subject, *ODD_KEYS) == set(ODD_KEYS[::2])

    async def test_nothing_is_a_fine_number_of_keys(self) -> None:
        """`add`, `contains` and `remove` accept an empty list."""
        async with self.open_dedup() as subject:
            await _add(subject, key())
            store = await subject.dedup_store()
            await store.add([])
            await store.remove([])
            assert not await store.contains([])
            assert await _known(subject, key()) == {key()}

    # Fingerprints

    async def test_a_fingerprint_is_remembered_with_its_key(self) -> None:
        """Every process reads the fingerprint of a key. A key without a fingerprint has an empty one."""
        async with self.open_dedup() as subject:
            bodies = {key("m1"): ONE, key("m3"): OTHER_BODY}
            await (await subject.dedup_store()).add([key("m1"), key("m2"), key("m3")], bodies)
            for _ in range(2):
                found = await (await subject.dedup_store()).contains([key("m1"), key("m2"), key("m3"), NEVER])
                assert dict(found) == {key("m1"): ONE, key("m2"): b"", key("m3"): OTHER_BODY}

    async def test_the_first_fingerprint_stays(self) -> None:
        """A later `add`, with another fingerprint or none, does not replace the first fingerprint.

        The age of the key does not matter.
        """
        async with self.open_dedup() as subject:
            await (await subject.dedup_store()).add([key()], {key(): ONE})
            for passed in (0, subject.retention() - 1):
                await subject.pass_time(passed)
                await (await subject.dedup_store()).add([key()], {key(): OTHER_BODY})
                await _add(subject, key())
                assert dict(await (await subject.dedup_store()).contains([key()])) == {key(): ONE}

    async def test_a_key_that_is_renewed_keeps_its_fingerprint(self) -> None:
        """An `add` that extends the life of a key, with another fingerprint or none, does not change its fingerprint.

        This holds beyond the retention too, unless the key was deleted.
        """
        async with self.open_dedup() as subject:
            for number, passed in enumerate((subject.retention() - 1, subject.retention() * 3)):
                plain, other = key(f"plain{number}"), key(f"other{number}")
                await (await subject.dedup_store()).add([plain, other], {plain: ONE, other: ONE})
                await subject.pass_time(passed)
                there = await _known(subject, plain, other)
                await (await subject.dedup_store()).add([plain])
                await (await subject.dedup_store()).add([other], {other: OTHER_BODY})
                found = await (await subject.dedup_store()).contains(list(there))
                assert dict(found) == dict.fromkeys(there, ONE)

    async def test_a_key_without_a_fingerprint_takes_the_first_that_comes(self) -> None:
        """A later `add` sets the fingerprint of a key that has none."""
        async with self.open_dedup() as subject:
            await _add(subject, key())
            await (await subject.dedup_store()).add([key()], {key(): ONE})
            assert dict(await (await subject.dedup_store()).contains([key()])) == {key(): ONE}

    async def test_a_removed_key_has_no_fingerprint(self) -> None:
        """A key that is removed and added again does not have its earlier fingerprint."""
        async with self.open_dedup() as subject:
            store = await subject.dedup_store()
            await store.add([key()], {key(): ONE})
            await store.remove([key()])
            await _add(subject, key())
            assert dict(await (await subject.dedup_store()).contains([key()])) == {key(): b""}

    # Forgetting

    async def test_a_removed_key_is_forgotten_everywhere(self) -> None:
        """No process finds a removed key, including those that added it or found it before."""
        async with self.open_dedup() as subject:
            writer, reader = await subject.dedup_store(), await subject.dedup_store()
            await writer.add([key()])
            assert set(await reader.contains([key()])) == {key()}
            await (await subject.dedup_store()).remove([key()])
            assert not {**await writer.contains([key()]), **await reader.contains([key()])}

    async def test_removing_leaves_others(self) -> None:
        """`remove` deletes only the keys passed to it."""
        async with self.open_dedup() as subject:
            await _add(subject, key("m1"), key("m2"), key("m3"))
            await (await subject.dedup_store()).remove([key("m1"), key("m3")])
            assert await _known(subject, key("m1"), key("m2"), key("m3")) == {key("m2")}

    async def test_removing_what_is_not_there_is_harmless(self) -> None:
        """`remove` accepts a missing key and does not add it."""
        async with self.open_dedup() as subject:
            store = await subject.dedup_store()
            await store.remove([key(), NEVER])
            await store.add([key()])
            await store.remove([key(), NEVER])
            await store.remove([key()])
            assert await _known(subject, key(), NEVER) == set()

    async def test_a_removed_key_may_be_added_again(self) -> None:
        """Any process may add a removed key again."""
        async with self.open_dedup() as subject:
            store = await subject.dedup_store()
            for adding in (store, await subject.dedup_store()):
                await adding.add([key()])
                assert await _known(subject, key()) == {key()}
                await store.remove([key()])
            assert await _known(subject, key()) == set()

    async def test_a_key_is_remembered_for_its_retention(self) -> None:
        """A key is stored until the last millisecond of its retention."""
        async with self.open_dedup() as subject:
            await _add(subject, key())
            await subject.pass_time(subject.retention() - 1)
            assert await _known(subject, key()) == {key()}

    async def test_adding_again_counts_the_retention_anew(self) -> None:
        """After each `add`, the key is stored for the full retention, however old it is."""
        async with self.open_dedup() as subject:
            nearly = subject.retention() - 1
            for passed in (0, 0, subject.retention() * 3):
                await subject.pass_time(passed)
                await _add(subject, key())
                await subject.pass_time(nearly)
                assert await _known(subject, key()) == {key()}

    # Late copies

    async def test_a_message_behind_the_horizon_is_refused(self) -> None:
        """A message older than the retention is undecidable if its key is unknown, because the key may have expired."""
        async with self.open_dedup() as subject:
            old = at(subject.now())
            await subject.pass_time(subject.retention() + 1)
            assert await _reasons(subject, old) == [Undecidable.TOO_OLD]

    async def test_a_message_within_the_retention_is_decidable(self) -> None:
        """A message is decidable until nearly the end of the retention, because its key would still be stored."""
        async with self.open_dedup() as subject:
            sent, half = at(subject.now()), subject.retention() // 2
            for passed in (0, half, half - half // 100):  # time passes by itself, too
                await subject.pass_time(passed)
                assert await _reasons(subject, sent) == []

    async def test_a_message_without_an_instant_is_never_refused(self) -> None:
        """A message without an instant cannot be told from a new one, so it is decidable at any time."""
        async with self.open_dedup() as subject:
            await subject.pass_time(subject.retention() * 3)
            assert await _reasons(subject, message("plain")) == []

    async def test_a_message_that_a_person_has_sent_back_is_not_refused(self) -> None:
        """A message with the attribute `onceonlyanyway` is decidable, however old it is."""
        async with self.open_dedup() as subject:
            instant = subject.now()
            await subject.pass_time(subject.retention() * 3)
            assert await _reasons(subject, at(instant, anyway=True)) == []

    async def test_a_message_far_in_the_future_is_refused(self) -> None:
        """A message that is ahead by the retention is undecidable. One that is ahead by an hour is not."""
        async with self.open_dedup() as subject:
            soon, far = at(subject.now() + HOUR_MS), at(subject.now() + subject.retention())
            assert await _reasons(subject, soon, far) == [Undecidable.TOO_NEW]

    async def test_a_message_from_the_future_is_known_until_it_is_old(self) -> None:
        """A key whose message is ahead of the clock is stored until the message is behind the horizon."""
        async with self.open_dedup() as subject:
            ahead = at(subject.now() + HOUR_MS)
            name = claim_key(ENDPOINT, ahead.identity)
            await (await subject.dedup_store()).add([name], {}, {name: ahead.instant})
            await subject.pass_time(subject.retention() + HOUR_MS - 1)
            assert await _known(subject, name) == {name}
            await subject.pass_time(2)
            assert await _reasons(subject, ahead) == [Undecidable.TOO_OLD]

    # What goes wrong on the way

    async def test_an_add_that_is_cut_off_is_never_said_to_have_failed(self) -> None:
        """When the response is lost, `add` returns or raises OutcomeUnknown, and the key is stored. The call is repeatable."""
        async with self.open_dedup() as subject:
            cut = await subject.cut("after")
            await cut_off(cut.add([key()]))
            assert await _known(subject, key()) == {key()}
            await cut.add([key()])
            assert await _known(subject, key()) == {key()}

    async def test_an_add_that_got_nowhere_is_no_success(self) -> None:
        """When the request is lost, `add` does not return unless the key is stored."""
        async with self.open_dedup() as subject:
            cut = await subject.cut("before")
            assert await returns(cut.add([key()])) <= (await _known(subject, key()) == {key()})
            await cut.add([key()])
            assert await _known(subject, key()) == {key()}

    async def test_a_removal_that_is_cut_off_is_never_said_to_have_failed(self) -> None:
        """When the response is lost, `remove` returns or raises OutcomeUnknown, and the key is gone. The call is repeatable."""
        async with self.open_dedup() as subject:
            await _add(subject, key())
            cut = await subject.cut("after")
            await cut_off(cut.remove([key()]))
            assert await _known(subject, key()) == set()
            await cut.remove([key()])

    async def test_a_removal_that_got_nowhere_is_no_success(self) -> None:
        """When the request is lost, `remove` does not return unless the key is gone."""
        async with self.open_dedup() as subject:
            await _add(subject, key())
            cut = await subject.cut("before")
            assert await returns(cut.remove([key()])) <= (await _known(subject, key()) == set())
            await cut.remove([key()])
            assert await _known(subject, key()) == set()

    async def test_a_cancelled_add_may_be_made_again(self) -> None:
        """`add` may be cancelled at any point and called again."""
        async with self.open_dedup() as subject:
            for turns in range(6):
                store = await subject.dedup_store()
                await cancel(store.add([key(f"m{turns}")]), turns)
                await store.add([key(f"m{turns}")])
            names = [key(f"m{turns}") for turns in range(6)]
            assert await _known(subject, *names) == set(names)


async def _add(subject: DedupSubject, *keys: bytes) -> None:
    await (await subject.dedup_store()).add(keys)


async def _reasons(subject: DedupSubject, *asked: Message) -> list[Undecidable]:
    return [each.reason for each in await (await subject.dedup_store()).undecidable(asked)]


async def _known(subject: DedupSubject, *keys: bytes) -> set[bytes]:
    return set(await (await subject.dedup_store()).contains(keys))
