"""A process that dies after a commit: it handles one message for an entity, and ends before anything is sent.

Arguments: URL of the store, URL of the transport, the id of the message, and "transaction" to commit a transaction instead.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from onceonly import Context, Endpoint
from onceonly.algorithms import outbox

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


def bank_at(store: str, transport: str) -> Endpoint:
    """Return the endpoint on these places."""
    bank = Endpoint("bank", store=store, transport=transport, relay_after=RELAY_AFTER_SECONDS, janitor=False)

    @bank.handler(entity=Account, key="account_id")
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        context.send(Deposited(account.account_id, account.balance), to=RECEIVER)

    return bank


async def die(*_: Any) -> NoReturn:
    """End the process at once, in the place of what sends."""
    os._exit(EXIT)


async def main(store: str, transport: str, ids: Sequence[str]) -> None:
    """Handle the messages, each for an account of its own."""
    bank = bank_at(store, transport)
    outbox.dispatch = die
    async with bank.hosted() as hosted:
        for name in ids:
            body = b'{"account_id": "%s", "amount": 5}' % name.encode()
            await hosted.handle_one(body, headers={"ce-id": name, "ce-source": "web", "ce-type": "Deposit"})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
