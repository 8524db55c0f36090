"""Items of the application in DynamoDB: how other programs see them, what is refused, and what the service's answers mean."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as some

from onceonly.adapters.aws.address import read_dynamodb
from onceonly.adapters.aws.client import Client
from onceonly.adapters.aws.dynamodb.documents import DynamoDBDocuments, create, open_documents
from onceonly.adapters.aws.dynamodb.values import Refused, attributes_of, body_of
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, RetryableError, SetupError
from onceonly.ports.documents import Change, DocumentAddress, DocumentWrite
from tests.adapters.aws.scripted_service import Asked, Say, refuse, say_json, standing_in

OWN = Change(key="entity/Account/A", body=b"{}")
RECEIPT = DocumentAddress("", ("receipt-1",))
PUT = DocumentWrite(address=RECEIPT, body=b'{"total":5}')
ORDER = ("acme", 7)
ORDER_KEY = {"tenant": "acme", "number": 7}
"""What is in a document of the table of the application when it is read."""


class Shop(NamedTuple):
    """Documents of a store, and a table of the application: its primary key is a text and a number."""

    documents: DynamoDBDocuments
    client: Client
    table: str
    url: str

    async def item(self, **key: Any) -> dict[str, Any] | None:
        """Read an item as another program does."""
        found: dict[str, Any] = await self.client.get_item(
            TableName=self.table, Key=key or {"tenant": {"S": "acme"}, "number": {"N": "7"}}, ConsistentRead=True
        )
        return found.get("Item")

    async def write(self, **attributes: Any) -> None:
        """Write an item as another program does."""
        await self.client.put_item(TableName=self.table, Item={"tenant": {"S": "acme"}, "number": {"N": "7"}, **attributes})

    def order(self, body: bytes | None, expected: str | None = None, *, key: tuple[str | int, ...] = ORDER) -> DocumentWrite:
        """Return a write of the document of the item."""
        return DocumentWrite(address=DocumentAddress(self.table, key), body=body, expected=expected)

    async def save(self, *writes: DocumentWrite) -> str | None:
        """Save them next to a new document of the store."""
        return await self.documents.save_together(Change(key=f"entity/Account/{uuid4().hex}", body=b"{}"), writes)

    async def read(self, *, key: tuple[str | int, ...] = ORDER) -> tuple[Any, str]:
        """Read a document as a handler does."""
        address = DocumentAddress(self.table, key)
        found = (await self.documents.read("", [address]))[address]
        return json.loads(found.body), found.version


@asynccontextmanager
async def shop(endpoint: str, options: str = "", *, sort: bool = True) -> AsyncIterator[Shop]:
    """Make both tables."""
    name = f"t{uuid4().hex[:12]}"
    url = f"dynamodb://test:test@eu-central-1/{name}?endpoint={endpoint}{options}"
    await create(url)
    async with open_documents(url) as documents:
        client, keys = documents._client, [("tenant", "HASH", "S"), ("number", "RANGE", "N")][: 1 + sort]
        await client.create_table(
            TableName=f"{name}-orders",
            KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind, _ in reversed(keys)],
            AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, _, kind in keys],
            BillingMode="PAY_PER_REQUEST",
        )
        yield Shop(documents, client, f"{name}-orders", url)


async def test_another_program_sees_an_item_with_its_key_and_a_version(ministack_endpoint: str) -> None:
    """And nothing else of this library; numbers are numbers, and a field that is part of the key may be in the document."""
    async with shop(ministack_endpoint) as opened:
        body = b'{"tenant":"acme","total":12.50,"lines":[{"sku":"x","count":2}],"note":null,"paid":false}'
        assert await opened.save(opened.order(body))
        item = await opened.item()
        assert item is not None
        assert int(item.pop("_version")["N"]) < 2**52
        assert item == {
            "tenant": {"S": "acme"},
            "number": {"N": "7"},
            "total": {"N": "12.50"} if item["total"] == {"N": "12.50"} else {"N": "12.5"},
            "lines": {"L": [{"M": {"sku": {"S": "x"}, "count": {"N": "2"}}}]},
            "note": {"NULL": True},
            "paid": {"BOOL": False},
        }
        assert (await opened.read())[0] == ORDER_KEY | {
            "total": 12.5, "lines": [{"sku": "x", "count": 2}], "note": None, "paid": False,
        }  # fmt: skip


async def test_a_document_in_the_table_of_the_store_is_one_attribute(ministack_endpoint: str) -> None:
    """Below the prefix, in a partition that none of the store's documents has."""
    async with shop(ministack_endpoint, "&prefix=shop/") as opened:
        await opened.save(DocumentWrite(address=RECEIPT, body=PUT.body, expires=1_900_000_000_001))
        key = {"shard": {"S": "shop/document/receipt-1"}, "key": {"S": "receipt-1"}}
        own = read_dynamodb(opened.url).table
        item = (await opened.client.get_item(TableName=own, Key=key))["Item"]
        assert {**item, "version": {}} == {
            **key, "document": {"M": {"total": {"N": "5"}}}, "expires": {"N": "1900000001"}, "version": {},
        }  # fmt: skip
        assert [each.partition("/")[0] for each in await opened.documents.keys("")] == ["entity"]


ITEM = {"total": {"N": "5"}, "lines": {"L": [{"M": {"n": {"N": "1"}}}]}, "note": {"S": ""}, "none": {"NULL": True}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(ITEM, {**ITEM, "total": {"N": "6"}}, id="a number"),
        pytest.param(ITEM, {**ITEM, "lines": {"L": [{"M": {"n": {"N": "2"}}}]}}, id="inside of a list"),
        pytest.param(ITEM, {**ITEM, "none": {"BOOL": False}}, id="null"),
        pytest.param(ITEM, {name: ITEM[name] for name in ("total", "lines", "none")}, id="an attribute was removed"),
        pytest.param(ITEM, {**ITEM, "_version": {"N": "1"}}, id="it got a version"),
        pytest.param({**ITEM, "_version": {"N": "1"}}, {**ITEM, "_version": {"N": "2"}}, id="only its version"),
        pytest.param({**ITEM, "_version": {"N": "1"}}, {**ITEM, "_version": {"N": "2"}, "more": {"S": ""}}, id="more"),
        pytest.param(
            {**ITEM, "_version": {"N": "1"}}, {**ITEM, "_version": {"N": "1"}, "note": {"S": "x"}}, id="no new version"
        ),
        pytest.param({}, None, id="it was deleted"),
        pytest.param({}, {"_version": {"N": "1"}}, id="it was empty"),
    ],
)
async def test_an_item_that_another_program_changed_is_not_written(
    before: Mapping[str, Any], after: Mapping[str, Any] | None, ministack_endpoint: str
) -> None:
    """Not replaced and not deleted. As it was read it is."""
    async with shop(ministack_endpoint) as opened:
        await opened.write(**before)
        _, version = await opened.read()
        if after is None:
            await opened.client.delete_item(TableName=opened.table, Key={"tenant": {"S": "acme"}, "number": {"N": "7"}})
        else:
            await opened.write(**after)
        left = await opened.item()
        for body in (b"{}", None):
            assert await opened.save(opened.order(body, version)) is None
            assert await opened.item() == left
        await opened.write(**before)
        assert await opened.save(opened.order(None, version)) is not None
        assert await opened.item() is None


async def test_an_attribute_that_is_added_without_a_new_version_is_not_noticed(ministack_endpoint: str) -> None:
    """A limit of the service, which the documentation names: no condition means "no other attributes"."""
    async with shop(ministack_endpoint) as opened:
        await opened.write(total={"N": "5"})
        _, version = await opened.read()
        await opened.write(total={"N": "5"}, more={"S": ""})
        assert await opened.save(opened.order(b'{"total":6}', version)) is not None


async def test_the_version_can_be_an_attribute_that_other_programs_have(ministack_endpoint: str) -> None:
    async with shop(ministack_endpoint, "&version_attribute=rev") as opened:
        await opened.write(total={"N": "5"}, rev={"N": "3"})
        read, version = await opened.read()
        assert read == ORDER_KEY | {"total": 5}
        assert "'rev' is an attribute of every item" in opened.documents.problem_of("", opened.order(b'{"rev":1}'))
        assert await opened.save(opened.order(b'{"total":6}', version)) is not None
        item = await opened.item()
        assert item is not None
        assert item["rev"] != {"N": "3"}
        assert await opened.save(opened.order(b'{"total":7}', version)) is None


async def test_a_large_item_is_compared_by_its_version_alone(ministack_endpoint: str) -> None:
    """Where it has none it can be replaced, but not as it was read."""
    fields = {f"field{number}": {"N": str(number)} for number in range(150)}
    async with shop(ministack_endpoint) as opened:
        await opened.write(**fields)
        _, version = await opened.read()
        write = opened.order(b"{}", version)
        assert "at most 100 can be compared" in opened.documents.problem_of("", write)
        with pytest.raises(CommitRefused, match="at most 100 can be compared"):
            await opened.save(write)
        await opened.write(**fields, _version={"N": "1"})
        _, version = await opened.read()
        await opened.write(**fields, _version={"N": "2"})
        assert await opened.save(opened.order(b"{}", version)) is None
        await opened.write(**fields, _version={"N": "1"})
        assert await opened.save(opened.order(b"{}", version)) is not None


@pytest.mark.parametrize("value", [{"B": b"x"}, {"SS": ["x"]}, {"NS": ["1"]}, {"M": {"a": {"L": [{"BS": [b"x"]}]}}}])
async def test_an_item_that_is_not_json_cannot_be_read(value: dict[str, Any], ministack_endpoint: str) -> None:
    """It can be replaced."""
    async with shop(ministack_endpoint) as opened:
        await opened.write(odd=value)
        with pytest.raises(CommitRefused, match=r"attribute '(odd|a)' has the type"):
            await opened.read()
        assert await opened.save(opened.order(b'{"total":5}')) is not None
        assert (await opened.read())[0] == ORDER_KEY | {"total": 5}


async def test_what_does_not_fit_the_table_is_refused(ministack_endpoint: str) -> None:
    """At the commit the first time, and while the handler runs once the table is known."""
    async with shop(ministack_endpoint) as opened:
        ttl = {"Enabled": True, "AttributeName": "ends"}
        await opened.client.update_time_to_live(TableName=opened.table, TimeToLiveSpecification=ttl)
        wrong = [
            (opened.order(b"{}", key=("acme",)), "its key has 1 values, and the key of table"),
            (opened.order(b"{}", key=("acme", "7")), "number of table .* is a number"),
            (opened.order(b"{}", key=(7, 7)), "tenant of table .* is a text"),
            (opened.order(b"{}", key=("x" * 2049, 7)), "the limit of tenant of table .* is 2048"),
            (opened.order(b"{}", key=("acme", 10**38)), "more than 38 digits"),
            (opened.order(None, "{}", key=("acme",)), "its key has 1 values"),
            (opened.order(b'{"tenant":"other"}'), "its field 'tenant' is not the value of its key"),
            (opened.order(b'{"number":"7"}'), "its field 'number' is not the value of its key"),
            (opened.order(b'{"ends":1}'), "'ends' is an attribute of every item"),
        ]
        for write, reason in wrong:
            with pytest.raises(CommitRefused, match=reason):
                await opened.save(write)
        for write, reason in wrong:
            with pytest.raises(AssertionError, match=reason):
                assert not opened.documents.problem_of("", write), opened.documents.problem_of("", write)


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (DocumentWrite(address=DocumentAddress("", ("a", "b")), body=b"{}"), "has one text as its key"),
        (DocumentWrite(address=DocumentAddress("", (7,)), body=b"{}"), "has one text as its key"),
        (
            DocumentWrite(address=DocumentAddress("", ("x" * 1025,)), body=b"{}"),
            "the limit of key of the table of the store is 1024",
        ),
        (DocumentWrite(address=DocumentAddress("documents", ("a",)), body=b"{}"), "use collection='' for documents in it"),
        (DocumentWrite(address=DocumentAddress("no table", ("a",)), body=b"{}"), "cannot be a table of DynamoDB"),
        (DocumentWrite(address=DocumentAddress("orders", ("a", "b", "c")), body=b"{}"), "the key of a table has one or two"),
        (
            DocumentWrite(address=DocumentAddress("orders", ("a",)), body=b'{"_version":1}'),
            "'_version' is an attribute of every",
        ),
        (DocumentWrite(address=RECEIPT, body=b'{"a":"%s"}' % (b"x" * 400 * 1024)), "the limit of DynamoDB is 409,600"),
        (DocumentWrite(address=RECEIPT, body=b'{"a":{"":1}}'), "a field has an empty name"),
        (DocumentWrite(address=RECEIPT, body=b'{"a":1e126}'), "outside of what DynamoDB stores"),
        (DocumentWrite(address=RECEIPT, body=b'{"a":1%s}' % (b"0" * 38)), "more than 38 digits"),
        (DocumentWrite(address=RECEIPT, body=b'{"a":%s1%s}' % (b"[" * 31, b"]" * 31)), "nested too deeply"),
    ],
)
async def test_a_problem_is_found_without_a_request(write: DocumentWrite, reason: str) -> None:
    """And before anything is sent."""
    async with standing_in(lambda _: Say(0)) as (endpoint, asked), open_documents(place(endpoint)) as documents:
        assert reason in documents.problem_of(OWN.key, write)
        with pytest.raises(CommitRefused):
            await documents.save_together(OWN, [write])
        assert asked == []


async def test_the_deepest_document_and_the_longest_number_are_taken(ministack_endpoint: str) -> None:
    """What is just not refused."""
    body = b'{"a":%s1%s,"b":%s,"c":9.9e125,"d":1e-130}' % (b"[" * 30, b"]" * 30, b"9" * 38)
    async with shop(ministack_endpoint) as opened:
        assert await opened.save(DocumentWrite(address=RECEIPT, body=body), opened.order(body)) is not None
        assert (await opened.read())[0] == ORDER_KEY | json.loads(body)
        found = (await opened.documents.read("", [RECEIPT]))[RECEIPT]
        assert json.loads(found.body) == json.loads(body)


async def test_documents_that_are_too_large_together_are_refused(ministack_endpoint: str) -> None:
    """A transaction takes 4 MiB; nothing of them is written."""
    body = b'{"a":"%s"}' % (b"x" * 390 * 1024)
    async with shop(ministack_endpoint) as opened:
        writes = [opened.order(body, key=("acme", number)) for number in range(11)]
        with pytest.raises(CommitRefused, match="cannot be written at once; the limit of DynamoDB is 4,194,304"):
            await opened.save(*writes)
        assert await opened.save(*writes[:10]) is not None


async def test_a_table_is_described_once_and_a_missing_one_each_time(ministack_endpoint: str) -> None:
    """So that it can be made meanwhile."""
    async with shop(ministack_endpoint) as opened:
        described: list[str] = []
        opened.client.meta.events.register("before-call.dynamodb.DescribeTable", lambda **_: described.append("table"))
        for _ in range(2):
            await opened.save(opened.order(b"{}"))
        assert len(described) == 1
        missing = DocumentWrite(address=DocumentAddress(f"{opened.table}-no", ("a",)), body=b"{}")
        for _ in range(2):
            with pytest.raises(CommitRefused, match=r"table .*-no does not exist in eu-central-1: create it"):
                await opened.save(missing)
        assert len(described) == 3


async def test_a_table_is_described_again_after_a_refusal() -> None:
    """It may have been made again with another key."""
    name = "first"

    def answer(asked: Asked) -> Say:
        if asked.operation == "DescribeTable":
            keys = [{"AttributeName": name, "KeyType": "HASH"}]
            types = [{"AttributeName": name, "AttributeType": "S"}]
            return say_json(200, {"Table": {"KeySchema": keys, "AttributeDefinitions": types}})
        if asked.operation == "DescribeTimeToLive":
            return say_json(200, {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}})
        return refuse("ValidationException") if f'"{name}"' not in asked.body.decode() else say_json(200, {})

    write = DocumentWrite(address=DocumentAddress("orders", ("a",)), body=b"{}")
    async with standing_in(answer) as (endpoint, asked), open_documents(place(endpoint)) as documents:
        assert await documents.save_together(OWN, [write]) is not None
        name = "second"
        with pytest.raises(CommitRefused):
            await documents.save_together(OWN, [write])
        assert await documents.save_together(OWN, [write]) is not None
        described = [each.operation for each in asked].count("DescribeTable")
    assert described == 2


def place(endpoint: str) -> str:
    """Name the table of the store."""
    return f"dynamodb://test:test@eu-central-1/documents?endpoint={endpoint}&timeout=5"


def cancel(*codes: str, status: int = 400) -> Say:
    """Make DynamoDB's answer for a cancelled transaction."""
    return say_json(
        status,
        {
            "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
            "message": "Transaction cancelled",
            "CancellationReasons": [{"Code": code, "Message": "told so"} for code in codes],
        },
    )


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (cancel("ConditionalCheckFailed", "None"), None),
        (cancel("None", "ConditionalCheckFailed"), None),
        (cancel("ValidationError", "ConditionalCheckFailed"), None),
        (cancel("TransactionConflict", "None"), CommitFailed),
        (cancel("None", "ThrottlingError"), CommitFailed),
        (cancel("None", "ProvisionedThroughputExceeded"), CommitFailed),
        (cancel("AccessDenied", "None"), CommitFailed),
        (cancel("None", "ValidationError"), CommitRefused),
        (cancel("TransactionConflict", "ItemCollectionSizeLimitExceeded"), CommitRefused),
        (cancel("None", "SomethingNew"), OutcomeUnknown),
        (cancel("ConditionalCheckFailed", "SomethingNew"), OutcomeUnknown),
        (cancel("ConditionalCheckFailed"), OutcomeUnknown),
        (cancel("None", "None"), OutcomeUnknown),
        (cancel(), OutcomeUnknown),
        (cancel("ConditionalCheckFailed", "None", status=500), OutcomeUnknown),
        (refuse("ThrottlingException"), CommitFailed),
        (refuse("ProvisionedThroughputExceededException"), CommitFailed),
        (refuse("ResourceNotFoundException"), CommitFailed),
        (refuse("AccessDeniedException"), CommitFailed),
        (refuse("ValidationException"), CommitRefused),
        (refuse("TransactionInProgressException"), OutcomeUnknown),
        (refuse("IdempotentParameterMismatchException"), OutcomeUnknown),
        (refuse("InternalServerError", 500), OutcomeUnknown),
        (refuse("ThrottlingException", 503), OutcomeUnknown),
        (Say(502, b"<html>"), OutcomeUnknown),
        (Say(200, b"<html>", headers=""), OutcomeUnknown),
        (Say(0), OutcomeUnknown),
    ],
)
async def test_what_is_not_said_for_sure_is_unknown(said: Say, meaning: type[RetryableError] | None) -> None:
    """And whatever is said, the transaction was sent once."""
    async with standing_in(lambda _: said) as (endpoint, asked), open_documents(place(endpoint)) as documents:
        if meaning is None:
            assert await documents.save_together(OWN, [PUT]) is None
        else:
            with pytest.raises(RetryableError) as raised:
                await documents.save_together(OWN, [PUT])
            assert type(raised.value) is meaning
        assert [each.operation for each in asked] == ["TransactWriteItems"]


async def test_each_call_has_a_token_of_its_own() -> None:
    """So no transaction is ever taken for an earlier one."""
    async with standing_in(lambda _: say_json(200, {})) as (endpoint, asked), open_documents(place(endpoint)) as documents:
        for _ in range(2):
            await documents.save_together(OWN, [PUT])
        assert len({each.json["ClientRequestToken"] for each in asked}) == 2


async def test_a_version_of_another_service_is_not_the_expected_one() -> None:
    """Nothing is sent."""
    async with standing_in(lambda _: Say(0)) as (endpoint, asked), open_documents(place(endpoint)) as documents:
        for version in ('W/"17"', "17", "[]", '{"a":1}'):
            write = DocumentWrite(address=RECEIPT, body=b"{}", expected=version)
            assert await documents.save_together(OWN, [write]) is None
        assert asked == []


async def test_reads_of_many_documents_take_few_requests(ministack_endpoint: str) -> None:
    """A hundred in each, of one table."""
    async with shop(ministack_endpoint) as opened:
        for first in (0, 60):
            await opened.save(*(opened.order(b"{}", key=("acme", number)) for number in range(first, first + 60)))
        await opened.save(PUT)
        addresses = [DocumentAddress(opened.table, ("acme", number)) for number in range(121)]
        asked: list[str] = []
        opened.client.meta.events.register("before-call.dynamodb.BatchGetItem", lambda **_: asked.append("read"))
        found = await opened.documents.read("", [*addresses, RECEIPT, RECEIPT, DocumentAddress(opened.table, ("short",))])
        assert set(found) == {*addresses[:120], RECEIPT}
        assert len(asked) == 3


async def test_transactions_on_the_same_items_are_whole(ministack_endpoint: str) -> None:
    """Eight writers replace three items at once, many times: at the end all three are of one writer."""
    async with shop(ministack_endpoint) as opened:

        async def write(writer: int) -> None:
            for round_ in range(5):
                body = b'{"by":"%d-%d"}' % (writer, round_)
                await opened.save(*(opened.order(body, key=("acme", number)) for number in range(3)))

        await asyncio.gather(*map(write, range(8)))
        assert len({(await opened.read(key=("acme", number)))[0]["by"] for number in range(3)}) == 1


_numbers = some.integers(-(10**38) + 1, 10**38 - 1) | some.floats(allow_nan=False, allow_infinity=False, width=64).filter(
    lambda number: number == 0 or 1e-130 <= abs(number) <= 9.9e125
)
_values = some.recursive(
    some.none() | some.booleans() | some.text() | _numbers,
    lambda inner: some.lists(inner) | some.dictionaries(some.text(min_size=1), inner),
    max_leaves=20,
)


@given(some.dictionaries(some.text(min_size=1), _values))
def test_a_document_comes_back_equal(document: dict[str, Any]) -> None:
    """Whatever JSON has, with numbers by their decimal value."""
    body = json.dumps(document).encode()
    assert _exact(body_of(attributes_of(body))) == _exact(body)


def _exact(body: bytes) -> Any:
    return json.loads(body, parse_int=Decimal, parse_float=Decimal)


@pytest.mark.parametrize("text", ["1e400", "1" * 39, "0." + "1" * 39, "1e-131", "-1e126"])
def test_a_number_that_would_change_is_refused(text: str) -> None:
    with pytest.raises(Refused):
        attributes_of(b'{"a":%s}' % text.encode())


@pytest.mark.parametrize("option", ["version_attribute=", "version_attribute=a%20b"])
def test_a_wrong_version_attribute_is_a_setup_error(option: str) -> None:
    with pytest.raises(SetupError, match="option version_attribute"):
        read_dynamodb(f"dynamodb://eu-central-1/table?{option}")
