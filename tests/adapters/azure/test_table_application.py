"""Entities of the application in Azure Table: how other programs see them, what is refused, and how documents are listed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import pytest
from azure.data.tables.aio import TableClient

from onceonly.adapters.azure.table.documents import AzureTableDocuments, create, open_documents
from onceonly.formats.partitions import PartitionValues, PlacedKey, join_key
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite
from onceonly.runtime.environment import SystemClock
from tests.adapters.azure.test_documents import answering, at
from tests.servers.azurite import Azurite

RECEIPT_KEY = {"PartitionKey": "acme", "RowKey": "receipt-1"}
"""What is in the receipt when it is read."""


class Shop(NamedTuple):
    """Documents of a store, and the table that they share with the application."""

    documents: AzureTableDocuments
    table: TableClient

    async def save(self, *writes: DocumentWrite, key: str = "") -> str | None:
        """Save them next to a new document of the store."""
        return await self.documents.save_together(Change(key=key or placed(uuid4().hex), body=b"{}"), writes)

    async def read(self, key: str = "") -> Document:
        """Read the receipt as a handler does."""
        return (await self.documents.read(key or placed(), [receipt(b"{}").address]))[receipt(b"{}").address]


@asynccontextmanager
async def shop(emulator: Azurite) -> AsyncIterator[Shop]:
    """Make a table."""
    url = emulator.url("table", f"shop{uuid4().hex[:12]}")
    await create(url)
    async with open_documents(url, clock=SystemClock()) as documents:
        assert isinstance(documents, AzureTableDocuments)
        yield Shop(documents, documents._table._client)


def placed(name: str = "A", values: PartitionValues = ("acme",)) -> str:
    """Return the key of a document in a partition."""
    return join_key(PlacedKey(values, f"entity/Account/{name}"))


def receipt(body: bytes | None, expected: str | None = None, *, key: Any = "receipt-1", collection: str = "") -> DocumentWrite:
    """Return a write of an entity of the application."""
    return DocumentWrite(address=DocumentAddress(collection, (key,)), body=body, expected=expected)


async def test_another_program_sees_an_entity_in_the_partition_of_the_message(azurite_storage: Azurite) -> None:
    """With its own properties and no other."""
    async with shop(azurite_storage) as opened:
        body = b'{"text":"k\xc3\xb6ln","small":7,"large":9007199254740993,"price":12.5,"whole":2.0,"paid":true}'
        await opened.save(receipt(body), key=placed("A", ("acme", 7)))
        entity = await opened.table.get_entity("acme|7", "receipt-1")
        assert dict(entity) == {
            "PartitionKey": "acme|7",
            "RowKey": "receipt-1",
            "text": "köln",
            "small": 7,
            "large": (9007199254740993, "Edm.Int64"),
            "price": 12.5,
            "whole": 2.0,
            "paid": True,
        }
        rows = [each["RowKey"] async for each in opened.table.query_entities("PartitionKey eq 'acme|7'")]
        assert sorted(rows) == ["receipt-1", "~.entity..~5b~22acme~22~2c7~5d.Account.A"]


async def test_what_another_program_changed_is_not_written(azurite_storage: Azurite) -> None:
    """By its ETag, whatever was changed; not replaced and not deleted."""
    async with shop(azurite_storage) as opened:
        entity = {"PartitionKey": "acme", "RowKey": "receipt-1", "total": 5}
        await opened.table.create_entity(entity)
        found = await opened.read()
        assert json.loads(found.body) == RECEIPT_KEY | {"total": 5}
        await opened.table.upsert_entity({**entity, "more": "x"})
        for body in (b"{}", None):
            assert await opened.save(receipt(body, found.version)) is None
        found = await opened.read()
        assert json.loads(found.body) == RECEIPT_KEY | {"total": 5, "more": "x"}
        assert await opened.save(receipt(None, found.version)) is not None
        assert await opened.documents.read(placed(), [receipt(b"").address]) == {}


@pytest.mark.parametrize("value", [b"x", datetime(2026, 1, 1, tzinfo=UTC), UUID(int=1), float("nan"), float("inf")], ids=str)
async def test_a_property_that_is_not_json_cannot_be_read(value: Any, azurite_storage: Azurite) -> None:
    """The entity can be replaced."""
    async with shop(azurite_storage) as opened:
        await opened.table.create_entity({"PartitionKey": "acme", "RowKey": "receipt-1", "odd": value})
        with pytest.raises(CommitRefused, match=r"property 'odd' .* which JSON does not have"):
            await opened.read()
        assert await opened.save(receipt(b'{"total":5}')) is not None
        assert json.loads((await opened.read()).body) == RECEIPT_KEY | {"total": 5}


@pytest.mark.parametrize(
    ("write", "key", "reason"),
    [
        (receipt(b"{}"), "entity/Account/A", "use partition_key="),
        (receipt(b"{}"), placed("A", ("7",)), "the partition '7' is one of the store"),
        (receipt(b"{}"), placed("A", (7,)), "the partition '7' is one of the store"),
        (receipt(b"{}"), placed("A", ("a/b",)), "it contains '/'"),
        (receipt(b"{}"), placed("A", ("a|b", "c")), "which separates the values"),
        (receipt(b"{}"), placed("A", ("x" * 513,)), "it has 513 characters; the limit is 512"),
        (receipt(b"{}", collection="receipts"), placed(), "'receipts' is another"),
        (receipt(b"{}", key="a/b"), placed(), "it contains '/'"),
        (receipt(b"{}", key="a\x80b"), placed(), r"it contains '\x80'"),
        (receipt(b"{}", key="x" * 513), placed(), "it has 513 characters; the limit is 512"),
        (receipt(b"{}", key="~.entity"), placed(), "is one of the store"),
        (DocumentWrite(address=DocumentAddress("", ("a", "b")), body=b"{}"), placed(), "a RowKey is one"),
        (receipt(b'{"Timestamp":"a"}'), placed(), "a property that every entity of Azure Table has"),
        (receipt(b'{"RowKey":"a"}'), placed(), "its field 'RowKey' is 'a', and its key is 'receipt-1'"),
        (receipt(b'{"RowKey":7}', key=7), placed(), "its field 'RowKey' is 7, and its key is '7'"),
        (receipt(b'{"PartitionKey":null}'), placed(), "its field 'PartitionKey' is None, and its key is 'acme'"),
        (receipt(b'{"a-b":1}'), placed(), "cannot be a property of Azure Table"),
        (receipt(b'{"a":null}'), placed(), "is null"),
        (receipt(b'{"a":[]}'), placed(), "is a list"),
        (receipt(b'{"a":{}}'), placed(), "is an object"),
        (receipt(b'{"a":1e400}'), placed(), "a number too large"),
        (receipt(b'{"a":9223372036854775808}'), placed(), "integers of Azure Table have 64 bits"),
        (receipt(b'{"a":"%s"}' % (b"x" * 32769)), placed(), "65,538 bytes long in UTF-16"),
        (receipt(b"{%s}" % b",".join(b'"a%d":1' % n for n in range(253))), placed(), "it has 253 fields"),
        (receipt(b"{%s}" % b",".join(b'"a%d":"%s"' % (n, b"x" * 32768) for n in range(16))), placed(), "limit of Azure"),
    ],
)  # fmt: skip
async def test_a_problem_is_found_without_a_request(write: DocumentWrite, key: str, reason: str) -> None:
    """And before anything is sent."""
    async with answering("500", "InternalError") as (address, asked), at(address, "table") as documents:
        assert isinstance(documents, AzureTableDocuments)
        assert reason in documents.problem_of(key, write)
        with pytest.raises(CommitRefused):
            await documents.save_together(Change(key=key, body=b"{}"), [write])
        assert asked == []


async def test_what_is_just_not_too_large_is_taken(azurite_storage: Azurite) -> None:
    """252 properties, and a text of 64 KiB in UTF-16."""
    async with shop(azurite_storage) as opened:
        for body in ({f"a{number}": number for number in range(252)}, {"a": "x" * 32768}):
            assert await opened.save(receipt(json.dumps(body).encode())) is not None
            assert json.loads((await opened.read()).body) == RECEIPT_KEY | body


async def test_two_documents_with_one_row_key_are_refused(azurite_storage: Azurite) -> None:
    """The number 7 and the text are the same RowKey."""
    async with shop(azurite_storage) as opened:
        with pytest.raises(CommitRefused, match="have the same RowKey: '7'"):
            await opened.save(receipt(b"{}", key=7), receipt(b"{}", key="7"))


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        ("412", "UpdateConditionNotSatisfied", None),
        ("409", "EntityAlreadyExists", None),
        ("404", "ResourceNotFound", None),
        ("404", "TableNotFound", CommitFailed),
        ("400", "InvalidInput", CommitRefused),
        ("400", "PropertyNameInvalid", CommitRefused),
        ("400", "TooManyProperties", CommitRefused),
        ("400", "InvalidDuplicateRow", CommitRefused),
        ("413", "RequestBodyTooLarge", CommitRefused),
        ("403", "AuthenticationFailed", CommitFailed),
        ("400", "SomethingNew", OutcomeUnknown),
        ("429", "TooManyRequests", OutcomeUnknown),
        ("503", "ServerBusy", OutcomeUnknown),
        ("500", "InternalError", OutcomeUnknown),
    ],
)
async def test_what_is_not_said_for_sure_is_unknown(status: str, code: str, kind: type[Exception] | None) -> None:
    """And whatever is said, the transaction was sent once."""
    async with answering(status, code) as (address, asked), at(address, "table") as documents:
        assert isinstance(documents, AzureTableDocuments)
        if kind is None:
            assert await documents.save_together(Change(key=placed(), body=b"{}"), [receipt(b"{}")]) is None
        else:
            with pytest.raises(kind) as raised:
                await documents.save_together(Change(key=placed(), body=b"{}"), [receipt(b"{}")])
            assert type(raised.value) is kind
        assert len(asked) == 1


async def test_a_version_of_another_service_is_not_the_expected_one() -> None:
    """Nothing is sent."""
    async with answering("500", "InternalError") as (address, asked), at(address, "table") as documents:
        assert isinstance(documents, AzureTableDocuments)
        for version in ("17", "*", '"x"'):
            assert await documents.save_together(Change(key=placed(), body=b"{}"), [receipt(b"{}", version)]) is None
            change = Change(key=placed(), body=b"{}", expected=version)
            assert await documents.save_together(change, [receipt(b"{}")]) is None
        assert asked == []


async def test_documents_in_partitions_are_listed_after_the_others(azurite_storage: Azurite) -> None:
    """Page by page, by any beginning, without entities of the application. A partition of one digit may be one of sixteen."""
    async with shop(azurite_storage) as opened:
        plain = [f"entity/Account/{number}" for number in range(20)] + ["done/x", "a//[b", "~."]
        inside = [placed(str(n), values) for n in range(3) for values in (("acme",), (7,), ("7",), ("it's",), ("a", "b"))]
        await opened.documents.save([Change(key=key, body=b"{}") for key in [*plain, *inside]])
        await opened.table.create_entity({"PartitionKey": "acme", "RowKey": "entity.Account.A"})
        assert set(await opened.documents.load([*plain, *inside])) == {*plain, *inside}
        for prefix in ("", "entity/", "entity//[", 'entity//["ac', "done/", "entity/Account/1", "message/"):
            for limit in (1, 3, 100):
                listed: list[str] = []
                while page := await opened.documents.keys(prefix, after=listed[-1] if listed else "", limit=limit):
                    assert len(page) <= limit
                    listed += page
                assert sorted(listed) == sorted(key for key in [*plain, *inside] if key.startswith(prefix))
                numbers = [key in inside for key in listed]
                assert numbers == sorted(numbers)


async def test_transactions_on_the_same_entities_are_whole(azurite_storage: Azurite) -> None:
    """Eight writers replace three entities at once, many times: at the end all three are of one writer."""
    async with shop(azurite_storage) as opened:

        async def write(writer: int) -> None:
            for round_ in range(5):
                body = b'{"by":"%d-%d"}' % (writer, round_)
                await opened.save(*(receipt(body, key=f"receipt-{number}") for number in range(3)))

        await asyncio.gather(*map(write, range(8)))
        addresses = [receipt(b"", key=f"receipt-{number}").address for number in range(3)]
        found = await opened.documents.read(placed(), addresses)
        assert len({json.loads(each.body)["by"] for each in found.values()}) == 1
