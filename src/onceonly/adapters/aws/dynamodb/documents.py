"""Documents in a DynamoDB table: one item each, read consistently, written on the condition that its version is still there."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any, TypeAlias
from uuid import uuid4

from onceonly.adapters.aws.address import DynamoDBAddress, read_dynamodb
from onceonly.adapters.aws.client import (
    AT_ONCE,
    CLIENT_ERRORS,
    Answer,
    Client,
    ServiceError,
    code_of,
    request_id,
    status_of,
    translated,
)
from onceonly.adapters.aws.dynamodb.application import ApplicationItems, ItemTable, Operation
from onceonly.adapters.aws.dynamodb.client import (
    BODY,
    BYTES_IN_ONE_REQUEST,
    DEFINITE,
    EXPIRES,
    IN_ONE_REQUEST,
    KEY,
    PENDING_FOR,
    PENDING_IN,
    PENDING_INDEX,
    PENDING_SINCE,
    SHARD,
    VERSION,
    cancelled,
    check_table,
    create_table,
    index_status,
    insert,
    opened,
    outcome,
    replace,
)
from onceonly.adapters.aws.dynamodb.values import Refused, item_size
from onceonly.documents.bulk import Outcome, read_all, split, write_requests
from onceonly.documents.limits import DOCUMENT_LIMITS, can_be_held, check_limits, check_writes, shorter
from onceonly.model.errors import CommitFailed, CommitRefused
from onceonly.model.wording import counted
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite, PendingDocument, Version
from onceonly.ports.environment import Clock

SHARDS = 32
"""Partition keys over which items are spread. It is part of how they are stored: never change it."""
PENDING_PARTITIONS = 8
"""Partition keys over which the index of pending items is spread: a look is so many queries. Never change it."""
IN_ONE_READ = 100
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, PAUSES = 0.05, 1.0, 8
"""Before keys that were held back are requested again, and how often."""
IN_ONE_TRANSACTION = 100
BYTES_IN_ONE_TRANSACTION = 4 * 1024 * 1024
Item: TypeAlias = Mapping[str, Mapping[str, Any]]


class DynamoDBDocuments:
    """Documents in one table, below a prefix. Many are read by BatchGetItem, and written by BatchExecuteStatement.

    It needs the rights BatchGetItem, Query (a relay also on the index), PutItem, DeleteItem, PartiQLInsert and PartiQLUpdate;
    `check` DescribeTable and DescribeTimeToLive. Tables of the application need all of these but Query and those of PartiQL.
    Documents are deleted by DeleteItem: a DELETE statement calls it a success when there was none.

    An item's partition key is one of 32 by the hash of its whole key, and the key itself sorts: writes spread, and a list is a
    query of what it lists instead of a scan of the table; its order is by partition first. A partition takes about 1,000 writes
    a second before DynamoDB splits it. The body is text where it is UTF-8, so that people can read it, else binary.

    What only AWS shows, and the emulator of the tests does not: an item whose `expires` is past is removed by DynamoDB within
    some days, and can be read until then; throttling and unprocessed keys; the delay of a list's answers. Tables that are
    replicated to other regions without strong consistency keep their promises in one region only; `check` warns.
    """

    max_together = IN_ONE_TRANSACTION - 1

    def __init__(self, client: Client, place: DynamoDBAddress) -> None:
        self._client, self._place = client, place
        self._application = ApplicationItems(client, place)
        self.limits = shorter(DOCUMENT_LIMITS["DynamoDB"], taken=len(place.prefix.encode()))

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read these documents, a hundred in a request. Raises CommitFailed, OutcomeUnknown."""
        wanted = [self._key(key) for key in dict.fromkeys(keys) if can_be_held(key, self.limits)]
        found = await read_all(_batches(self._place.table, wanted), self._read, at_once=AT_ONCE)
        return {self._name(item): _document(item) for items in found for item in items}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write these documents, up to 25 in a request; a delete is one of its own.

        Raises CommitRefused, CommitFailed, OutcomeUnknown.
        """
        check_limits(changes, self.limits)
        return await write_requests(changes, _requests(changes), self._write, at_once=AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys, one partition after the other, each in the order of its keys. Raises CommitFailed, OutcomeUnknown."""
        found: list[str] = []
        begins, last = self._place.prefix + prefix, self._place.prefix + after
        first = _shard(last) if after else 0
        for number in range(first, SHARDS):
            if len(found) < limit:
                start = last if after and number == first else ""
                found += await self._list(number, begins, start, limit - len(found))
        return tuple(key.removeprefix(self._place.prefix) for key in found)

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """Query each partition of the index, and merge what they have by its time; see the port."""
        name = f"{self._place.prefix}\n{endpoint}"
        parts = await asyncio.gather(
            *(self._pending_in(str(number), name, before, after=after, limit=limit) for number in range(PENDING_PARTITIONS))
        )
        found = sorted(each for part in parts for each in part)
        return tuple(PendingDocument(key, since) for since, key in found[:limit])

    async def why_unlisted(self) -> str:
        """Return why not: the table has no index, as one that an earlier version made, or it is being made."""
        with translated(f"reading the settings of {self._place.table}", DEFINITE):
            status = await index_status(self._client, self._place)
        if status is None:
            return f"table {self._place.table} has no index {PENDING_INDEX}: run `onceonly schema create module:endpoint`"
        return "" if status in {"ACTIVE", "UPDATING"} else f"index {PENDING_INDEX} of table {self._place.table} is {status}"

    async def _pending_in(
        self, number: str, name: str, before: int, *, after: PendingDocument | None, limit: int
    ) -> list[tuple[int, str]]:
        """Return the earliest entries of one partition, all of the last instant included, so that equal times have an order."""
        found: list[tuple[int, str]] = []
        behind = (after.since, after.key) if after is not None else (0, "")
        start: dict[str, Any] = {}
        while True:
            with translated(f"listing {self._place.table}", DEFINITE):
                answer = await self._client.query(
                    TableName=self._place.table,
                    IndexName=PENDING_INDEX,
                    KeyConditionExpression="#in = :in AND #since BETWEEN :first AND :last",
                    FilterExpression="contains(#for, :for)",
                    ExpressionAttributeNames={"#in": PENDING_IN, "#since": PENDING_SINCE, "#for": PENDING_FOR},
                    ExpressionAttributeValues={
                        ":in": {"S": number},
                        ":first": {"N": str(behind[0])},
                        ":last": {"N": str(max(behind[0], before - 1))},
                        ":for": {"S": name},
                    },
                    **start,
                )
            rows = [(int(item[PENDING_SINCE]["N"]), self._name(item)) for item in answer["Items"]]
            found += [row for row in rows if row > behind and row[0] < before]
            is_enough = len(found) > limit and found[-1][0] > found[limit - 1][0]
            if "LastEvaluatedKey" not in answer or is_enough:
                return sorted(found)[:limit]
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        """Read items of the application, a hundred in a request; see the port. `key` has no meaning here."""
        wanted: dict[str, dict[str, DocumentAddress]] = {}
        tables: dict[str, ItemTable] = {}
        for address in dict.fromkeys(addresses):
            table = await self._application.table(address.collection)
            try:
                tables[table.name] = table
                wanted.setdefault(table.name, {})[_text(table, table.key(address))] = address
            except Refused:
                continue  # no item can have this key
        batches = [
            batch
            for name, table in tables.items()
            for batch in _batches(name, [table.key(address) for address in wanted.get(name, {}).values()])
        ]
        found = await read_all(batches, self._read, at_once=AT_ONCE)
        answer: dict[DocumentAddress, Document] = {}
        for (name, _), items in zip(batches, found, strict=True):
            for item in items:
                address = wanted[name][_text(tables[name], item)]
                try:
                    answer[address] = tables[name].document(item)
                except Refused as error:
                    raise CommitRefused(f"item {address.key!r:.80} of table {name} cannot be a document: {error}") from error
        return answer

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write an item of the store and items of the application by one TransactWriteItems; see the port.

        The SDK adds a ClientRequestToken, a new one for each call. It would make a repeated request safe for ten minutes. Here
        it decides nothing: the request is sent once, and an answer that is lost is OutcomeUnknown, as everywhere.
        """
        check_limits([change], self.limits)
        check_writes(self, change.key, writes)
        if not writes:
            return (await self.save([change]))[0]
        operation, version = self._own(change)
        operations = [operation]
        for write in writes:
            written = await self._application.operation(write)
            if written is None:
                return None
            operations.append(written)
        _check_size(operations)
        try:
            is_written = await self._transact(operations)
        except CommitRefused:
            self._application.forget([write.address.collection for write in writes])
            raise
        return version if is_written else None

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Return why not; see the port. The key of a table is known after its first use."""
        return self._application.problem_of(write)

    async def why_not_together(self) -> str:
        return ""

    async def check(self) -> tuple[str, ...]:
        """Make sure that the table is there, and has the right keys. Raises SetupError, RetryableError."""
        return await check_table(self._client, self._place)

    def _key(self, key: str) -> Item:
        stored = self._place.prefix + key
        return {SHARD: {"S": _partition(_shard(stored))}, KEY: {"S": stored}}

    def _name(self, item: Item) -> str:
        name: str = item[KEY]["S"]
        return name.removeprefix(self._place.prefix)

    async def _read(self, batch: tuple[str, Sequence[Item]]) -> list[Item]:
        table, wanted, pauses = batch[0], list(batch[1]), 0
        found: list[Item] = []
        while wanted:
            with translated(f"reading from {table}", DEFINITE):
                request = {table: {"Keys": wanted, "ConsistentRead": True}}
                answer: Answer = await self._client.batch_get_item(RequestItems=request)
                some = answer["Responses"].get(table, [])
                wanted = answer["UnprocessedKeys"].get(table, {}).get("Keys", [])
            found += some
            if wanted and not some:
                if pauses == PAUSES:
                    raise CommitFailed(
                        f"reading from {table} throttled: no data for {counted(len(wanted), 'key')} in {PAUSES + 1} attempts"
                    )
                await asyncio.sleep(min(FIRST_PAUSE_SECONDS * 2**pauses, LONGEST_PAUSE_SECONDS))
                pauses += 1
        return found

    async def _write(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        if len(changes) == 1:
            return [await self._write_one(changes[0])]
        table, what = self._place.table, f"writing to {self._place.table}"
        items = [self._item(change) for change in changes]
        statements = [
            replace(table, item, change.expected) if change.expected else insert(table, item)
            for item, change in zip(items, changes, strict=True)
        ]
        with translated(what, DEFINITE):
            answer = await self._client.batch_execute_statement(Statements=statements)
            answers = answer["Responses"]
            return [outcome(each, item[VERSION]["S"], what) for each, item in zip(answers, items, strict=True)]

    async def _write_one(self, change: Change) -> Version | None:
        with translated(f"writing to {self._place.table}", DEFINITE):
            try:
                return await self._send(change)
            except ServiceError as error:
                if code_of(error) == "ConditionalCheckFailedException":
                    return None
                raise

    def _own(self, change: Change) -> tuple[Operation, Version]:
        """Return a write of an item of the store as part of a transaction, and the version that it gives."""
        condition = _condition(change.expected)
        if change.body is None:
            return {"Delete": {"TableName": self._place.table, "Key": self._key(change.key), **condition}}, ""
        item = self._item(change)
        return {"Put": {"TableName": self._place.table, "Item": item, **condition}}, item[VERSION]["S"]

    async def _transact(self, operations: Sequence[Operation]) -> bool:
        """Write all of these. Returns whether they had the expected versions; if not, nothing was written."""
        what = f"writing {counted(len(operations), 'item')} together"
        with translated(what, DEFINITE):
            try:
                request_id(await self._client.transact_write_items(TransactItems=operations))
            except ServiceError as error:
                if code_of(error) != "TransactionCanceledException" or status_of(error) not in CLIENT_ERRORS:
                    raise
                refused = cancelled(error.response, len(operations), what)
                if refused is not None:
                    raise refused from error
                return False
        return True

    def _item(self, change: Change) -> Item:
        item = {**self._key(change.key), VERSION: {"S": uuid4().hex}, BODY: _value(change.body or b"")}
        return {**item, **_expiry(change.expires), **_pending(change, self._place.prefix)}

    async def _send(self, change: Change) -> Version:
        condition = _condition(change.expected)
        if change.body is None:
            request_id(await self._client.delete_item(TableName=self._place.table, Key=self._key(change.key), **condition))
            return ""
        item = self._item(change)
        request_id(await self._client.put_item(TableName=self._place.table, Item=item, **condition))
        version: Version = item[VERSION]["S"]
        return version

    async def _list(self, number: int, begins: str, after: str, limit: int) -> list[str]:
        if after > begins and not after.startswith(begins):
            return []
        found: list[str] = []
        start: dict[str, Any] = {"ExclusiveStartKey": self._start(number, after)} if after.startswith(begins) and after else {}
        while len(found) < limit:
            with translated(f"listing {self._place.table}", DEFINITE):
                answer = await self._client.query(
                    TableName=self._place.table,
                    KeyConditionExpression="#shard = :shard AND begins_with(#key, :begins)",
                    ProjectionExpression="#key",
                    ExpressionAttributeNames={"#shard": SHARD, "#key": KEY},
                    ExpressionAttributeValues={":shard": {"S": _partition(number)}, ":begins": {"S": begins}},
                    Limit=limit - len(found),
                    **start,
                )
                found += [item[KEY]["S"] for item in answer["Items"]]
            if "LastEvaluatedKey" not in answer:
                break
            start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
        return found

    def _start(self, number: int, key: str) -> Item:
        return {SHARD: {"S": _partition(number)}, KEY: {"S": key}}


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock | None = None) -> AsyncIterator[DynamoDBDocuments]:  # noqa: ARG001 - see below
    """Open the documents at `dynamodb://region/table?endpoint=...&prefix=...&timeout=...&version_attribute=...`.

    `clock` is not used. Raises SetupError.
    """
    place = read_dynamodb(url)
    async with opened(place) as client:
        yield DynamoDBDocuments(client, place)


async def create(url: str) -> None:
    """Make the table where it is missing. Raises SetupError, RetryableError."""
    place = read_dynamodb(url)
    async with opened(place) as client:
        await create_table(client, place)


def _batches(table: str, keys: Sequence[Item]) -> list[tuple[str, Sequence[Item]]]:
    return [(table, keys[first : first + IN_ONE_READ]) for first in range(0, len(keys), IN_ONE_READ)]


def _text(table: ItemTable, item: Item) -> str:
    """Return the key of an item of the application, to find its address again."""
    return repr([item[name] for name, _ in table.keys])


def _check_size(operations: Sequence[Operation]) -> None:
    size = sum(item_size(each["Put"]["Item"]) for each in operations if "Put" in each)
    if size > BYTES_IN_ONE_TRANSACTION:
        raise CommitRefused(
            f"{counted(len(operations), 'item')} of {size:,} bytes cannot be written at once; the limit of DynamoDB is "
            f"{BYTES_IN_ONE_TRANSACTION:,}. Write fewer or smaller documents with one message"
        )


def _requests(changes: Sequence[Change]) -> list[list[Change]]:
    """Put each delete into a request of its own."""
    deletes = [[change] for change in changes if change.body is None]
    writes = (change for change in changes if change.body is not None)
    return [*deletes, *split(writes, most=IN_ONE_REQUEST, size=BYTES_IN_ONE_REQUEST)]


def _condition(expected: Version) -> dict[str, Any]:
    if not expected:
        return {"ConditionExpression": "attribute_not_exists(#key)", "ExpressionAttributeNames": {"#key": KEY}}
    return {
        "ConditionExpression": "#version = :expected",
        "ExpressionAttributeNames": {"#version": VERSION},
        "ExpressionAttributeValues": {":expected": {"S": expected}},
    }


def _document(item: Item) -> Document:
    body = item[BODY]
    return Document(body=body["S"].encode() if "S" in body else body["B"], version=item[VERSION]["S"])


def _value(body: bytes) -> dict[str, Any]:
    try:
        return {"S": body.decode()}
    except UnicodeDecodeError:
        return {"B": body}


def _expiry(expires: int) -> dict[str, Any]:
    return {EXPIRES: {"N": str(-(-expires // 1000))}} if expires else {}


def _pending(change: Change, prefix: str) -> dict[str, Any]:
    """Return the attributes of the index. Endpoints have the prefix in front, because several places may share a table."""
    if not change.pending_for:
        return {}
    return {
        PENDING_IN: {"S": str(_shard(prefix + change.key) % PENDING_PARTITIONS)},
        PENDING_SINCE: {"N": str(change.pending_since)},
        PENDING_FOR: {"SS": [f"{prefix}\n{endpoint}" for endpoint in change.pending_for]},
    }


def _shard(key: str) -> int:
    return blake2b(key.encode(), digest_size=1).digest()[0] % SHARDS


def _partition(number: int) -> str:
    return f"{number:02}"
