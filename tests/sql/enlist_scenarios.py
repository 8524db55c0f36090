"""What a user's own transaction does to the messages published in it, on every database."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.assembly import enlist
from onceonly.endpoint.host import host_of
from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity, outgoing_id, without_instant
from onceonly.model.record import Record
from onceonly.runtime.observe.observer import Point, PortCall
from onceonly_conformance.samples import effects
from tests.sql.enlist_harness import AHEAD, FAR_AHEAD, OrderPlaced, Shop, opened_shop
from tests.sql.harness import Order

ONE = Record(Identity("shop", "one"), effects()[:1])


class Together:
    """An observer that lets two looks into the store return only when both have been taken."""

    def __init__(self) -> None:
        self._both = asyncio.Barrier(2)
        self._met = 0

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Hold the first look of each."""
        yield
        if call.point is Point.TAKE and self._met < 2:
            self._met += 1
            await self._both.wait()


class Away:
    """An observer that keeps every message from the broker until it is back."""

    def __init__(self) -> None:
        self.is_back = False
        self.was_asked = asyncio.Event()

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Be away."""
        if call.point is Point.DISPATCH and not self.is_back:
            self.was_asked.set()
            raise CommitFailed("the broker is away")
        yield


class EnlistScenarios:
    """The scenarios; a fixture `shop` says on which database."""

    async def test_a_commit_sends_what_was_published_and_leaves_no_record(self, shop: Shop) -> None:
        """At once, because the endpoint runs in this process: the record is not old."""
        async with shop.running():
            await shop.place("A", "B")
            assert await shop.bodies(2) == ["A", "B"]
            await shop.watch.until(Point.FORGET)
        assert (await shop.orders(), await shop.records()) == (["A", "B"], ())
        assert await shop.nothing_waits()

    async def test_nothing_is_written_before_the_commit_and_a_rollback_leaves_neither(self, shop: Shop) -> None:
        """Orders and messages alike, also when they were flushed."""
        async with shop.running():
            async with shop.sessions() as session:
                shop.add(session, "A")
                await session.flush()
                assert (await shop.orders(), await shop.records()) == ([], ())
                await session.rollback()
            assert (await shop.orders(), await shop.records()) == ([], ())
        assert shop.watch.calls[Point.FIND] == 0
        assert await shop.nothing_waits()

    async def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(self, shop: Shop) -> None:
        """What was published before and after it goes out, flushed or not."""
        async with shop.running():
            async with shop.sessions.begin() as session:
                shop.add(session, "A")
                for flushes in (True, False):
                    savepoint = await session.begin_nested()
                    shop.add(session, f"lost {flushes}")
                    if flushes:
                        await session.flush()
                    await savepoint.rollback()
                async with session.begin_nested():
                    shop.add(session, "B")
                shop.add(session, "C")
            assert await shop.bodies(3) == ["A", "B", "C"]
            await shop.watch.until(Point.FORGET)
        assert (await shop.orders(), await shop.records()) == (["A", "B", "C"], ())

    async def test_a_released_savepoint_is_no_commit(self, shop: Shop) -> None:
        """Nobody is told before the transaction itself is committed."""
        told: list[object] = []
        async with shop.sessions.begin() as session:
            shop.add(session, "A")
            enlist(shop.endpoint.settings, session, told.append).write(ONE, 1)
            async with session.begin_nested():
                shop.add(session, "B")
            assert told == []
        assert told == [(ONE.identity,)]
        assert len(await shop.records()) == 3

    async def test_an_outer_transaction_that_is_rolled_back_sends_nothing(self, shop: Shop) -> None:
        """A session says that it committed, while all it has done hangs on somebody else's transaction."""
        async with shop.running():
            async with shop.engine.connect() as connection, connection.begin() as outer:
                async with AsyncSession(connection, join_transaction_mode="create_savepoint") as session:
                    shop.add(session, "A")
                    await session.commit()
                await shop.watch.until(Point.FIND)
                await outer.rollback()
            assert (await shop.orders(), await shop.records()) == ([], ())
        assert shop.watch.calls[Point.DISPATCH] == 0
        assert await shop.nothing_waits()

    async def test_an_outer_transaction_that_is_committed_later_is_found_by_looking(self, shop: Shop) -> None:
        """Nobody announced that commit; the record is there all the same."""
        async with (
            shop.engine.connect() as connection,
            connection.begin(),
            AsyncSession(connection, join_transaction_mode="create_savepoint") as session,
        ):
            shop.add(session, "A")
            await session.commit()
        async with shop.running(environment=AHEAD):
            assert await shop.bodies(1) == ["A"]

    async def test_a_session_is_enlisted_anew_in_each_transaction(self, shop: Shop) -> None:
        """One session, three transactions, one of them rolled back."""
        async with shop.running(), shop.sessions() as session:
            for order in ("A", "B", "C"):
                shop.add(session, order)
                await (session.rollback() if order == "B" else session.commit())
            assert await shop.bodies(2) == ["A", "C"]

    async def test_the_messages_of_a_killed_process_are_sent_by_another_under_the_same_ids(
        self, shop: Shop, tmp_path: Path
    ) -> None:
        """Crash here, "after-commit": 1 committed, 2 killed, nothing sent, 3 a relay finds the record, 4 it sends it, once."""
        queue = f"sqlite:///{tmp_path}/queue.db"
        async with opened_shop(shop.store, transport=queue, environment=AHEAD) as here:
            assert await here.killed_after_commit("A", "B") == -9
            left = await here.records()
            assert (len(left), await here.orders()) == (2, ["A", "B"])
            async with here.running(environment=AHEAD):
                arrived = await here.arrived(2)
                await here.watch.until(Point.FORGET)
            assert [without_instant(id_) for _, id_ in arrived] == [
                without_instant(outgoing_id("shop", record.identity, 0))
                for record in sorted(left, key=lambda it: it.effects[0].message.body)
            ]
            assert await here.nothing_waits()
            assert await here.records() == ()

    async def test_a_broker_that_is_away_at_the_commit_costs_nothing(self, shop: Shop) -> None:
        """The commit does not wait for it; the message waits in the store, and goes out when it is back."""
        away = Away()
        async with shop.running(away):
            await shop.place("A")
            await away.was_asked.wait()
            assert (await shop.orders(), len(await shop.records())) == (["A"], 1)
            away.is_back = True
            assert await shop.bodies(1) == ["A"]
            await shop.watch.until(Point.FORGET)
        assert await shop.records() == ()

    async def test_two_relays_whose_clocks_differ_send_the_same_ids(self, shop: Shop) -> None:
        """Neither heeds the other's mark. Receivers that know an id handle it once; the record is forgotten by both."""
        await shop.place("A")
        together, other = Together(), shop.another()
        async with (
            shop.running(together, environment=AHEAD),
            host_of(other).running(observer=together, environment=FAR_AHEAD),
        ):
            first, second = await shop.arrived(2)
            assert first == second
        assert await shop.records() == ()

    async def test_records_are_kept_while_nobody_runs(self, shop: Shop) -> None:
        """A message waits in the store for a worker process, with all that was asked of it."""
        async with shop.sessions.begin() as session:
            outgoing = shop.endpoint.enlist(session)
            outgoing.publish(OrderPlaced("A"), delay=60)
            outgoing.send(OrderPlaced("B"), to="billing", type="billing.placed.v1")
            session.add(Order(id="A"))
        sends = sorted((send.to, send.message.type, send.due > 0) for record in await shop.records() for send in record.effects)
        assert sends == [("", "OrderPlaced", True), ("billing", "billing.placed.v1", False)]
