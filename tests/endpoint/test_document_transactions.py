"""Transactions on stores that cannot be searched: entities, keys, and processes that die around the commit."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from onceonly import CommitFailed, ConflictError, Transaction
from onceonly.algorithms.control import CONTROL
from onceonly.errors import CommitRefused, KeyReused, TransactionMisused
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from tests.endpoint.transaction_harness import Account, Deposit, Order, SimulatedEndpoint, deposit, pay


@pytest.fixture
async def simulated() -> AsyncIterator[SimulatedEndpoint]:
    """Open an endpoint."""
    simulated = SimulatedEndpoint()
    async with simulated.opened():
        yield simulated


async def test_an_entity_is_changed_in_place_and_committed_with_what_is_sent(simulated: SimulatedEndpoint) -> None:
    """And dispatched by this very task; a control message that comes later finds nothing to do."""
    async with simulated.bank.transaction() as tx:
        await deposit(tx, 5)
        assert await simulated.received() == []
    assert await simulated.received() == ["Deposit"]
    assert (await simulated.balance("A"), await simulated.balance("B"), simulated.handled) == (5, 1, ["B"])
    assert await simulated.pass_time(41) == [CONTROL]
    assert await simulated.pass_time(1000) == []


async def test_a_block_that_fails_changes_and_sends_nothing(simulated: SimulatedEndpoint) -> None:
    """There is not even a control message."""

    async def fail() -> None:
        async with simulated.bank.transaction() as tx:
            await deposit(tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert (await simulated.balance(), await simulated.pass_time(1000)) == (0, [])


async def test_without_messages_there_is_no_control_message(simulated: SimulatedEndpoint) -> None:
    """Nothing could be left undone."""
    async with simulated.bank.transaction(idempotency_key="k") as tx:
        (await tx.entity(Account, "A")).balance = 3
    assert (await simulated.balance(), await simulated.pass_time(1000)) == (3, [])


async def test_the_same_entity_is_the_same_object(simulated: SimulatedEndpoint) -> None:
    """However often it is asked for; as another class it is refused."""
    async with simulated.bank.transaction() as tx:
        account = await tx.entity(Account, "A")
        assert await tx.entity(Account, "A") is account

        class Account2(Account):
            """Another class of this name."""

        Account2.__name__ = "Account"
        with pytest.raises(TransactionMisused, match="is already loaded as an Account in this transaction"):
            await tx.entity(Account2, "A")


async def test_a_second_entity_is_refused_with_what_to_do(simulated: SimulatedEndpoint) -> None:
    """One write is one document."""
    async with simulated.bank.transaction() as tx:
        (await tx.entity(Account, "A")).balance = 1
        with pytest.raises(TransactionMisused, match="send a message from here to a handler that works on it"):
            await tx.entity(Account, "B")
    assert await simulated.balance() == 1


async def test_a_fresh_entity_can_be_given(simulated: SimulatedEndpoint) -> None:
    """It is kept as it was given, unless there is one; without it a class with several required fields cannot be made."""
    async with simulated.bank.transaction() as tx:
        with pytest.raises(CommitRefused, match="Pass fresh="):
            await tx.entity(Order, "1")
    async with simulated.bank.transaction() as tx:
        await tx.entity(Order, "1", fresh=Order("1", "tea"))
    async with simulated.bank.transaction() as tx:
        assert await tx.entity(Order, "1", fresh=Order("1", "milk")) == Order("1", "tea")
    async with simulated.bank.transaction() as tx:
        other: Any = Account("1")
        with pytest.raises(TransactionMisused, match="fresh= must be an Order"):
            await tx.entity(Order, "2", fresh=other)


async def test_an_entity_can_be_deleted(simulated: SimulatedEndpoint) -> None:
    """What was not given by the transaction cannot."""
    async with simulated.bank.transaction() as tx:
        (await tx.entity(Account, "A")).balance = 1
    async with simulated.bank.transaction() as tx:
        with pytest.raises(TransactionMisused, match=r"needs an object that tx\.entity"):
            tx.delete(Account("A"))
        tx.delete(await tx.entity(Account, "A"))
    assert await simulated.balance() == 0


@pytest.mark.parametrize(
    ("kind", "key", "words"),
    [(Account, "", "its key is empty"), (Account, None, "its key is None"), (dict, "A", "tx.entity takes"), (int, 1, "takes")],
)
async def test_what_can_be_no_entity_is_refused(simulated: SimulatedEndpoint, kind: Any, key: Any, words: str) -> None:
    """At once."""
    async with simulated.bank.transaction() as tx:
        with pytest.raises(TransactionMisused, match=words):
            await tx.entity(kind, key)


async def test_an_entity_belongs_to_the_blocks_task_and_time(simulated: SimulatedEndpoint) -> None:
    """Before it, after it, and in only in the task that opened it it is refused."""
    tx = simulated.bank.transaction()
    with pytest.raises(TransactionMisused, match="not open yet"):
        await tx.entity(Account, "A")
    async with tx:
        with pytest.raises(TransactionMisused, match="only in the task that opened it"):
            await asyncio.create_task(tx.entity(Account, "A"))
    with pytest.raises(TransactionMisused, match="has ended"):
        await tx.entity(Account, "A")


async def test_a_clients_key_gives_every_retry_the_first_answer(simulated: SimulatedEndpoint) -> None:
    """By both forms, though another attempt takes another entity; another request is refused."""

    async def place(tx: Transaction) -> object:
        order = uuid4().hex
        await tx.entity(Order, order, fresh=Order(order, "tea"))
        tx.send(Deposit("B"), to="bank")
        return {"order": order}

    answers = [await simulated.bank.transact(place, idempotency_key="k", request={"item": "tea"}) for _ in range(3)]
    async with simulated.bank.transaction(idempotency_key="k", request={"item": "tea"}) as tx:
        assert tx.is_known
        answers.append(tx.answer)
    assert all(answer == answers[0] for answer in answers)
    with pytest.raises(KeyReused):
        await simulated.bank.transact(place, idempotency_key="k", request={"item": "milk"})
    await simulated.pass_time(1000)
    assert simulated.handled == ["B"]


async def test_of_attempts_at_once_with_one_key_one_is_committed(simulated: SimulatedEndpoint) -> None:
    """The others are told to try again, or get its answer."""

    async def place(tx: Transaction) -> object:
        order = uuid4().hex
        await tx.entity(Order, order, fresh=Order(order, "tea"))
        tx.send(Deposit("B"), to="bank")
        return order

    async def insist() -> object:
        while True:
            try:
                return await simulated.bank.transact(place, idempotency_key="k")
            except ConflictError:
                await asyncio.sleep(0)

    assert len(set(await asyncio.gather(*(insist() for _ in range(8))))) == 1
    await simulated.pass_time(1000)
    await simulated.pass_time(1000)
    assert simulated.handled == ["B"]


async def test_two_that_change_one_entity_do_not_overwrite_each_other(simulated: SimulatedEndpoint) -> None:
    """The second is told that nothing happened, and to try again."""

    async def lose() -> None:
        async with simulated.bank.transaction() as tx:
            await deposit(tx)
            await asyncio.create_task(pay(simulated, 7))

    with pytest.raises(ConflictError, match="nothing was committed, so the call can be repeated"):
        await lose()
    assert await simulated.balance() == 7


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize(("point", "times"), [("after-commit", 1), ("before-dispatch", 2), ("after-dispatch", 2)])
async def test_a_process_that_dies_after_its_commit_leaves_it_to_the_control_message(
    key: str | None, point: str, times: int
) -> None:
    """Which sends what it pending, once; a message that was sent already is known to its receiver."""
    simulated = SimulatedEndpoint()
    async with simulated.opened(CrashAt(point, times)):
        with pytest.raises(ProcessCrash):
            await pay(simulated, idempotency_key=key)
        assert await simulated.received() == (["Deposit"] if point == "after-dispatch" else [])
        assert await simulated.pass_time(41) == [CONTROL, "Deposit"]
        assert await simulated.pass_time(1000) == []
        assert (await simulated.balance(), simulated.handled) == (1, ["B"])


async def test_a_process_that_dies_before_its_commit_is_given_up_at_the_last_look() -> None:
    """Nothing happened; what tells that it is over is forgotten in the end."""
    simulated = SimulatedEndpoint()
    async with simulated.opened(CrashAt("before-commit")):
        with pytest.raises(ProcessCrash):
            await pay(simulated, idempotency_key="k")
        assert [await simulated.pass_time(seconds) for seconds in (41, 51, 1000)] == [[CONTROL], [CONTROL], []]
        await pay(simulated, idempotency_key="k")
        assert (await simulated.received(), await simulated.balance()) == (["Deposit"], 1)


async def test_an_attempt_that_was_given_up_cannot_be_committed(simulated: SimulatedEndpoint) -> None:
    """It was so slow that its last control message came before its end."""

    async def be_late() -> None:
        async with simulated.bank.transaction() as tx:
            await deposit(tx)
            assert simulated.ports.controls is not None
            opened: Any = tx._opened
            await simulated.ports.controls.attempts.bury(tx._opening.identity, opened.unit)

    with pytest.raises(ConflictError, match="nothing was committed"):
        await be_late()
    assert await simulated.balance() == 0


async def test_a_commit_that_is_late_fails(simulated: SimulatedEndpoint) -> None:
    """And its control messages find nothing, and end."""

    async def be_late() -> None:
        async with simulated.bank.transaction(max_commit=timedelta(seconds=5)) as tx:
            await deposit(tx)
            simulated.clock.advance(5001)

    with pytest.raises(CommitFailed, match="not committed within"):
        await be_late()
    assert await simulated.pass_time(41) == [CONTROL]
    assert await simulated.pass_time(51) == [CONTROL]
    assert (await simulated.pass_time(1000), await simulated.balance()) == ([], 0)


async def test_a_limit_longer_than_control_messages_wait_is_refused(simulated: SimulatedEndpoint) -> None:
    """An attempt must not be given up while it may still be committed."""
    with pytest.raises(TransactionMisused, match="Make it shorter, or raise control="):
        async with simulated.bank.transaction(max_commit=timedelta(seconds=61)):
            pass
