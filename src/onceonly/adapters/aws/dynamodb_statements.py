"""Conditional writes of DynamoDB as statements, of which one request takes many: how they are written, and what is answered.

Single operations would need a request for each item: signing and sending it costs ten times what its statement does.
"""

from collections.abc import Mapping
from typing import Any

from onceonly.adapters.aws.client import Answer
from onceonly.adapters.aws.dynamodb_client import BODY, EXPIRES, KEY, SHARD, VERSION
from onceonly.documents.bulk import Outcome
from onceonly.model.errors import CommitFailed, CommitRefused, OutcomeUnknown

IN_ONE_REQUEST = 25
BYTES_IN_ONE_REQUEST = 1024 * 1024
OTHER_VERSION = frozenset({"ConditionalCheckFailed", "DuplicateItem"})
_REFUSED = frozenset({"ItemCollectionSizeLimitExceeded", "ValidationError"})
_FAILED = frozenset(
    {
        "AccessDenied",
        "ProvisionedThroughputExceeded",
        "RequestLimitExceeded",
        "ResourceNotFound",
        "ThrottlingError",
        "TransactionConflict",
    }
)


def insert(table: str, item: Mapping[str, Any]) -> dict[str, Any]:
    """Make the statement that inserts an item where there is none of its key."""
    fields = ",".join(f"'{name}':?" for name in item)
    return {"Statement": f'INSERT INTO "{table}" VALUE {{{fields}}}', "Parameters": list(item.values())}


def replace(table: str, item: Mapping[str, Any], expected: str) -> dict[str, Any]:
    """Make the statement that replaces an item which has this version."""
    names = [name for name in (BODY, VERSION, EXPIRES) if name in item]
    change = " ".join(f'SET "{name}"=?' for name in names) + ("" if EXPIRES in item else f' REMOVE "{EXPIRES}"')
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
    meaning = CommitRefused if code in _REFUSED else CommitFailed if code in _FAILED else OutcomeUnknown
    return meaning(f"{what}: {message} ({code})")
