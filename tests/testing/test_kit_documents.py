"""The kit shows documents of the application, and entities in a partition."""

from dataclasses import dataclass

import pytest

from onceonly import Context, Endpoint, SetupError, testing
from onceonly.formats.bodies import BodyError
from onceonly.model.errors import InvalidEffect


@dataclass
class Deposit:
    """A message about one account."""

    bank: str
    account_id: str
    amount: int


@dataclass
class Account:
    """An entity."""

    account_id: str
    balance: int = 0


@dataclass
class Receipt:
    """A document of the application."""

    balance: int


def bank() -> Endpoint:
    """Make an endpoint that writes a receipt next to each account."""
    made = Endpoint("bank", store="memory://never-opened")

    @made.handler(entity=Account, key="account_id", partition_key=("bank", lambda _: 7))
    async def deposit(order: Deposit, account: Account, context: Context) -> None:
        account.balance += order.amount
        context.documents.put(("receipt", order.account_id), Receipt(account.balance), collection="receipts")

    return made


async def test_a_document_is_read_as_a_dict_or_as_its_class() -> None:
    """None before it was written, and at another key, or in another collection."""
    async with testing.run(bank()) as t:
        assert await t.document(("receipt", "a"), collection="receipts") is None
        await t.deliver(Deposit("acme", "a", 5), copies=2)
        assert await t.document(("receipt", "a"), collection="receipts") == {"balance": 5}
        assert await t.document(("receipt", "a"), Receipt, collection="receipts", partition=("acme", 7)) == Receipt(5)
        assert await t.document(("receipt", "b"), collection="receipts") is None
        assert await t.document(("receipt", "a")) is None


async def test_an_entity_is_read_in_its_partition() -> None:
    async with testing.run(bank()) as t:
        await t.deliver(Deposit("acme", "a", 5))
        assert await t.entity(Account, "a", partition=("acme", 7)) == Account("a", 5)
        assert await t.entity(Account, "a", partition=("acme", 8)) is None
        assert await t.entity(Account, "a") is None


async def test_what_cannot_be_read_is_an_error() -> None:
    """A document of another class, what is no key, and a store without documents."""
    async with testing.run(bank()) as t:
        await t.deliver(Deposit("acme", "a", 5))
        with pytest.raises(BodyError, match="account_id"):
            await t.document(("receipt", "a"), Account, collection="receipts")
        with pytest.raises(InvalidEffect, match="cannot be the key of a document"):
            await t.document("")
    shop = Endpoint("shop", store="sqlite:///never-opened.db")

    @shop.handler
    async def refund(order: Deposit) -> None:
        """Do nothing."""

    async with testing.run(shop) as t:
        with pytest.raises(SetupError, match="does not write documents of the application"):
            await t.document("a")
