"""A key that is known finishes what its attempt has left, on every database: the caller may be the only one who can."""

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.algorithms.transaction import transact
from onceonly.assembly.transactions import outside
from onceonly.endpoint.host import host_of
from onceonly.errors import DispatchPending, TransactionMisused
from onceonly.formats.bodies import encode_answer
from onceonly.model.message import Message, Send
from onceonly.model.transaction import BlockDecision, TransactionAttempt
from onceonly.ports.transactions import OpenTransaction
from onceonly.runtime.environment import LIVE
from onceonly.runtime.observe.observer import Point
from tests.sql.enlist_harness import Shop
from tests.sql.enlist_scenarios import Away
from tests.sql.harness import Order
from tests.sql.transaction_scenarios import Block


async def die_after_commit(shop: Shop, *, key: str = "k1") -> None:
    """Commit an order, its event and the key as a process does that dies before it has dispatched anything."""

    async def block(opened: OpenTransaction) -> BlockDecision:
        session: Any = opened.resources.get(AsyncSession)
        session.add(Order(id="A"))
        event = Message(id=opening.attempt, source="shop", type="OrderPlaced", body=b'{"order_id":"A"}')
        return BlockDecision((Send(message=event, to=""),), encode_answer({"placed": ["A"]}))

    asked = shop.endpoint.transaction(idempotency_key=key)._asked
    opening = TransactionAttempt(
        endpoint="shop", attempt=LIVE.ids.new_id(), max_commit=60_000, key=asked.key, fingerprint=asked.fingerprint
    )
    async with outside(shop.endpoint.settings) as dead:
        await transact(opening, block, dead.ports)


def opened(shop: Shop, away: Away | None = None) -> AbstractAsyncContextManager[Any]:
    """Open the endpoint without a worker or relay: nothing but its transactions sends."""
    return host_of(shop.endpoint).opened(observer=away)


class KnownKeyScenarios:
    """The scenarios; a fixture `shop` says on which database. No relay runs in any of them but one."""

    @pytest.mark.parametrize("is_open", [False, True])
    async def test_a_repeated_call_sends_what_a_dead_process_has_committed(self, shop: Shop, *, is_open: bool) -> None:
        """Crash here, "after-commit": 1 committed, 2 nothing sent, 3 no relay, 4 the call is repeated and sends, 5 answered."""
        await die_after_commit(shop)
        assert (await shop.nothing_waits(), len(await shop.records())) == (True, 1)
        block = Block("A")
        if is_open:
            async with opened(shop):
                await shop.endpoint.transact(block, idempotency_key="k1")
        else:
            await shop.endpoint.transact(block, idempotency_key="k1")
        assert (block.runs, await shop.bodies(1), await shop.records()) == (0, ["A"], ())
        async with shop.endpoint.transaction(idempotency_key="k1") as tx:
            assert (tx.is_known, tx.is_dispatched, tx.answer) == (True, True, {"placed": ["A"]})
        assert await shop.nothing_waits()

    async def test_the_block_of_a_known_key_begins_after_the_dispatch(self, shop: Shop) -> None:
        """So a host that acknowledges its message after the block has nothing left."""
        await die_after_commit(shop)
        async with shop.endpoint.transaction(idempotency_key="k1") as tx:
            assert (tx.is_known, tx.is_dispatched, await shop.bodies(1)) == (True, True, ["A"])

    async def test_a_broker_that_is_away_is_no_answer_where_the_caller_waits_for_it(self, shop: Shop) -> None:
        """Neither for the first attempt nor for those that find its key. The first one after the outage sends."""
        away, block = Away(), Block("A")
        async with opened(shop, away):
            for _ in range(3):
                with pytest.raises(DispatchPending, match="repeat it with the same"):
                    await shop.endpoint.transact(block, idempotency_key="k1", until_dispatched=True)
            with pytest.raises(DispatchPending):
                async with shop.endpoint.transaction(idempotency_key="k1", until_dispatched=True):
                    pytest.fail("the block must not begin")
            async with shop.endpoint.transaction(idempotency_key="k1") as tx:
                assert (tx.is_known, tx.is_dispatched) == (True, False)
            away.is_back = True
            answer = await shop.endpoint.transact(block, idempotency_key="k1", until_dispatched=True)
        assert (answer, block.runs, await shop.bodies(1)) == ({"placed": ["A"]}, 1, ["A"])
        assert (await shop.orders(), await shop.records(), await shop.nothing_waits()) == (["A"], (), True)

    async def test_a_first_attempt_waits_for_its_dispatch_if_it_is_asked_to(self, shop: Shop) -> None:
        """Also where a relay runs that would do it: its end cannot be waited for."""
        async with shop.running():
            async with shop.endpoint.transaction(idempotency_key="k1", until_dispatched=True) as tx:
                await Block("A")(tx)
                assert not tx.is_dispatched
            assert (tx.is_dispatched, await shop.records()) == (True, ())
            assert await shop.bodies(1) == ["A"]

    async def test_a_relay_of_this_process_is_left_what_is_known(self, shop: Shop) -> None:
        """It may be sending that now, and a second copy is of no use. The caller sees that it is not sent yet."""
        await die_after_commit(shop)
        async with shop.running():
            async with shop.endpoint.transaction(idempotency_key="k1") as tx:
                assert (tx.is_known, tx.is_dispatched) == (True, False)
            assert (shop.watch.calls[Point.DISPATCH], len(await shop.records())) == (0, 1)

    async def test_waiting_for_the_dispatch_needs_a_key(self, shop: Shop) -> None:
        """Without one the repeated call would do it again."""
        with pytest.raises(TransactionMisused, match="needs idempotency_key="):
            shop.endpoint.transaction(until_dispatched=True)
