"""What stores promise beyond their port when another place knows what is done: after `forget` they know nothing."""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.ports.store import BeginResult
from onceonly.testing.samples import message
from onceonly.testing.store_subject import (
    MOMENT_SECONDS,
    ONE_EFFECT,
    StoreSubject,
    handle,
    look,
    undispatched,
    unit_of,
    wins,
    write,
)
from onceonly.testing.suite import Suite

FORGOTTEN = "test_a_forgotten_message_is_done"
"""The rule of `StoreSuite` that such a store does not keep."""
NOT_KEPT = "another place knows what is done, and the store forgets"
"""The reason to waive it."""
RECORD = Record(message().identity)


class ForgetfulSubject(StoreSubject, Protocol):
    """A store under test, and a look at what it keeps about messages."""

    async def traces(self) -> int:
        """Count all that is stored about messages: claims, records, register rows; business data is none of it."""


class ForgetfulStoreSuite(Suite):
    """Every promise of a store that forgets. Override `open_forgetful_store`; it keeps those of the StoreSuite besides."""

    def open_forgetful_store(self) -> AbstractAsyncContextManager[ForgetfulSubject]:
        """Give a store with nothing in it, and clean up afterwards."""
        raise NotImplementedError

    async def test_nothing_is_left_of_a_forgotten_message(self) -> None:
        """Neither of one with effects nor of one without; what its handler wrote stays."""
        for decided in (ONE_EFFECT, ()):
            async with self.open_forgetful_store() as subject:
                await handle(subject, message(), decided=decided)
                assert await subject.traces() > 0
                await (await subject.store()).forget([RECORD])
                assert (await subject.traces(), await subject.read()) == (0, {"m1": "handled"})

    async def test_a_forgotten_message_is_new(self) -> None:
        """Whether it may be handled, another place says."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            await (await subject.store()).forget([RECORD])
            assert await look(subject, message()) == BeginResult(new=(message(),))

    async def test_a_message_without_effects_is_known_until_it_is_forgotten(self) -> None:
        """A crash between the commit and the other place's note must not handle it twice."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message())
            assert await look(subject, message()) == BeginResult(done=(message(),))
            assert (await subject.store()).keeps(RECORD)

    async def test_every_record_is_to_be_forgotten(self) -> None:
        """Else something would stay."""
        async with self.open_forgetful_store() as subject:
            store = await subject.store()
            assert store.keeps(RECORD)
            assert store.keeps(Record(message().identity, ONE_EFFECT))

    async def test_a_record_gives_back_what_it_was_committed_with(self) -> None:
        """The token that its message came with, and those it issued."""
        issued = (Token("1", "billing"), Token("1", "mail"))
        record = Record(message().identity, ONE_EFFECT, token="t", issued=issued)  # noqa: S106 - no secret
        async with self.open_forgetful_store() as subject:
            unit = await (await subject.store()).begin([message()])
            await unit.commit([record])
            assert (await look(subject, message())).pending == (record,)

    async def test_others_are_not_forgotten(self) -> None:
        """Only those that are named."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), message("m2"), decided=ONE_EFFECT)
            await (await subject.store()).forget([RECORD])
            assert (await undispatched(subject)) == (Record(message("m2").identity, ONE_EFFECT),)

    async def test_forgetting_again_leaves_nothing_either(self) -> None:
        """Two workers may finish one message."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            for _ in range(2):
                await (await subject.store()).forget([RECORD])
            assert await subject.traces() == 0

    async def test_looking_leaves_nothing(self) -> None:
        """A message that is not admitted is only looked at."""
        async with self.open_forgetful_store() as subject:
            await look(subject, message())
            assert await subject.traces() == 0

    async def test_who_began_before_loses_although_nothing_is_left(self) -> None:
        """It asked the other place before the message was noted there; others handled and forgot it since."""
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
        """And nobody has to lose."""
        async with self.open_forgetful_store() as subject:
            await handle(subject, message(), decided=ONE_EFFECT)
            unit = await unit_of(subject)
            found = await (await subject.store()).fence(unit, message().identity)
            assert found == Record(message().identity, ONE_EFFECT, unit=found.unit if found else "")

    async def test_the_fence_leaves_nothing(self) -> None:
        """There is no record, and afterwards there is none."""
        async with self.open_forgetful_store() as subject:
            unit = await unit_of(subject)
            assert await (await subject.store()).fence(unit, message().identity) is None
            assert await subject.traces() == 0
            assert await look(subject, message()) == BeginResult(new=(message(),))


async def _handle_and_forget(subject: StoreSubject) -> None:
    store = await subject.store()
    unit = await store.begin([message()])
    if unit.found.new:
        await write(subject, unit, "second")
        await unit.commit([RECORD])
    else:
        unit.abandon()
    await store.forget([RECORD])
