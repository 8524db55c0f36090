"""What a store promises besides when another system knows what is done: it forgets a message completely (section 4)."""

from contextlib import AbstractAsyncContextManager

from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.testing.samples import message
from onceonly.testing.store_subject import ONE_EFFECT, Found, StoreSubject, handle, look, undispatched
from onceonly.testing.suite import OTHER, Suite

FORGOTTEN = "test_a_forgotten_message_is_done"
"""The rule of `StoreSuite` that such a store does not keep."""


class ForgettingSuite(Suite):
    """Every promise of a store that keeps nothing of a finished message. Override `open_store`."""

    def open_store(self) -> AbstractAsyncContextManager[StoreSubject]:
        """Give a store with nothing in it, and clean up afterwards."""
        raise NotImplementedError

    async def test_every_finished_message_is_to_be_forgotten(self) -> None:
        """Also one without effects: its claim is left."""
        async with self.open_store() as subject:
            store = await subject.store()
            assert store.keeps(Record(message().identity))
            assert store.keeps(Record(message().identity, ONE_EFFECT))

    async def test_a_forgotten_message_is_new(self) -> None:
        """Nothing is left of it, whether it had effects or not."""
        asked = message("m1"), message("m2")
        async with self.open_store() as subject:
            await handle(subject, asked[0], decided=ONE_EFFECT)
            await handle(subject, asked[1])
            await (await subject.store()).forget([Record(each.identity) for each in asked])
            assert await undispatched(subject) == ()
            assert await look(subject, *asked) == Found(new=asked)

    async def test_what_is_not_forgotten_is_known(self) -> None:
        """Other messages, and this one at other endpoints."""
        asked = message("m1"), message("m2"), message("m3")
        async with self.open_store() as subject:
            await handle(subject, asked[0], asked[1], decided=ONE_EFFECT)
            await handle(subject, asked[2])
            store = await subject.store()
            await store.forget([Record(asked[0].identity)])
            await (await subject.store(OTHER)).forget([Record(asked[1].identity)])
            found = await look(subject, *asked)
            assert found == Found(new=asked[:1], owed=(Record(asked[1].identity, ONE_EFFECT),), done=asked[2:])

    async def test_a_forgotten_message_may_be_handled_again(self) -> None:
        """Whoever knows that it is done has said no; with the same effects, and it is owed again."""
        async with self.open_store() as subject:
            store, record = await subject.store(), Record(message().identity, ONE_EFFECT)
            for _ in range(2):
                unit = await store.begin([message()])
                await unit.commit([record] if unit.new else [])
                assert await look(subject, message()) == Found(owed=(record,))
                await store.forget([record])
            assert await undispatched(subject) == ()

    async def test_a_record_gives_back_what_it_was_committed_with(self) -> None:
        """The token that its message came with and those it minted, also without effects."""
        minted = (Token("1", "billing"), Token("1", "mail"))
        records = (
            Record(message("m1").identity, ONE_EFFECT, token="t", minted=minted),  # noqa: S106 - no secret
            Record(message("m2").identity, minted=minted[:1]),
        )
        async with self.open_store() as subject:
            unit = await (await subject.store()).begin([message("m1"), message("m2")])
            await unit.commit(records)
            assert (await look(subject, message("m1"), message("m2"))).owed == records
