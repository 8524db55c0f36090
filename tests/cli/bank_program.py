"""A program on documents as a user would write it; the tests of the command line copy it into a directory of their own."""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from onceonly import Context, DedupStore, Endpoint, Reject, Tokens


@dataclass
class Deposit:
    """Pay something in."""

    owner: str
    amount: int = 1


@dataclass
class Account:
    """What somebody has."""

    owner: str
    balance: int = 0


elsewhere = Tokens("sqlite:///tokens.db", sweep_after=timedelta(minutes=1))
bank = Endpoint("bank", store="sqlite:///bank.db", transport="sqlite:///queue.db", deduplication=elsewhere)
vault = Endpoint("vault", store="sqlite:///vault.db", transport="sqlite:///queue.db", deduplication=Tokens())
safe = Endpoint(
    "safe",
    store="sqlite:///safe.db",
    transport="sqlite:///queue.db",
    deduplication=DedupStore("sqlite:///done.db"),
    blobs=f"folder://{Path.cwd()}/receipts",
)


def deposit(command: Deposit, account: Account) -> None:
    """Add it up, unless it is nothing, and unless the bank is closed."""
    if Path("closed").exists():
        raise Reject("closed")
    account.balance += command.amount


bank.handler(entity=Account, key="owner")(deposit)
vault.handler(entity=Account, key="owner")(deposit)


@safe.handler(entity=Account, key="owner")
async def keep(command: Deposit, account: Account, context: Context) -> None:
    """Add it up, and print a receipt."""
    account.balance += command.amount
    await context.blobs.create("receipt.txt", str(account.balance).encode())
