"""DynamoDB: where a table is, how it is made and checked, statements for conditional writes, and what errors mean.

One request takes many statements. Single operations would need a request for each item: signing and sending it costs ten times
what its statement does.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from onceonly.adapters.aws.address import DynamoDBAddress
from onceonly.adapters.aws.client import Answer, Client, DefiniteError, ServiceError, code_of, connected, setup_errors
from onceonly.documents.bulk import Outcome
from onceonly.model.errors import CommitFailed, CommitRefused, OnceOnlyError, OutcomeUnknown, RetryableError, SetupError

SHARD, KEY, BODY, VERSION, EXPIRES = "shard", "key", "body", "version", "expires"
"""The attributes of an item. The first two are its primary key."""
PENDING_IN, PENDING_SINCE, PENDING_FOR = "pending_in", "pending_since", "pending_for"
"""Attributes of items with unsent messages only. The first two are the key of the index."""
PENDING_INDEX = "onceonly_pending"
"""An index of the items that have the attributes of its key: so it holds what is pending, and every write keeps it."""
DEFINITE = DefiniteError(
    refused=frozenset({"ValidationException", "ItemCollectionSizeLimitExceededException"}),
    failed=frozenset(
        {
            "ProvisionedThroughputExceededException",
            "ReplicatedWriteConflictException",
            "RequestLimitExceeded",
            "ResourceNotFoundException",
            "ThrottlingException",
            "TransactionConflictException",
        }
    ),
)
IN_ONE_REQUEST = 25
BYTES_IN_ONE_REQUEST = 1024 * 1024
OTHER_VERSION = frozenset({"ConditionalCheckFailed", "DuplicateItem"})
_REFUSED_STATEMENTS = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError"})
_FAILED_STATEMENTS = frozenset(
    {
        "AccessDenied",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ResourceNotFound",
        "ThrottlingError",
        "TransactionConflict",
    }
)
_POLL_SECONDS = 0.25  # while a table is being created
_CREATE_SECONDS = 120.0
_SCHEMA = [{"AttributeName": SHARD, "KeyType": "HASH"}, {"AttributeName": KEY, "KeyType": "RANGE"}]
_ATTRIBUTES = [{"AttributeName": name, "AttributeType": "S"} for name in (SHARD, KEY)]
_INDEX_ATTRIBUTES = [
    {"AttributeName": PENDING_IN, "AttributeType": "S"},
    {"AttributeName": PENDING_SINCE, "AttributeType": "N"},
]
_INDEX = {
    "IndexName": PENDING_INDEX,
    "KeySchema": [{"AttributeName": PENDING_IN, "KeyType": "HASH"}, {"AttributeName": PENDING_SINCE, "KeyType": "RANGE"}],
    "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": [PENDING_FOR]},
}


@asynccontextmanager
async def opened(place: DynamoDBAddress) -> AsyncIterator[Client]:
    async with connected("dynamodb", place.access) as client:
        yield client


async def create_table(client: Client, place: DynamoDBAddress) -> None:
    """Make the table, billed by request, with its time to live, where it is missing; wait until it is ready.

    Raises SetupError, RetryableError.
    """
    with setup_errors(f"creating the table {place.table}", {}, DEFINITE):
        try:
            await client.create_table(
                TableName=place.table,
                KeySchema=_SCHEMA,
                AttributeDefinitions=[*_ATTRIBUTES, *_INDEX_ATTRIBUTES],
                GlobalSecondaryIndexes=[_INDEX],
                BillingMode="PAY_PER_REQUEST",
            )
        except ServiceError as error:
            if code_of(error) != "ResourceInUseException":  # it is there already
                raise
        await _ready(client, place)
        if await index_status(client, place) is None:  # an earlier version made the table
            attributes = [*_ATTRIBUTES, *_INDEX_ATTRIBUTES]
            updates = [{"Create": _INDEX}]
            await client.update_table(
                TableName=place.table, AttributeDefinitions=attributes, GlobalSecondaryIndexUpdates=updates
            )
            await _ready(client, place)
        if await time_to_live(client, place.table) is None:
            await client.update_time_to_live(
                TableName=place.table, TimeToLiveSpecification={"Enabled": True, "AttributeName": EXPIRES}
            )


async def check_table(client: Client, place: DynamoDBAddress) -> tuple[str, ...]:
    """Return what people should know about the table.

    Raises SetupError when it is missing or of another shape, RetryableError.
    """
    missing = {"ResourceNotFoundException": "the table does not exist: run `onceonly schema create module:endpoint`"}
    with setup_errors(f"the table {place.table} in {place.access.region}", missing, DEFINITE):
        table = (await client.describe_table(TableName=place.table))["Table"]
        expiry = await time_to_live(client, place.table)
    if _shape(table) != (_SCHEMA, _ATTRIBUTES):
        raise SetupError(
            f"the primary key of table {place.table} is not {SHARD} and {KEY}, both strings: use a separate table for onceonly"
        )
    if any(replica.get("RegionName") != place.access.region for replica in table.get("Replicas", ())) and (
        table.get("MultiRegionConsistency") != "STRONG"
    ):
        return (
            *_about(expiry, place),
            (f"the table {place.table} is replicated to other regions with a delay: write in one region only"),
        )
    return _about(expiry, place)


def _about(expiry: str | None, place: DynamoDBAddress) -> tuple[str, ...]:
    if expiry == EXPIRES:
        return ()
    return (f"expired documents are not deleted: enable the time to live of table {place.table} on {EXPIRES}",)


def _shape(table: Answer) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    keys = {each["AttributeName"] for each in table["KeySchema"]}
    types = {each["AttributeName"]: each for each in table["AttributeDefinitions"] if each["AttributeName"] in keys}
    return list(table["KeySchema"]), [types[name] for name in (SHARD, KEY) if name in types]


async def _ready(client: Client, place: DynamoDBAddress) -> None:
    try:
        async with asyncio.timeout(_CREATE_SECONDS):
            while not await _is_ready(client, place):  # noqa: ASYNC110 - it is another process that makes the table
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError as error:
        raise RetryableError(
            f"the table {place.table} is not ready after {_CREATE_SECONDS:g} s: check it in AWS, then retry"
        ) from error


async def _is_ready(client: Client, place: DynamoDBAddress) -> bool:
    return (await client.describe_table(TableName=place.table))["Table"]["TableStatus"] in {"ACTIVE", "UPDATING"}


async def index_status(client: Client, place: DynamoDBAddress) -> str | None:
    """Return the status of the index of what is pending, None if there is none."""
    table = (await client.describe_table(TableName=place.table))["Table"]
    indexes = {each["IndexName"]: each for each in table.get("GlobalSecondaryIndexes", ())}
    found = indexes.get(PENDING_INDEX)
    return None if found is None else str(found.get("IndexStatus", "ACTIVE"))


async def time_to_live(client: Client, table: str) -> str | None:
    """Return the attribute by which items expire, None where none do."""
    answer: dict[str, Any] = (await client.describe_time_to_live(TableName=table))["TimeToLiveDescription"]
    return answer.get("AttributeName") if answer.get("TimeToLiveStatus") in {"ENABLED", "ENABLING"} else None


def insert(table: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Make the statement that inserts an item where there is none of its key."""
    fields = ",".join(f"'{name}':?" for name in item)
    return {"Statement": f'INSERT INTO "{table}" VALUE {{{fields}}}', "Parameters": list(item.values())}


def replace(table: str, item: Mapping[str, Any], expected: str) -> dict[str, Any]:
    """Make the statement that replaces an item which has this version."""
    optional = (EXPIRES, PENDING_IN, PENDING_SINCE, PENDING_FOR)
    names = [name for name in (BODY, VERSION, *optional) if name in item]
    change = " ".join(f'SET "{name}"=?' for name in names)
    change += "".join(f' REMOVE "{name}"' for name in optional if name not in item)
    where = " AND ".join(f'"{name}"=?' for name in (SHARD, KEY, VERSION))
    values = [*(item[name] for name in names), item[SHARD], item[KEY], {"S": expected}]
    return {"Statement": f'UPDATE "{table}" {change} WHERE {where}', "Parameters": values}


def outcome(answer: Answer, version: str, what: str) -> Outcome:
    """Read one statement's answer: the new version, None for another version, or what went wrong."""
    if "Error" not in answer:
        return version
    code, message = str(answer["Error"].get("Code", "")), answer["Error"].get("Message", "no reason given")
    if code in OTHER_VERSION:
        return None
    return _meaning(code)(f"{what}: {message} ({code})")


def cancelled(answer: Answer, count: int, what: str) -> OnceOnlyError | None:
    """Read why a transaction of `count` items was cancelled: None for another version of one, or what went wrong.

    The service names a reason for each item. If one of them is another version, that counts first, because the next attempt
    writes other items. A reason that is not on the lists is OutcomeUnknown.
    """
    reasons = [
        (str(each.get("Code", "")), each.get("Message", "no reason given")) for each in answer.get("CancellationReasons", ())
    ]
    given = [(code, f"{what}: {message} ({code})") for code, message in reasons if code != "None"]
    unknown = [text for code, text in given if code not in OTHER_VERSION | _REFUSED_STATEMENTS | _FAILED_STATEMENTS]
    if len(reasons) != count or not given or unknown:
        return OutcomeUnknown(unknown[0] if unknown else f"{what}: the transaction was cancelled without a reason")
    if any(code in OTHER_VERSION for code, _ in given):
        return None
    code, text = next((each for each in given if each[0] in _REFUSED_STATEMENTS), given[0])
    return _meaning(code)(text)


def _meaning(code: str) -> type[OnceOnlyError]:
    return CommitRefused if code in _REFUSED_STATEMENTS else CommitFailed if code in _FAILED_STATEMENTS else OutcomeUnknown
