"""Documents in Azure Table: an entity for each document, in sixteen partitions.

*Partitions.* A transaction holds entities of one partition only, and one partition takes some 2,000 entities a second, one
account 20,000. So keys are spread by their hash over sixteen partitions: enough for all that an account does, and still few
enough that a batch of a hundred is sixteen requests instead of a hundred. Their number can never change: it says where a
key is. Lists go through the partitions one after another, so they are in order within each.

*Partitions of the application.* A document whose key names a partition is there instead, so that it can be written with
entities of the application in that partition by one transaction. Its row key begins with "~.", which no entity of the
application has, and holds the whole key: the partitions "7" and 7 are the same PartitionKey. To list such documents the whole
table is read.

*Transactions.* They are all-or-nothing, and documents are not: a refused transaction wrote nothing for sure, and then each of
its documents is written on its own.

*Versions.* The service compares ETags, which are its time of the write in units of 100 ns; that they never repeat is practice,
not promise. A version is the ETag and a random token that is stored next to the body, so versions never repeat; that a
write at an old version is refused rests on the ETag alone, which would have to repeat in another write to the same key.

*What azurite, the emulator in the tests, cannot prove*: how Azure throttles, splits partitions, moves them between servers
and answers then; the size of an entity (azurite measures requests instead); timing; durability.
"""

import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any
from uuid import uuid4

from onceonly.adapters.azure.client import PreconditionFailed, escaped, unescaped
from onceonly.adapters.azure.table.application import (
    OWN_ROW,
    body_of,
    check_size,
    keys_of,
    partition_name,
    properties_of,
    row_of,
)
from onceonly.adapters.azure.table.client import MOST, Operation, Table, delete, insert, open_table, put, replace
from onceonly.documents.bulk import read_all, split, write_all, write_requests
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits, check_writes
from onceonly.documents.store import BUCKET, ENTITY, MESSAGE
from onceonly.formats.partitions import PartitionValues, split_key
from onceonly.model.errors import CommitRefused, OutcomeUnknown
from onceonly.ports.documents import Change, Document, DocumentAddress, Documents, DocumentWrite, Version
from onceonly.ports.environment import Clock

_ROW = 512  # letters of a row key: 1 KiB of UTF-16
_CHUNK = 64 * 1024  # the largest property, in bytes
LIMITS = DOCUMENT_LIMITS["Azure Table"]
_REQUEST = 3 * 1024 * 1024  # bytes of a transaction; 4 MiB would be taken
_HEAD = 2 * 1024  # what an entity's part of it has next to the body
_AT_ONCE = 32
_HEX = "0123456789abcdef"
_VERSION = re.compile(r'[0-9a-f]{32} W/"[^"]+"')
_BEHIND_OWN = "~0"
"""Rows that begin with an escaped letter come after those of the application's partitions."""
_ETAG = re.compile(r'W/"[^"]+"')


class AzureTableDocuments:
    """Documents in one table, next to entities that the application has in partitions of its own.

    They stay when they have expired: the service removes nothing.
    """

    max_together = MOST - 1

    def __init__(self, table: Table) -> None:
        self.limits = LIMITS
        self._table = table

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents by their keys, several at once; see the port."""
        wanted = tuple(dict.fromkeys(keys))
        found = await read_all(wanted, self._read, at_once=_AT_ONCE)
        return {key: document for key, document in zip(wanted, found, strict=True) if document is not None}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write documents, each on its own, in as few requests as there can be; see the port."""
        check_limits(changes, self.limits)
        return await write_requests(changes, list(_groups(changes)), self._write_group, at_once=_AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys: of the sixteen partitions, then of those of the application; see the port."""
        listed: list[tuple[str, str]] = []
        start, behind = _place(after) if after else (_HEX[0], "")
        is_placed = behind.startswith(OWN_ROW)
        for partition in "" if is_placed else _HEX[_HEX.index(start) :]:
            condition = f"PartitionKey eq '{partition}'{_range(prefix)}"
            if partition == start and behind:
                condition += f" and RowKey gt '{behind}'"
            listed += await self._table.places(condition, limit - len(listed))
            if len(listed) >= limit:
                break
        if len(listed) < limit and _can_be_placed(prefix):
            listed += await self._table.places(
                _placed_range(prefix, (start, behind) if is_placed else None), limit - len(listed)
            )
        return tuple(unescaped(row.removeprefix(OWN_ROW).replace(".", "/")) for _, row in listed)

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        """Read entities of the application in the partition of this document; see the port."""
        wanted = tuple(dict.fromkeys(addresses))
        partition = self._partition(key)
        for address in wanted:
            self._check_collection(address)

        async def read(address: DocumentAddress) -> Document | None:
            row = row_of(address)
            found = await self._table.read(partition, row)
            return None if found is None else Document(body=body_of(found[1], keys_of(partition, row)), version=found[0])

        documents = await read_all(wanted, read, at_once=_AT_ONCE)
        return {address: found for address, found in zip(wanted, documents, strict=True) if found is not None}

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write a document and entities of the application by one transaction; see the port."""
        check_limits([change], self.limits)
        check_writes(self, change.key, writes)
        if not writes:
            return (await self.save([change]))[0]
        if not _is_sent(change) or any(write.expected and not _ETAG.fullmatch(write.expected) for write in writes):
            return None  # no version of this service
        rows = [row_of(write.address) for write in writes]
        if len(set(rows)) < len(rows):
            raise CommitRefused(f"two of the documents have the same RowKey: {max(rows, key=rows.count)!r:.80}")
        token, partition = uuid4().hex, self._partition(change.key)
        operations = [_operation(change, token), *(_written(partition, write) for write in writes)]
        try:
            etag, *_ = await self._table.transact(operations)
        except PreconditionFailed:
            return None
        return "" if change.body is None else _version(token, etag)

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        try:
            self._check_collection(write.address)
            _written(self._partition(key), write)
        except CommitRefused as error:
            return str(error)
        return ""

    async def why_not_together(self) -> str:
        return ""

    def _partition(self, key: str) -> str:
        """Return the partition of the application that this document is in. Raises CommitRefused."""
        values = _values(key)
        if not values:
            raise CommitRefused("documents of Azure Table are in the partition of their message: use partition_key=")
        name = partition_name(values)
        if name in set(_HEX):
            raise CommitRefused(
                f"the partition {name!r} is one of the store: use values of two characters or more, such as 'tenant-{name}'"
            )
        return name

    def _check_collection(self, address: DocumentAddress) -> None:
        if address.collection not in {"", self._table.name}:
            raise CommitRefused(
                f"a transaction of Azure Table is in one table, {self._table.name}: {address.collection!r:.80} is another"
            )

    async def check(self) -> tuple[str, ...]:
        """Make sure that the table is there; see the port."""
        await self._table.check()
        return ()

    async def _read(self, key: str) -> Document | None:
        partition, row = _place(key)
        if not 0 < len(row) <= _ROW:
            return None
        found = await self._table.read(partition, row)
        if found is None:
            return None
        etag, entity = found
        body = b"".join(entity[name] for name in _names(entity))
        return Document(body=body, version=_version(str(entity["version"]), etag))

    async def _write_group(self, group: Sequence[Change]) -> tuple[Version | None, ...]:
        if len(group) == 1:
            return (await self._write_one(group[0]),)
        try:
            return await self._transact(group)
        except PreconditionFailed:  # definite for all of them; now each has to be asked on its own
            return await write_all(group, self._write_one, at_once=_AT_ONCE)

    async def _write_one(self, change: Change) -> Version | None:
        if change.expected and not _is_sent(change):
            return None  # no version of this service
        if not _is_sent(change):
            return "" if await self._read(change.key) is None else None
        try:
            (version,) = await self._transact((change,))
        except PreconditionFailed:
            return None
        return version

    async def _transact(self, group: Sequence[Change]) -> tuple[Version, ...]:
        token = uuid4().hex
        etags = await self._table.transact([_operation(change, token) for change in group])
        return tuple("" if change.body is None else _version(token, etag) for change, etag in zip(group, etags, strict=True))


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[Documents]:  # noqa: ARG001 - nothing expires here
    """Open the documents of `azure-table://account/table`; connects when they are used. Raises SetupError, DriverMissing."""
    async with open_table(url) as table:
        yield AzureTableDocuments(table)


async def create(url: str) -> None:
    """Make the table of a URL, unless it is there. Raises SetupError, DriverMissing, RetryableError."""
    async with open_table(url) as table:
        await table.create()


def _values(key: str) -> PartitionValues:
    try:
        return split_key(key).values
    except ValueError:  # a key with "//[" that is no partition
        return ()


def _place(key: str) -> tuple[str, str]:
    """Return the partition and the row of a document. Raises CommitRefused for a partition that the service cannot have."""
    if values := _values(key):
        return partition_name(values), OWN_ROW + escaped(key).replace("/", ".")
    partition = blake2b(key.encode(errors="surrogatepass"), digest_size=1).hexdigest()[0]
    return partition, escaped(key).replace("/", ".")  # a row key must not have '/', and '.' is escaped in others


def _range(prefix: str) -> str:
    """Return the condition for documents outside of partitions of the application."""
    first = escaped(prefix).replace("/", ".")
    if not first:
        return f" and (RowKey lt '{OWN_ROW}' or RowKey ge '{_BEHIND_OWN}')"
    return f" and RowKey ge '{first}' and RowKey lt '{first}~~'"  # no key has '~' twice in a row


def _placed_range(prefix: str, after: tuple[str, str] | None) -> str:
    first = OWN_ROW + escaped(prefix).replace("/", ".")
    condition = f"RowKey ge '{first}' and RowKey lt '{first}~~'"
    if after is None:
        return condition
    partition, row = after[0].replace("'", "''"), after[1]
    return f"(PartitionKey gt '{partition}' or (PartitionKey eq '{partition}' and RowKey gt '{row}')) and {condition}"


def _can_be_placed(prefix: str) -> bool:
    """Return whether documents in partitions of the application can have keys that begin so."""
    return any(f"{kind}/[".startswith(prefix) or prefix.startswith(f"{kind}/[") for kind in (ENTITY, MESSAGE, BUCKET))


def _groups(changes: Sequence[Change]) -> Iterator[Sequence[Change]]:
    by_partition: defaultdict[str, list[Change]] = defaultdict(list)
    for change in changes:
        if _is_sent(change):
            by_partition[_place(change.key)[0]].append(change)
        else:
            yield (change,)
    for partition in by_partition.values():
        yield from split(partition, most=MOST, size=_REQUEST, size_of=_size)


def _size(change: Change) -> int:
    return _HEAD + len(change.body or b"") * 4 // 3


def _is_sent(change: Change) -> bool:
    """Return whether the service is asked; not when nothing is deleted, nor at a version that it cannot have given."""
    return bool(_VERSION.fullmatch(change.expected)) if change.expected else change.body is not None


def _operation(change: Change, token: str) -> Operation:
    partition, row = _place(change.key)
    etag = change.expected.partition(" ")[2]
    if change.body is None:
        return delete(partition, row, etag)
    entity: dict[str, Any] = {"PartitionKey": partition, "RowKey": row, "version": token, **_chunks(change.body)}
    return replace(entity, etag) if change.expected else insert(entity)


def _written(partition: str, write: DocumentWrite) -> Operation:
    """Return the write of an entity of the application. Raises CommitRefused for what the service never takes."""
    row = row_of(write.address)
    if write.body is None:
        return delete(partition, row, write.expected or "")
    keys = keys_of(partition, row)
    properties = properties_of(write.body, keys)
    check_size(partition, row, properties)
    entity = {**keys, **properties}
    if write.expected is None:
        return put(entity)
    return replace(entity, write.expected) if write.expected else insert(entity)


def _chunks(body: bytes) -> dict[str, bytes]:
    return {f"body{number:02}": body[at : at + _CHUNK] for number, at in enumerate(range(0, len(body), _CHUNK))}


def _names(entity: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in entity if name.startswith("body"))


def _version(token: str, etag: str) -> Version:
    if not etag:
        raise OutcomeUnknown("Azure Table returned no version for a write, so its outcome is unknown")
    return f"{token} {etag}"
