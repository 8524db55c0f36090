"""Documents of the application in handlers: read, written with the commit all or none, and in the partition of the message."""

# ruff: noqa: ARG001 - handlers under test need not use what they are given

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from onceonly import Context, Retry
from onceonly.endpoint.host import host_of
from onceonly.formats.partitions import PlacedKey, join_key, split_key, split_unit
from onceonly.model.errors import InvalidHandler
from onceonly.model.message import Delivery, Unreadable
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite
from tests.endpoint.entity_harness import Counter, Deposit, bank
from tests.endpoint.harness import STILL, delivery, endpoint


@dataclass
class Account:
    """An entity with its balance; next to it are receipts, which are documents of the application."""

    account_id: str
    balance: int = 0


@dataclass
class Receipt:
    """A document of the application."""

    account: str
    balance: int


def _delivery(body: Deposit) -> Delivery:
    return delivery(msgspec.json.encode(body), ce_id="m1", ce_source="web", ce_type="Deposit")


async def document(counter: Counter, key: str, collection: str = "") -> Document | None:
    address = DocumentAddress(collection, (key,))
    return (await counter.documents.read("", [address])).get(address)


async def write(counter: Counter, key: str, body: bytes) -> None:
    """Write a document as another program does."""
    write = DocumentWrite(address=DocumentAddress("", (key,)), body=body)
    count = len(await counter.documents.keys("other/"))
    assert await counter.documents.save_together(Change(key=f"other/{count}", body=b"{}"), [write]) is not None


async def test_a_document_is_written_with_the_entity() -> None:
    """As a dict or an object, in any collection; a later message reads it as a class, and deletes one."""
    read: list[object] = []

    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        read.append(await context.documents.get("receipt", Receipt, collection="receipts"))
        context.documents.put("receipt", Receipt(account.account_id, account.balance), collection="receipts")
        context.documents.put(message.amount, {"amount": message.amount})
        await context.documents.delete(message.amount - 1)

    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a", 1))
    await counter.deliver(Deposit("a", 2))
    assert read == [None, Receipt("a", 1)]
    found = await document(counter, "receipt", "receipts")
    assert found is not None
    assert found.body == b'{"account":"a","balance":3}'
    addresses = [DocumentAddress("", (number,)) for number in (1, 2)]
    assert [each.key for each in await counter.documents.read("", addresses)] == [(2,)]
    assert await counter.state("Account/a") == {"account_id": "a", "balance": 3}


async def test_nothing_is_written_when_the_handler_fails() -> None:
    """Neither by a message alone, nor by one of several whose others succeed."""

    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        context.documents.put(f"receipt-{message.amount}", {"amount": message.amount})
        if message.amount == 2:
            raise ValueError("refused")

    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a", 1), Deposit("a", 2), Deposit("a", 4))
    assert await counter.state("Account/a") == {"account_id": "a", "balance": 5}
    found = [await document(counter, f"receipt-{number}") is not None for number in (1, 2, 4)]
    assert found == [True, False, True]
    assert "refused" in await counter.reason()


async def test_a_document_that_another_changed_after_it_was_read_makes_the_message_run_again() -> None:
    """A lost race, which does not count as a failure; the second run reads what the other has written."""
    read: list[Any] = []

    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        account.balance += message.amount
        found = await context.documents.get("total")
        read.append(found)
        context.documents.put("total", {"total": (found or {"total": 0})["total"] + message.amount})
        if len(read) == 1:
            await write(counter, "total", b'{"total":10}')

    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a", 1))
    assert read == [None]
    assert await counter.state("Account/a") is None  # none of it happened
    await counter.deliver()  # it comes again
    assert read == [None, {"total": 10}]
    total = await document(counter, "total")
    assert total is not None
    assert total.body == b'{"total":11}'
    assert await counter.state("Account/a") == {"account_id": "a", "balance": 1}
    assert await counter.letters() == ()


async def test_a_document_that_was_not_read_is_replaced() -> None:
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        context.documents.put("total", {"total": message.amount})
        await write(counter, "total", b'{"total":10}')

    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a", 1))
    total = await document(counter, "total")
    assert total is not None
    assert total.body == b'{"total":1}'


async def test_a_handler_without_an_entity_has_a_document_for_each_message_in_its_partition() -> None:
    """So messages of one partition do not wait for one another; copies are recognized."""

    async def deposit(message: Deposit, context: Context) -> None:
        context.documents.put(f"receipt-{message.amount}", {"amount": message.amount})

    made = bank()
    made.handler(partition_key=("account_id", lambda message: message.amount))(deposit)
    counter = Counter(made)
    first = counter.message(Deposit("a", 1))
    await counter.deliver(first)
    await counter.deliver(first, Deposit("a", 2))
    keys = await counter.documents.keys("message/")
    assert sorted({split_key(key).values for key in keys}) == [("a", 1), ("a", 2)]
    assert all(key.startswith('message//["a",') and split_key(key).key.startswith("message/bank/") for key in keys)
    found = await document(counter, "receipt-1")
    assert found is not None
    assert found.version == "1"  # written once


def test_the_entity_of_a_handler_is_in_the_partition() -> None:
    made = bank()

    @made.handler(entity=Account, key="account_id", partition_key=lambda message: message.amount)
    async def deposit(message: Deposit, account: Account) -> None: ...

    read = host_of(made).handlers(STILL).read(_delivery(Deposit("a", 7)))
    assert not isinstance(read, Unreadable)
    assert read.unit == "/[7]/Account/a"
    assert split_unit(read.unit) == ("/[7]/", "Account/a")


@pytest.mark.parametrize(
    ("key", "placed"),
    [
        ("entity/Account/a", PlacedKey((), "entity/Account/a")),
        ('entity//["a/]b",7]/Account/x/y', PlacedKey(("a/]b", 7), "entity/Account/x/y")),
        ('message//["a"]/shop/00', PlacedKey(("a",), "message/shop/00")),
        ("dead", PlacedKey((), "dead")),
    ],
)
def test_the_partition_is_read_from_the_key(key: str, placed: PlacedKey) -> None:
    assert split_key(key) == placed
    assert join_key(placed) == key


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "partition key is empty"),
        ("a\0", "NUL character"),
        (None, "its partition key is None"),
        (True, "its partition key is a bool"),
        (1.5, "its partition key is a float"),
        ("x" * 255, "too long"),
    ],
)
def test_a_message_whose_partition_cannot_be_one_is_unreadable(value: Any, reason: str) -> None:
    made = bank()

    @made.handler(partition_key=lambda _: value)
    async def deposit(message: Deposit) -> None: ...

    read = host_of(made).handlers(STILL).read(_delivery(Deposit("a")))
    assert isinstance(read, Unreadable)
    assert reason in read.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"partition_key": "tenant"}, "partition_key='tenant': Deposit has no such field; it has account_id, amount"),
        ({"partition_key": 3}, "partition_key= must be the name of a field of the message, or a function of it, not 3"),
        ({"partition_key": ["account_id"] * 4}, "partition_key= must have 1 to 3 values, not 4"),
        ({"partition_key": "account_id", "batch": True}, "batch=True and partition_key= exclude each other"),
    ],
)
def test_a_wrong_partition_key_is_found_at_start(options: dict[str, Any], reason: str) -> None:
    made = endpoint(name="bank", retry=Retry())
    made.handler(**options)(_deposit)
    with pytest.raises(InvalidHandler) as raised:
        host_of(made).handlers(STILL)
    assert reason in str(raised.value)


async def _deposit(message: Deposit) -> None: ...


def test_a_store_without_such_documents_refuses_a_partition_key() -> None:
    made = endpoint(name="bank", store="sqlite:///never-opened.db")
    made.handler(partition_key="account_id")(_deposit)
    with pytest.raises(InvalidHandler, match="needs a document store that writes several documents at once"):
        host_of(made).handlers(STILL)


@pytest.mark.parametrize(
    ("use", "reason"),
    [
        (lambda documents: documents.put("", {}), "'' cannot be the key of a document"),
        (lambda documents: documents.put(1.5, {}), "the key of a document must be a str, an int, a UUID or an enum of these"),
        (lambda documents: documents.put((), {}), "the key of a document has no parts"),
        (lambda documents: documents.put("a", [1]), "a list cannot be a document"),
        (lambda documents: documents.put("a", {"a": object()}), "cannot write document 'a'"),
        (lambda documents: documents.put("a", {"a": "x" * 2**20}), "the limit of memory is 1,048,576"),
        (lambda documents: documents.put("a", {}, ttl=timedelta(0)), "ttl must be a timedelta longer than 0"),
        (lambda documents: documents.put("a", {}, collection=3), "collection must be the name of a table"),
        (lambda documents: [documents.put(number, {}) for number in range(101)], "100 documents at most"),
    ],
)
async def test_what_cannot_be_a_document_is_refused_while_the_handler_runs(use: Any, reason: str) -> None:
    """So its message is a dead letter at once, with the reason."""

    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        use(context.documents)

    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a"))
    assert reason in await counter.reason()


async def test_a_document_of_another_class_is_a_failure_that_names_it() -> None:
    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        await context.documents.get("total", Receipt)

    counter = Counter(bank(deposit, entity=Account))
    await write(counter, "total", b'{"total":10}')
    await counter.deliver(Deposit("a"))
    assert "document 'total' cannot be read as Receipt" in await counter.reason()


async def test_documents_are_refused_after_the_end_of_the_handler() -> None:
    kept: list[Context] = []

    async def deposit(message: Deposit, account: Account, context: Context) -> None:
        context.documents.put("a", {})
        kept.append(context)

    counter = Counter(bank(deposit, entity=Account))
    await counter.deliver(Deposit("a"))
    with pytest.raises(Exception, match="used after the handler ended"):
        kept[0].documents.put("b", {})
    await asyncio.sleep(0)
    assert await document(counter, "b") is None
