"""What DynamoDB says under load and in trouble, and the emulator never does."""

import asyncio
from typing import Any

import pytest

from onceonly.adapters.aws.address import read_dynamodb
from onceonly.adapters.aws.dynamodb.documents import create, open_documents
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown, RetryableError, SetupError
from onceonly.ports.documents import Change
from tests.adapters.aws.scripted_service import Asked, Say, refuse, say_json, standing_in

TABLE = "documents"
KEYS = [f"order/{number}" for number in range(250)]
BODY = b'{"total":17}'


def url(endpoint: str) -> str:
    """Name the table."""
    return f"dynamodb://test:test@eu-central-1/{TABLE}?endpoint={endpoint}&timeout=5"


def item(key: dict[str, Any]) -> dict[str, Any]:
    """Make what is stored under a key."""
    return {**key, "body": {"S": BODY.decode()}, "version": {"S": "v1"}}


async def test_keys_that_were_held_back_are_asked_for_again() -> None:
    """Until all are there; nothing is asked for twice, and every read is a consistent one."""
    wanted: list[str] = []

    def some(asked: Asked) -> Say:
        request = asked.json["RequestItems"][TABLE]
        assert request["ConsistentRead"] is True
        given, held = request["Keys"][:40], request["Keys"][40:]
        wanted.extend(each["key"]["S"] for each in given)
        answer: dict[str, Any] = {"Responses": {TABLE: [item(key) for key in given]}}
        return say_json(200, {**answer, "UnprocessedKeys": {TABLE: {"Keys": held, "ConsistentRead": True}} if held else {}})

    async with standing_in(some) as (endpoint, _), open_documents(url(endpoint)) as documents:
        found = await documents.load(KEYS)
    assert set(found) == set(KEYS)
    assert sorted(wanted) == sorted(f"onceonly/{key}" for key in KEYS)


@pytest.mark.slow
async def test_a_read_that_is_held_back_for_ever_fails() -> None:
    """It is definite: a read changes nothing, and whoever waits may try again."""

    def none(asked: Asked) -> Say:
        return say_json(200, {"Responses": {}, "UnprocessedKeys": asked.json["RequestItems"]})

    async with standing_in(none) as (endpoint, asked), open_documents(url(endpoint)) as documents, asyncio.timeout(30):
        with pytest.raises(CommitFailed, match="throttled"):
            await documents.load(["a", "b"])
    assert len(asked) > 3


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (refuse("ThrottlingException"), CommitFailed),
        (refuse("ProvisionedThroughputExceededException"), CommitFailed),
        (refuse("RequestLimitExceeded"), CommitFailed),
        (refuse("ResourceNotFoundException"), CommitFailed),
        (refuse("AccessDeniedException"), CommitFailed),
        (refuse("ValidationException"), CommitRefused),
        (refuse("SomethingNewException"), OutcomeUnknown),
        (refuse("InternalServerError", 500), OutcomeUnknown),
        (refuse("ThrottlingException", 503), OutcomeUnknown),
        (Say(502, b"<html>"), OutcomeUnknown),
        (Say(200, b"<html>", headers=""), OutcomeUnknown),
        (Say(0), OutcomeUnknown),
    ],
)
async def test_what_is_not_said_for_sure_is_unknown(said: Say, meaning: type[RetryableError]) -> None:
    """And whatever is said, the write was sent once."""
    async with standing_in(lambda _: said) as (endpoint, asked), open_documents(url(endpoint)) as documents:
        for change in (
            Change(key="a", body=BODY),
            Change(key="a", body=BODY, expected="v"),
            Change(key="a", body=None, expected="v"),
        ):
            asked.clear()
            with pytest.raises(RetryableError) as raised:
                await documents.save([change])
            assert (type(raised.value), len(asked)) == (meaning, 1)


async def test_nobody_there_is_definite() -> None:
    """Nothing was sent, so nothing happened."""
    async with standing_in(lambda _: Say(0)) as (endpoint, _):
        pass
    async with open_documents(url(endpoint)) as documents:
        with pytest.raises(CommitFailed, match="nothing was sent"):
            await documents.save([Change(key="a", body=BODY)])


async def test_a_failure_after_a_success_is_unknown() -> None:
    """It would be wrong of several writes, of which one happened, to say that nothing did."""

    def one(asked: Asked) -> Say:
        throttled = {"Error": {"Code": "ThrottlingError", "Message": "told so"}}
        return say_json(
            200, {"Responses": [{} if "onceonly/good" in str(each) else throttled for each in asked.json["Statements"]]}
        )

    async with standing_in(one) as (endpoint, _), open_documents(url(endpoint)) as documents:
        with pytest.raises(RetryableError) as raised:
            await documents.save([Change(key="good", body=BODY), *(Change(key=f"k{n}", body=BODY) for n in range(3))])
    assert type(raised.value) is OutcomeUnknown


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("ThrottlingError", CommitFailed),
        ("ProvisionedThroughputExceeded", CommitFailed),
        ("ValidationError", CommitRefused),
        ("InternalServerError", OutcomeUnknown),
        ("SomethingNew", OutcomeUnknown),
    ],
)
async def test_what_is_said_of_one_statement_counts(code: str, meaning: type[RetryableError]) -> None:
    """The others were refused because of another version, so nothing was written; a number of answers that is wrong is none."""

    def refused(asked: Asked) -> Say:
        errors = [{"Error": {"Code": each, "Message": ""}} for each in ("DuplicateItem", code, "ConditionalCheckFailed")]
        return say_json(200, {"Responses": errors[: len(asked.json["Statements"])]})

    async with standing_in(refused) as (endpoint, asked), open_documents(url(endpoint)) as documents:
        for number, expected in ((3, meaning), (4, OutcomeUnknown)):
            with pytest.raises(RetryableError) as raised:
                await documents.save([Change(key=f"k{each}", body=BODY) for each in range(number)])
            assert type(raised.value) is expected
        assert [each.operation for each in asked] == ["BatchExecuteStatement"] * 2


async def test_a_request_has_so_many_statements_and_so_many_bytes() -> None:
    """And answers come in the order of the changes."""
    sizes: list[int] = []

    def taken(asked: Asked) -> Say:
        statements = asked.json.get("Statements", [])
        sizes.append(len(statements))
        return say_json(200, {"Responses": [{} for _ in statements]} if statements else {})

    body, count = b"x" * 300_000, 60
    changes = [Change(key=f"k{n}", body=body if n < 30 else b"{}") for n in range(count)]
    gone = Change(key="gone", body=None, expected="v")
    async with standing_in(taken) as (endpoint, _), open_documents(url(endpoint)) as documents:
        answers = await documents.save([changes[0], gone, *changes[1:]])
    assert (answers[1], "" in (answers[0], *answers[2:]), len(answers)) == ("", False, count + 1)
    assert sorted(sizes) == [0, *[3] * 9, 8, 25]


async def test_what_is_too_large_is_never_sent() -> None:
    """Not even the changes beside it; the limit leaves room for an item's other attributes."""
    async with standing_in(lambda _: say_json(200, {})) as (endpoint, asked), open_documents(url(endpoint)) as documents:
        assert documents.limits.body < 400 * 1024
        for bad in (
            Change(key="a", body=b"x" * (documents.limits.body + 1)),
            Change(key="x" * (documents.limits.key + 1), body=b""),
        ):
            with pytest.raises(CommitRefused):
                await documents.save([Change(key="b", body=b""), bad])
        assert asked == []


async def test_an_item_can_be_read_by_people(ministack_endpoint: str) -> None:
    """Text is text, other bytes are binary, and time to live is in whole seconds, never too early."""
    place = f"dynamodb://test:test@eu-central-1/people?endpoint={ministack_endpoint}&prefix=shop/"
    await create(place)
    await create(place)  # making it again is fine
    async with open_documents(place) as documents:
        await documents.save([Change(key="a", body=BODY, expires=1_900_000_000_001), Change(key="b", body=b"\xff")])
        read = read_dynamodb(place)
        answer = await documents._client.scan(TableName=read.table)
        items = {each["key"]["S"]: each for each in answer["Items"]}
        assert await documents.check() == ()
    assert items["shop/a"]["body"] == {"S": BODY.decode()}
    assert items["shop/a"]["expires"] == {"N": "1900000001"}
    assert items["shop/b"]["body"] == {"B": b"\xff"}
    assert "expires" not in items["shop/b"]


async def test_a_table_of_another_shape_is_a_setup_error(ministack_endpoint: str) -> None:
    """It is somebody else's."""
    place = f"dynamodb://test:test@eu-central-1/other?endpoint={ministack_endpoint}"
    async with open_documents(place) as documents:
        await documents._client.create_table(
            TableName="other",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(SetupError, match="primary key"):
            await documents.check()


@pytest.mark.parametrize(
    "wrong",
    ["dynamodb://eu-central-1", "dynamodb:///table", "dynamodb://r/a", "dynamodb://eu-central-1/table?lease=3"]
    + [f"dynamodb://eu-central-1/table?{option}" for option in ("prefix=", "prefix=%20", "timeout=0", "endpoint=here")],
)
def test_a_wrong_url_is_a_setup_error(wrong: str) -> None:
    """And its secret is not repeated."""
    with pytest.raises(SetupError) as raised:
        read_dynamodb(wrong.replace("//", "//me:hush@"))
    assert "hush" not in str(raised.value)


async def test_a_write_on_a_kept_connection_is_sent_once() -> None:
    """Also when the service closes it without an answer."""
    written = say_json(200, {})

    def silent(asked: Asked) -> Say:
        return Say(0) if asked.json.get("Item", {}).get("body") == {"S": "{}"} else written

    async with standing_in(silent) as (endpoint, asked), open_documents(url(endpoint)) as documents:
        await documents.save([Change(key="a", body=BODY)])
        asked.clear()
        with pytest.raises(OutcomeUnknown):
            await documents.save([Change(key="b", body=b"{}")])
    assert len(asked) == 1
