"""Documents in Azure Table: an entity for each document, in sixteen partitions.

*Partitions.* A transaction holds entities of one partition only, and one partition takes some 2,000 entities a second, one
account 20,000. So keys are spread by their hash over sixteen partitions: enough for all that an account does, and still few
enough that a batch of a hundred is sixteen requests instead of a hundred. Their number can never change: it says where a
key is. Lists go through the partitions one after another, so they are in order within each.

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
from onceonly.adapters.azure.table.client import MOST, Operation, Table, delete, insert, open_table, replace
from onceonly.documents.bulk import read_all, split, write_all, write_requests
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits
from onceonly.model.errors import OutcomeUnknown
from onceonly.ports.documents import Change, Document, Documents, Version
from onceonly.ports.environment import Clock

_ROW = 512  # letters of a row key: 1 KiB of UTF-16
_CHUNK = 64 * 1024  # the largest property, in bytes
LIMITS = DOCUMENT_LIMITS["Azure Table"]
_REQUEST = 3 * 1024 * 1024  # bytes of a transaction; 4 MiB would be taken
_HEAD = 2 * 1024  # what an entity's part of it has next to the body
_AT_ONCE = 32
_HEX = "0123456789abcdef"
_VERSION = re.compile(r'[0-9a-f]{32} W/"[^"]+"')


class AzureTableDocuments:
    """Documents in one table, which is theirs alone. They stay when they have expired: the service removes nothing."""

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
        start, behind = _place(after) if after else (_HEX[0], "")
        listed: list[str] = []
        for partition in _HEX[_HEX.index(start) :]:
            condition = f"PartitionKey eq '{partition}'{_range(prefix)}"
            if partition == start and behind:
                condition += f" and RowKey gt '{behind}'"
            listed += await self._table.rows(condition, limit - len(listed))
            if len(listed) >= limit:
                break
        return tuple(unescaped(row.replace(".", "/")) for row in listed)

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


def _place(key: str) -> tuple[str, str]:
    partition = blake2b(key.encode(errors="surrogatepass"), digest_size=1).hexdigest()[0]
    return partition, escaped(key).replace("/", ".")  # a row key must not have '/', and '.' is escaped in others


def _range(prefix: str) -> str:
    first = escaped(prefix).replace("/", ".")
    return f" and RowKey ge '{first}' and RowKey lt '{first}~~'" if first else ""  # no key has '~' twice in a row


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


def _chunks(body: bytes) -> dict[str, bytes]:
    return {f"body{number:02}": body[at : at + _CHUNK] for number, at in enumerate(range(0, len(body), _CHUNK))}


def _names(entity: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in entity if name.startswith("body"))


def _version(token: str, etag: str) -> Version:
    if not etag:
        raise OutcomeUnknown("Azure Table returned no version for a write, so its outcome is unknown")
    return f"{token} {etag}"
