"""Processes that die after their commits, before anything is sent.

Arguments: URL of the store, URL of the transport, and what is committed, each as WHAT=ID. WHAT is "message",
a message for an entity; "transaction", a transaction with an entity; or "bare", a transaction without one. Neither has a key.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from onceonly import Context, Endpoint
from onceonly.algorithms import outbox
from onceonly.endpoint.host import host_of
from onceonly.runtime.observe.observer import Point, PortCall

EXIT = 77
RECEIVER = "ledger"
RELAY_AFTER_SECONDS = 1.0


@dataclass
class Deposit:
    """What is handled."""

    account_id: str
    amount: int


@dataclass
class Account:
    """The entity."""

    account_id: str
    balance: int = 0


@dataclass
class Deposited:
    """What is sent."""

    account_id: str
    balance: int


def bank_at(store: str, transport: str, *, relay_after: float = RELAY_AFTER_SECONDS) -> Endpoint:
    """Return the endpoint on these places."""
    bank = Endpoint("bank", store=store, transport=transport, relay_after=relay_after, janitor=False)

    @bank.handler(entity=Account, key="account_id")
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        context.send(Deposited(account.account_id, account.balance), to=RECEIVER)

    return bank


async def die(*_: Any) -> NoReturn:
    """End the process at once, in the place of what sends."""
    os._exit(EXIT)


class DieAfterCommit:
    """An observer that ends the process at once after a commit."""

    @asynccontextmanager
    async def around(self, call: PortCall) -> AsyncIterator[None]:
        """Let the commit happen, and end."""
        yield
        if call.point is Point.COMMIT:
            os._exit(EXIT)


async def handle(bank: Endpoint, name: str) -> None:
    """Handle a message for an account of its own."""
    outbox.dispatch = die
    async with bank.hosted() as hosted:
        body = b'{"account_id": "%s", "amount": 5}' % name.encode()
        await hosted.handle_one(body, headers={"ce-id": name, "ce-source": "web", "ce-type": "Deposit"})


async def transact(bank: Endpoint, name: str, *, has_entity: bool) -> None:
    """Commit a transaction without a key."""
    async with host_of(bank).opened(observer=DieAfterCommit()), bank.transaction() as tx:
        if has_entity:
            (await tx.entity(Account, name)).balance += 5
        tx.send(Deposited(name, 5), to=RECEIVER)


async def main(store: str, transport: str, what: str, name: str) -> None:
    """Commit what is asked for."""
    bank = bank_at(store, transport)
    await (handle(bank, name) if what == "message" else transact(bank, name, has_entity=what == "transaction"))


async def open_once(store: str, transport: str) -> None:
    """Import what an endpoint on these places needs. Forks have it."""
    async with host_of(bank_at(store, transport)).opened():
        pass


def die_for_each(store: str, transport: str, *committed: str) -> None:
    """Commit each of these in a fork. Raises SystemExit unless all died as they should."""
    asyncio.run(open_once(store, transport))
    for each in committed:
        if not (fork := os.fork()):
            asyncio.run(main(store, transport, *each.split("=")))
            os._exit(1)
        if (code := os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])) != EXIT:
            sys.exit(f"{each} ended with code {code}")
    sys.exit(EXIT)


if __name__ == "__main__":
    die_for_each(*sys.argv[1:])
