"""Azure Table: one table, read by point and by range, written by transactions, and what its errors mean.

Everything is written by entity group transactions, also a single entity: one kind of request, whose answers say for all of its
entities whether they were written. What is not on the list of definite errors is OutcomeUnknown.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from azure.core import MatchConditions
from azure.data.tables import TransactionOperation, UpdateMode
from azure.data.tables.aio import TableClient

from onceonly.adapters.azure.address import read_address
from onceonly.adapters.azure.client import BROKEN, StorageErrors, code_of, connected, setup_errors
from onceonly.model.errors import CommitRefused, OutcomeUnknown, SetupError

MOST = 100
"""Entities in one transaction."""
_PARTS = 1  # of a URL's path
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}")  # of a table
_REFUSED = frozenset(
    {"EntityAlreadyExists", "UpdateConditionNotSatisfied", "ConditionNotMet", "ResourceNotFound", "EntityNotFound"}
)
_TOO_LARGE = frozenset({"RequestBodyTooLarge", "EntityTooLarge", "PropertyValueTooLarge"})
_INVALID = frozenset(
    {
        "InvalidDuplicateRow",
        "InvalidInput",
        "InvalidValueType",
        "OutOfRangeInput",
        "PropertyNameInvalid",
        "PropertyNameTooLong",
        "TooManyProperties",
    }
)
_MISSING = frozenset({"TableNotFound", "TableBeingDeleted"})

Operation = tuple[TransactionOperation, Mapping[str, Any], Mapping[str, Any]]


def insert(entity: Mapping[str, Any]) -> Operation:
    """Write an entity that must not exist."""
    return (TransactionOperation.CREATE, entity, {})


def replace(entity: Mapping[str, Any], etag: str) -> Operation:
    """Write an entity anew that must have this ETag now; none of its old properties stays."""
    return (TransactionOperation.UPDATE, entity, {"mode": UpdateMode.REPLACE, **_if_match(etag)})


def put(entity: Mapping[str, Any]) -> Operation:
    """Write an entity, whatever is there; none of its old properties stays."""
    return (TransactionOperation.UPSERT, entity, {"mode": UpdateMode.REPLACE})


def delete(partition: str, row: str, etag: str) -> Operation:
    """Delete an entity that must have this ETag now."""
    return (TransactionOperation.DELETE, {"PartitionKey": partition, "RowKey": row}, _if_match(etag))


class Table:
    """A table on its service, by a client of its own."""

    def __init__(self, client: TableClient) -> None:
        self.name = str(client.table_name)
        self._client = client
        self._errors = StorageErrors(f"table {client.table_name}", _MISSING, _REFUSED, _TOO_LARGE)

    async def read(self, partition: str, row: str) -> tuple[str, Mapping[str, Any]] | None:
        """Return an entity's ETag and its properties, or None. Raises CommitFailed."""
        try:
            entity = await self._client.get_entity(partition, row)
        except BROKEN as error:
            if code_of(error) in {"ResourceNotFound", "EntityNotFound"}:
                return None
            raise self._errors.of_read(error) from error
        return str(entity.metadata["etag"]), entity

    async def places(self, condition: str, limit: int) -> list[tuple[str, str]]:
        """List the keys of entities under this condition, in their order, the first `limit`. Raises CommitFailed."""
        found: list[tuple[str, str]] = []
        try:
            select = ["PartitionKey", "RowKey"]
            pages = self._client.query_entities(condition, select=select, results_per_page=min(limit, 1000))
            async for entity in pages:
                found.append((str(entity["PartitionKey"]), str(entity["RowKey"])))
                if len(found) == limit:
                    break
        except BROKEN as error:
            raise self._errors.of_read(error) from error
        return found

    async def transact(self, operations: Sequence[Operation]) -> list[str]:
        """Write all of these entities of one partition, or none; gives their ETags, empty for those deleted.

        Raises PreconditionFailed, CommitRefused, CommitFailed: nothing was written; OutcomeUnknown.
        """
        try:
            answers = await self._client.submit_transaction(operations)
        except BROKEN as error:
            if code_of(error) in _INVALID:
                raise CommitRefused(f"table {self.name} does not take what is written ({code_of(error)})") from error
            raise self._errors.of_write(error) from error
        etags = [str(answer.get("etag", "")) for answer in answers]
        if len(etags) != len(operations):
            raise OutcomeUnknown(f"table {self.name} confirmed {len(etags)} of {len(operations)} entities")
        return etags

    async def check(self) -> None:
        """Make sure that the table is there. Raises SetupError, RetryableError."""
        try:
            await self._client.get_entity("0", "check")
        except BROKEN as error:
            if code_of(error) in {"ResourceNotFound", "EntityNotFound"}:
                return
            raise self._errors.of_start(error) from error

    async def create(self) -> None:
        """Make the table, unless it is there. Raises SetupError, RetryableError."""
        try:
            await self._client.create_table()
        except BROKEN as error:
            if code_of(error) != "TableAlreadyExists":
                raise self._errors.of_creation(error) from error


@asynccontextmanager
async def open_table(url: str) -> AsyncIterator[Table]:
    """Open the table of `azure-table://account/table`; connects when it is used. Raises SetupError, DriverMissing."""
    address = read_address(url, "table")
    if len(address.parts) != _PARTS:
        raise SetupError("an azure-table URL needs one table: azure-table://account/table")
    if not _NAME.fullmatch(address.parts[0]):
        raise SetupError(f"invalid Azure table name {address.parts[0]!r}: use 3 to 63 letters and digits, a letter first")
    async with connected(address) as how:
        with setup_errors("Azure Table"):
            client = TableClient(address.endpoint, address.parts[0], **how)
        async with client:
            yield Table(client)


def _if_match(etag: str) -> Mapping[str, Any]:
    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}
