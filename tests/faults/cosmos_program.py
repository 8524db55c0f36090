"""A process that handles one message: an entity and three documents of the application change together, and one is sent.

Arguments: URL of the store, URL of the transport.
"""

import asyncio
import sys
from dataclasses import dataclass

from onceonly import Context, Endpoint

RECEIVER = "ledger"
TENANT, ACCOUNT, AMOUNT = "acme", "A", 5


@dataclass
class Deposit:
    """What is handled."""

    tenant: str
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
    bank = Endpoint("bank", store=store, transport=transport, janitor=False)

    @bank.handler(entity=Account, key="account_id", partition_key="tenant")
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        total = await context.documents.get("total") or {"n": 0}
        context.documents.put("total", {"n": total["n"] + message.amount})
        context.documents.put("receipt", {"amount": message.amount})
        await context.documents.delete("draft")
        context.send(Deposited(account.account_id, account.balance), to=RECEIVER)

    return bank


async def handle(store: str, transport: str) -> None:
    """Handle the message as a host delivers it."""
    async with bank_at(store, transport).hosted() as hosted:
        body = b'{"tenant": "%s", "account_id": "%s", "amount": %d}' % (TENANT.encode(), ACCOUNT.encode(), AMOUNT)
        outcome = await hosted.handle_one(body, headers={"ce-id": "d1", "ce-source": "web", "ce-type": "Deposit"})
    sys.exit(0 if outcome.is_settled else outcome.reason)


if __name__ == "__main__":
    asyncio.run(handle(*sys.argv[1:]))
