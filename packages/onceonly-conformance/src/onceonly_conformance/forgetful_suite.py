"""The rules of a store that deletes its claims in `forget`, because another system stores which messages are done."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.model.errors import ConflictError
from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.ports.store import BeginResult
from onceonly_conformance.samples import message
from onceonly_conformance.store_subject import (
    LATER,
    MOMENT_SECONDS,
    ONE_EFFECT,
    SearchedSubject,
    StoreSubject,
    handle,
    look,
    undispatched,
    unit_of,
    wins,
    write,
)
from onceonly_conformance.suite import Suite

FORGOTTEN = "test_a_forgotten_message_is_done"
"""The rule of `StoreSuite` that does not apply to such a store."""
NOT_KEPT = "the store deletes its claims, and another system stores which messages are done"
"""The reason for waiving it."""
RECORD = Record(message().identity)


class ForgetfulSubject(StoreSubject, Protocol):
    """A store under test that counts what it stores about messages."""

    async def traces(self) -> int:
        """Count everything stored about messages: claims, records and reservations, but not business data."""


class ForgetfulStoreSuite(Suite):
    """The additional rules of a store that deletes its claims. Override `open_forgetful_store`.

    The store must also pass the `StoreSuite`, without the rule `test_a_forgotten_message_is_done`.
    """

    def open_forgetful_store(self) -> AbstractAsyncContextManager[ForgetfulSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_nothing_is_left_of_a_forgotten_message(self) -> None:
        """`forget` deletes everything about a message, with or without effects. Business data stays."""
        for decided in (ONE_EFFECT, ()):
            async with self.open_forgetful_store() as subject:
                await handle(subject, message(), decided=decided)
                assert await subject.traces() > 0
                await (await subject.store()).forget([RECORD])
                assert (await subject.traces(), await subject.read()) == (0, {"m1": "handled"})

    async def test_a_forgotten_message_is_new(self) -> None:
        """A forgotten message is new again. Another system decides whether it may be handled."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            await (await subject.store()).forget([RECORD])
            assert await look(subject, message()) == BeginResult(new=(message(),))

    async def test_a_message_without_effects_is_known_until_it_is_forgotten(self) -> None:
        """The claim stays until `forget`, because the process may crash before the other system stores the message."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message())
            assert await look(subject, message()) == BeginResult(done=(message(),))
            assert (await subject.store()).keeps(RECORD)

    async def test_every_record_is_to_be_forgotten(self) -> None:
        """`keeps` is true for every record, with or without effects."""
        async with self.open_forgetful_store() as subject:
            store = await subject.store()
            assert store.keeps(RECORD)
            assert store.keeps(Record(message().identity, ONE_EFFECT))

    async def test_a_record_gives_back_what_it_was_committed_with(self) -> None:
        """A record stores the token of its message and the tokens that were issued."""
        issued = (Token("1", "billing"), Token("1", "mail"))
        record = Record(message().identity, ONE_EFFECT, token="t", issued=issued)  # noqa: S106 - no secret
        async with self.open_forgetful_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await unit.commit([record])
            assert (await look(subject, message())).pending == (record,)

    async def test_others_are_not_forgotten(self) -> None:
        """`forget` deletes only the records passed to it."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), message("m2"), decided=ONE_EFFECT)
            await (await subject.store()).forget([RECORD])
            assert (await undispatched(subject)) == (Record(message("m2").identity, ONE_EFFECT),)

    async def test_forgetting_again_leaves_nothing_either(self) -> None:
        """A repeated `forget` is harmless. Two workers may finish the same message."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            for _ in range(2):
                await (await subject.store()).forget([RECORD])
            assert await subject.traces() == 0

    async def test_looking_leaves_nothing(self) -> None:
        """A unit that is abandoned without handling its message leaves nothing."""
        async with self.open_forgetful_store() as subject:
            await look(subject, message())
            assert await subject.traces() == 0

    async def test_who_began_before_loses_although_nothing_is_left(self) -> None:
        """A unit must not commit a message that another unit handled and forgot since its `begin`."""
        for state in (False, True):
            async with self.open_forgetful_store() as subject:
                if state:
                    await handle(subject, message("before"))
                    await (await subject.store()).forget([Record(message("before").identity)])
                first = await (await subject.store()).begin([message()])
                await write(subject, first, "first")
                second = asyncio.create_task(_handle_and_forget(subject))
                await asyncio.wait([second], timeout=min(self.patience, MOMENT_SECONDS))  # it may have to wait for the first
                first_won = await wins(first, Record(message().identity, ONE_EFFECT))
                first.abandon()
                async with asyncio.timeout(self.patience):
                    await second
                handled = (await subject.read()).keys() & {"first", "second"}
                assert handled == {"first" if first_won else "second"}

    async def test_the_fence_gives_a_record(self) -> None:
        """A fence returns the committed record."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            unit = await unit_of(subject)
            found = await (await subject.store()).fence(unit, message().identity)
            assert found == Record(message().identity, ONE_EFFECT, unit=found.unit if found else "")

    async def test_a_fence_without_the_message_stops_who_began_before(self) -> None:
        """A fence by the identity alone waits for an open attempt, raises ConflictError, or makes the attempt fail."""
        async with self.open_forgetful_store() as subject:
            first = await (await subject.store()).begin([message()])
            await write(subject, first, "first")
            fencing = asyncio.create_task(self._is_out(subject, first.key))
            await asyncio.wait([fencing], timeout=min(self.patience, MOMENT_SECONDS))  # it may have to wait for the first
            won = await wins(first, Record(message().identity, ONE_EFFECT))
            first.abandon()
            async with asyncio.timeout(self.patience):
                assert not (await fencing and won)
            assert (await subject.read(), await subject.traces() > 0) == ({"first": "handled"} if won else {}, won)

    async def _is_out(self, subject: ForgetfulSubject, unit: str) -> bool:
        """Fence. Return whether the fence reports that no earlier attempt can be committed."""
        try:
            return await (await subject.store()).fence(unit, message().identity) is None
        except ConflictError:
            return False

    async def test_the_fence_leaves_nothing(self) -> None:
        """A fence without a record returns None and leaves nothing."""
        async with self.open_forgetful_store() as subject:
            unit = await unit_of(subject)
            assert await (await subject.store()).fence(unit, message().identity) is None
            assert await subject.traces() == 0
            assert await look(subject, message()) == BeginResult(new=(message(),))


class ForgetfulRecordsSuite(Suite):
    """The additional rule of such a store if it can be searched. Override `open_store`."""

    def open_store(self) -> AbstractAsyncContextManager[SearchedSubject]:
        """Open an empty store for one rule, and clean up afterwards."""
        raise NotImplementedError

    async def test_a_taken_record_has_the_fingerprint_of_its_message(self) -> None:
        """`take` returns each record with the fingerprint of its message, which another system stores."""
        asked = (message(), message("m2", body=b"other"))
        async with self.open_store() as subject:
            await handle(subject, *asked, decided=ONE_EFFECT)
            taken = await (await subject.store()).take(LATER, 10, lease=0)
            assert {record.identity: record.fingerprint for record in taken} == {
                each.identity: each.fingerprint for each in asked
            }

    async def test_very_many_records_are_taken_with_their_fingerprints(self) -> None:
        """`take` returns more records than one request of the system, each with its fingerprint."""
        asked = [message(f"m{number}", body=f"{number}".encode()) for number in range(self.many)]
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin(asked)
            await unit.commit([Record(each.identity, ONE_EFFECT) for each in asked])
            taken = await (await subject.store()).take(LATER, self.many * 2, lease=0)
            assert {record.identity: record.fingerprint for record in taken} == {
                each.identity: each.fingerprint for each in asked
            }


async def _handle_and_forget(subject: StoreSubject) -> None:
    store = await subject.store()
    unit = await store.begin([message()])
    if unit.found.new:
        await write(subject, unit, "second")
        await unit.commit([RECORD])
    else:
        unit.abandon()
    await store.forget([RECORD])
