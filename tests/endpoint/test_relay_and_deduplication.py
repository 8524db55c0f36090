"""A relay on documents finishes records of every form of deduplication that keeps them, and refuses the others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceonly import Context, DedupStore, Endpoint, History, Off, SetupError, Shadow, Tokens
from onceonly.algorithms.delivery import deliver
from onceonly.assembly import open_relay
from onceonly.cli.relay_once import relay_endpoint_once
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.crash import CrashAt, ProcessCrash
from tests.endpoint.relay_program import Account, Deposit, Deposited

FORMS: dict[str, Callable[[str], Any]] = {
    "History": lambda _: History(),
    "DedupStore": DedupStore,
    "Tokens": Tokens,
}


def endpoints(store: str, transport: str, deduplication: Any) -> tuple[Endpoint, Endpoint, list[int]]:
    """Return the bank, which sends what it handles to the ledger, the ledger, and what that one handles."""
    shared: dict[str, Any] = {"store": store, "transport": transport, "deduplication": deduplication, "relay_after": 0.05}
    bank, ledger, noted = Endpoint("bank", **shared), Endpoint("ledger", **shared), list[int]()

    @bank.handler(entity=Account, key="account_id")
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        context.send(Deposited(account.account_id, account.balance), to="ledger")

    @ledger.handler
    async def note(message: Deposited) -> None:
        noted.append(message.balance)

    return bank, ledger, noted


@pytest.mark.parametrize("form", FORMS)
async def test_a_relay_finishes_transactions_and_handlers_of_dead_processes(form: str, redis_url: str, tmp_path: Path) -> None:
    """Both processes die after their commits. The receivers take what the relay sends, also with tokens, and take it once."""
    bank, ledger, noted = endpoints(redis_url, f"sqlite:///{tmp_path}/queue.db", FORMS[form](redis_url))
    async with host_of(ledger).opened():
        pass  # its queue is there
    async with host_of(bank).opened(observer=CrashAt("after-commit")):
        with pytest.raises(ProcessCrash):
            async with bank.transaction() as tx:
                tx.send(Deposit("a", 5), to="bank")
    first = await relay_endpoint_once(bank.settings)
    async with host_of(bank).opened(observer=CrashAt("after-commit")) as ports:
        received = await ports.transport.receive(10, 10.0)
        with pytest.raises(ProcessCrash):
            await deliver(received, ports)
    second = await relay_endpoint_once(bank.settings)
    third = await relay_endpoint_once(bank.settings)
    assert [(each.sent, each.left) for each in (first, second, third)] == [(1, 0), (1, 0), (0, 0)]
    async with host_of(ledger).opened() as ports:
        await deliver(await ports.transport.receive(10, 10.0), ports)
        assert (await ports.transport.depth("ledger")).waiting == 0
    assert noted == [5]
    async with host_of(bank).opened() as ports:
        report = await deliver(received, ports)
    assert (report.handled, report.known) == (0, 1)


@pytest.mark.parametrize(
    ("deduplication", "words"), [(Off(), "stores no records"), (Shadow(), "Shadow")], ids=lambda each: type(each).__name__
)
async def test_without_records_a_relay_is_refused(deduplication: Any, words: str, redis_url: str, tmp_path: Path) -> None:
    """The error names the setting."""

    async def open_one() -> None:
        bank, *_ = endpoints(redis_url, f"sqlite:///{tmp_path}/queue.db", deduplication)
        async with open_relay(bank.settings):
            pass

    with pytest.raises(SetupError, match=words):
        await open_one()
