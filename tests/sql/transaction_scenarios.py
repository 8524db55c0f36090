"""What a transaction outside of any handler does, with and without a client's key, on every database."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError

from onceonly import CommitFailed, ConflictError, Transaction
from onceonly.errors import CommitRefused, InvalidEffect, KeyReused, TransactionMisused
from onceonly.model.identity import Identity, outgoing_id, without_instant
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.observer import Point, PortCall
from tests.sql.enlist_harness import AHEAD, OrderPlaced, PlaceOrder, Shop, endpoint
from tests.sql.harness import Order

REQUEST = {"order": "A", "total": 3}


class OneId:
    """Ids of which the first is known."""

    def new_id(self) -> str:
        """Return the same one; a test that asks twice would see a conflict."""
        return "attempt-1"


class Begun:
    """An observer that tells when so many transactions are being opened."""

    def __init__(self, count: int) -> None:
        self.is_reached = asyncio.Event()
        self._left = count

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Count those that begin."""
        if call.point is Point.OPEN:
            self._left -= 1
            if self._left == 0:
                self.is_reached.set()
        yield


class Block:
    """A client's order, as the block of a transaction; counts how often it ran."""

    def __init__(self, *orders: str) -> None:
        self.orders = orders
        self.runs = 0

    async def __call__(self, tx: Transaction) -> dict[str, list[str]]:
        """Place the orders and publish each."""
        self.runs += 1
        for order in self.orders:
            tx.sql.add(Order(id=order))
            tx.publish(OrderPlaced(order))
        return {"placed": list(self.orders)}


class TransactionScenarios:
    """The scenarios; a fixture `shop` says on which database."""

    async def test_a_block_that_ends_well_is_committed_and_sent(self, shop: Shop) -> None:
        """At once, because the endpoint runs in this process; no record is left."""
        async with shop.running():
            async with shop.endpoint.transaction() as tx:
                tx.sql.add(Order(id="A"))
                tx.publish(OrderPlaced("A"))
                tx.send(PlaceOrder("B"), to="shop", delay=3600)
            assert await shop.bodies(1) == ["A"]
            await shop.watch.until(Point.FORGET)
        assert (shop.watch.calls[Point.DISPATCH], shop.watch.calls[Point.FIND]) == (
            1,
            0,
        )  # the relay was given this very record
        assert (await shop.orders(), await shop.records()) == (["A"], ())

    async def test_an_exception_in_the_block_rolls_back_and_sends_nothing(self, shop: Shop) -> None:
        """Also what was flushed; the exception is the block's own."""

        async def fail() -> None:
            async with shop.endpoint.transaction(idempotency_key="k1") as tx:
                await Block("A")(tx)
                await tx.sql.flush()
                tx.answer = 1 // 0

        async with shop.running():
            with pytest.raises(ZeroDivisionError):
                await fail()
            assert (await shop.orders(), await shop.records()) == ([], ())
            assert await shop.endpoint.transact(Block("B"), idempotency_key="k1") == {"placed": ["B"]}
            assert await shop.bodies(1) == ["B"]
        assert (await shop.orders(), await shop.nothing_waits()) == (["B"], True)

    async def test_a_cancelled_block_leaves_nothing(self, shop: Shop) -> None:
        """As a client that hung up, or a server's time-out."""
        is_inside = asyncio.Event()

        async def hang(tx: Transaction) -> None:
            await Block("A")(tx)
            await tx.sql.flush()
            is_inside.set()
            await asyncio.Event().wait()

        async with shop.running():
            hanging = asyncio.create_task(shop.endpoint.transact(hang, idempotency_key="k1"))
            await is_inside.wait()
            hanging.cancel()
            with pytest.raises(asyncio.CancelledError):
                await hanging
            assert await shop.endpoint.transact(Block("B"), idempotency_key="k1") == {"placed": ["B"]}
        assert await shop.orders() == ["B"]

    async def test_every_retry_gets_the_first_answer(self, shop: Shop) -> None:
        """By either form; the block runs once, one row and one message are there."""
        block = Block("A")
        async with shop.running():
            answers = [
                await shop.endpoint.transact(block, idempotency_key="k1", request=dict(reversed(REQUEST.items())))
                for _ in range(3)
            ]
            async with shop.endpoint.transaction(idempotency_key="k1", request=REQUEST) as tx:
                assert tx.is_known
                answers.append(tx.answer)
            assert await shop.bodies(1) == ["A"]
        assert (answers, block.runs) == ([{"placed": ["A"]}] * 4, 1)
        assert (await shop.orders(), await shop.nothing_waits()) == (["A"], True)

    @pytest.mark.parametrize("answer", [b"\x00\xff", "text", "", {"a": [1, None]}, 0, None])
    async def test_an_answer_comes_back_as_it_was(self, shop: Shop, answer: object) -> None:
        """Bytes, text, what JSON has, and none at all."""

        async def block(_tx: Transaction) -> object:
            return answer

        first = await shop.endpoint.transact(block, idempotency_key="k1")
        again = await shop.endpoint.transact(block, idempotency_key="k1")
        assert (first, again, type(again)) == (answer, answer, type(answer))

    async def test_a_key_for_another_request_is_refused(self, shop: Shop) -> None:
        """At every read: also when none was named, and when bytes look the same as JSON."""
        await shop.endpoint.transact(Block("A"), idempotency_key="k1", request=REQUEST)
        for other in ({**REQUEST, "total": 4}, None, b'{"order":"A","total":3}'):
            with pytest.raises(KeyReused, match="another request"):
                await shop.endpoint.transact(Block("B"), idempotency_key="k1", request=other)
        assert await shop.orders() == ["A"]

    async def test_nothing_can_be_done_under_a_key_that_is_committed(self, shop: Shop) -> None:
        """Whatever writes says so, and leaving the block quietly commits nothing."""
        await shop.endpoint.transact(Block("A"), idempotency_key="k1")
        async with shop.endpoint.transaction(idempotency_key="k1") as tx:
            for use in (lambda: tx.sql, lambda: tx.publish(OrderPlaced("B")), lambda: setattr(tx, "answer", 1)):
                with pytest.raises(TransactionMisused, match="is_known"):
                    use()
            assert tx.answer == {"placed": ["A"]}
        assert await shop.records() == ()

    async def test_a_second_attempt_waits_for_the_first_and_gets_its_answer(self, shop: Shop) -> None:
        """Its block never runs."""
        begun = Begun(2)
        first, second = Block("A"), Block("B")

        async def slowly(tx: Transaction) -> object:
            answer = await first(tx)
            await begun.is_reached.wait()
            return answer

        async with shop.running(begun):
            one = asyncio.create_task(shop.endpoint.transact(slowly, idempotency_key="k1"))
            two = asyncio.create_task(shop.endpoint.transact(second, idempotency_key="k1"))
            answers = await asyncio.gather(one, two)
        winner = first if first.runs else second
        assert answers == [{"placed": list(winner.orders)}] * 2
        assert (first.runs + second.runs, await shop.orders()) == (1, list(winner.orders))

    async def test_many_attempts_at_once_are_one(self, shop: Shop) -> None:
        """Those that lose a deadlock among them are told to try again, and do."""
        block = Block("A")

        async def client() -> object:
            while True:
                try:
                    return await shop.endpoint.transact(block, idempotency_key="k1")
                except ConflictError:
                    continue

        async with shop.running():
            assert await asyncio.gather(*(client() for _ in range(8))) == [{"placed": ["A"]}] * 8
            assert await shop.bodies(1) == ["A"]
        assert (await shop.orders(), await shop.nothing_waits(), block.runs) == (["A"], True, 1)

    async def test_who_waits_for_an_attempt_that_fails_does_it(self, shop: Shop) -> None:
        """The first rolled back, so the second is the first."""
        begun = Begun(2)
        is_inside = asyncio.Event()

        async def fail(_tx: Transaction) -> None:
            is_inside.set()
            await begun.is_reached.wait()
            raise ZeroDivisionError

        async with shop.running(begun):
            failing = asyncio.create_task(shop.endpoint.transact(fail, idempotency_key="k1"))
            await is_inside.wait()
            second = await shop.endpoint.transact(Block("B"), idempotency_key="k1")
            with pytest.raises(ZeroDivisionError):
                await failing
        assert (second, await shop.orders()) == ({"placed": ["B"]}, ["B"])

    async def test_a_commit_later_than_it_may_be_fails_for_sure(self, shop: Shop) -> None:
        """Nothing happened: the client may try again, and has it done."""

        async def dawdle(tx: Transaction) -> object:
            answer = await Block("A")(tx)
            end = time.monotonic() + 0.03
            while time.monotonic() < end:
                await tx.sql.execute(select(1))
            return answer

        async with shop.running():
            with pytest.raises(CommitFailed, match="not committed within 20 ms"):
                await shop.endpoint.transact(dawdle, idempotency_key="k1", max_commit=timedelta(milliseconds=20))
            assert (await shop.orders(), await shop.records()) == ([], ())
            in_time = await shop.endpoint.transact(dawdle, idempotency_key="k1", max_commit=timedelta(minutes=1))
            assert await shop.bodies(1) == ["A"]
        assert (in_time, await shop.orders()) == ({"placed": ["A"]}, ["A"])

    async def test_what_the_database_refuses_at_the_commit_leaves_nothing(self, shop: Shop) -> None:
        """A definite failure: no row, no message, and the key is free."""
        await shop.endpoint.transact(Block("A"))
        with pytest.raises(CommitRefused):
            await shop.endpoint.transact(Block("B", "A"), idempotency_key="k1")
        assert await shop.orders() == ["A"]
        assert await shop.endpoint.transact(Block("C"), idempotency_key="k1") == {"placed": ["C"]}
        assert await shop.bodies(2) == ["A", "C"]

    async def test_an_error_that_was_swallowed_keeps_the_block_from_being_committed(self, shop: Shop) -> None:
        """Where it has aborted the database transaction; elsewhere the rest is committed."""

        async def swallow(tx: Transaction) -> object:
            await Block("A")(tx)
            with suppress(DBAPIError):
                await tx.sql.execute(text("SELECT nothing FROM nowhere"))
            return "done"

        aborts = shop.engine.dialect.name == "postgresql"
        if aborts:
            with pytest.raises(CommitRefused, match="swallowed"):
                await shop.endpoint.transact(swallow)
        else:
            await shop.endpoint.transact(swallow)
        assert await shop.orders() == ([] if aborts else ["A"])

    async def test_the_session_does_not_end_the_transaction(self, shop: Shop) -> None:
        """commit, rollback and begin are refused, and it is over with the block."""
        async with shop.endpoint.transaction() as tx:
            session = tx.sql
            for end in (session.commit, session.rollback, session.begin().start):
                with pytest.raises(RuntimeError, match="is not allowed here"):
                    await end()
            await Block("A")(tx)
        with pytest.raises(TransactionMisused, match="has ended"):
            _ = tx.sql
        with pytest.raises(Exception, match=r"closed|used after its handler ended"):
            await session.execute(select(1))
        assert await shop.orders() == ["A"]

    async def test_where_the_endpoint_does_not_run_it_is_sent_directly(self, shop: Shop) -> None:
        """Through the transport, opened for it; no relay is needed."""
        assert await shop.endpoint.transact(Block("A", "B")) == {"placed": ["A", "B"]}
        assert await shop.bodies(2) == ["A", "B"]
        assert await shop.records() == ()

    async def test_a_broker_that_is_away_costs_the_caller_nothing(self, shop: Shop) -> None:
        """What is committed stays, and a relay sends it once the broker is back, under the same ids."""
        away = endpoint(shop.store, "amqp://guest:guest@127.0.0.1:1/")
        assert await away.transact(Block("A"), idempotency_key="k1") == {"placed": ["A"]}
        (record,) = await shop.records()
        (effect,) = record.effects
        assert effect.message.id == outgoing_id("shop", record.identity, 0, effect.message.instant)
        async with shop.running(environment=AHEAD):
            ((_, id_),) = await shop.arrived(1)
            await shop.watch.until(Point.FORGET)
        assert (id_, await shop.records()) == (effect.message.id, ())

    async def test_every_message_has_an_id_of_its_attempt(self, shop: Shop) -> None:
        """Derived from it and from its place in the block."""
        async with shop.running(environment=LIVE._replace(ids=OneId())):
            await shop.endpoint.transact(Block("A", "B"))
            arrived = await shop.arrived(2)
        attempt = Identity("shop", "attempt-1")
        assert [without_instant(id_) for _, id_ in arrived] == [
            without_instant(outgoing_id("shop", attempt, index)) for index in (0, 1)
        ]

    async def test_without_effects_no_record_is_written(self, shop: Shop) -> None:
        """Business data and key are all there is."""
        async with shop.running(), shop.endpoint.transaction(idempotency_key="k1") as tx:
            tx.sql.add(Order(id="A"))
            tx.answer = "ok"
        assert (await shop.orders(), shop.watch.calls[Point.FIND], await shop.records()) == (["A"], 0, ())

    async def test_who_cannot_wait_any_longer_for_a_key_is_told_to_try_again(self, shop: Shop, impatient: str) -> None:
        """The first attempt goes on; its answer is there for the next try."""
        is_inside, may_go = asyncio.Event(), asyncio.Event()

        async def slowly(tx: Transaction) -> object:
            answer = await Block("A")(tx)
            await tx.sql.flush()
            is_inside.set()
            await may_go.wait()
            return answer

        second = endpoint(impatient, shop.transport)
        first = asyncio.create_task(shop.endpoint.transact(slowly, idempotency_key="k1"))
        await is_inside.wait()
        with pytest.raises(ConflictError, match="can be repeated"):
            await second.transact(Block("B"), idempotency_key="k1")
        may_go.set()
        assert await first == await second.transact(Block("B"), idempotency_key="k1") == {"placed": ["A"]}
        assert await shop.orders() == ["A"]

    async def test_a_lock_that_the_block_does_not_get_is_a_conflict(self, shop: Shop, impatient: str) -> None:
        """Not the driver's own error: nothing is wrong with the block, and it may be tried again."""
        is_inside, may_go = asyncio.Event(), asyncio.Event()

        async def slowly(tx: Transaction) -> None:
            tx.sql.add(Order(id="A"))
            await tx.sql.flush()
            is_inside.set()
            await may_go.wait()

        async def same(tx: Transaction) -> None:
            tx.sql.add(Order(id="A"))
            await tx.sql.flush()

        first = asyncio.create_task(shop.endpoint.transact(slowly))
        await is_inside.wait()
        with pytest.raises(ConflictError, match="nothing was committed, so the call can be repeated"):
            await endpoint(impatient, shop.transport).transact(same)
        may_go.set()
        await first
        assert await shop.orders() == ["A"]

    async def test_a_command_to_an_impossible_name_is_refused_at_once(self, shop: Shop) -> None:
        """The block fails, and leaves nothing."""

        async def misname(tx: Transaction) -> None:
            tx.sql.add(Order(id="A"))
            tx.send(PlaceOrder("A"), to="No such name")

        with pytest.raises(InvalidEffect, match="cannot send to"):
            await shop.endpoint.transact(misname)
        assert await shop.orders() == []
