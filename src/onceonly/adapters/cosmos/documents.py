"""Documents in a Cosmos DB container: each is an item, with the JSON object in it, for people too. See `items` for its form.

Inserts are creates, replaces and deletes bear the ETag they expect (If-Match). Each document has a fresh random `attempt`,
so that an ETag can never come again even where a service would compute it from the content. In a container of its own each
document is a partition, so that load is spread. In a container of the application's (`?partition_key=`) a document is in the
partition of its unit, and `save_together` writes it and documents of the application in one transactional batch (`batches`).

Reads must see every acknowledged write. Of the five consistency levels of an account only Strong promises that, in one
region and in several. Session promises it to the writer's session only, Consistent Prefix and Eventual to none. Bounded
Staleness allows an agreed lag; that reads in the write region happen to be current is not promised, so it is refused too. An
account with several write regions cannot be Strong. `check` reads the account's level, and a client cannot ask for more.

The emulator of the tests proves the conditions on single documents, the names and bodies. It proves nothing about consistency
(it says Session, so `?emulator=true` must be given, which also takes any certificate), expiry, throttling, sizes, regions, or
how the service spreads a list over partitions. Never set it for an account that matters.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from azure.cosmos.exceptions import (
    CosmosBatchOperationError,
    CosmosHttpResponseError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)
from msgspec.structs import replace

from onceonly.adapters.cosmos.address import CosmosAddress, read_address
from onceonly.adapters.cosmos.batches import (
    MOST_OPERATIONS,
    address_problem,
    body_of,
    operations_of,
    problem_of,
    refused,
    version_of,
)
from onceonly.adapters.cosmos.client import LOST, Account, open_account, refused_setup, translated
from onceonly.adapters.cosmos.items import OWN_PARTITION, ItemPlace, Items, OwnPartitions, Partitions, SharedPlace, listed_for
from onceonly.documents.bulk import read_all, write_all
from onceonly.documents.encoding import is_text
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits, shorter
from onceonly.documents.pending_order import before_of, entry_of, order_of
from onceonly.formats.partitions import split_key
from onceonly.model.errors import CommitRefused, OutcomeUnknown, SetupError
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite, PendingDocument, Version
from onceonly.ports.environment import Clock

__all__ = ["CosmosDocuments", "create", "open_documents"]

_AT_ONCE = 16
_LONGEST_ID = 1023
_NO_PARTITION = (
    "the handler has no partition_key=, so its documents are in a partition of their own: set it to what tells the partition "
    "from the message"
)


class CosmosDocuments:
    """Documents in one container; see the port and the limits of this module.

    Each document is a request of its own, 16 at a time. `expires` becomes `ttl`, which counts where the container has a
    default time to live; `create` sets that to "on, without a default".
    """

    max_together = MOST_OPERATIONS - 1

    def __init__(self, account: Account, *, clock: Clock) -> None:
        address = account.address
        self._account = account
        self._clock = clock
        self._partitions = Partitions(address.prefix, address.paths) if address.paths else None
        self._items: Items = self._partitions or OwnPartitions(address.prefix)
        limits = DOCUMENT_LIMITS["Cosmos DB"]
        self.limits = shorter(replace(limits, key=_LONGEST_ID), taken=len(address.prefix), encoded=3)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents; see the port. Raises PermanentFailure for one that cannot be in this container."""
        wanted = [key for key in dict.fromkeys(keys) if is_text(key)]
        if not wanted:
            return {}
        places = {key: self._items.place(key) for key in wanted}
        container = await self._account.container()
        found = await read_all(wanted, lambda key: self._read(container, places[key]), at_once=_AT_ONCE)
        return {
            key: Document(body=self._items.body(key, item), version=item["_etag"])
            for key, item in zip(wanted, found, strict=True)
            if item is not None
        }

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        if not changes:
            return ()
        places = {change.key: self._items.place(change.key) for change in changes}
        container = await self._account.container()
        return await write_all(changes, lambda change: self._write(container, places[change.key], change), at_once=_AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their names; see the port. Raises CommitFailed."""
        found = await self._query(
            self._items.keys_query,
            limit,
            {"@prefix": self._items.name(prefix), "@after": self._items.name(after) if after else ""},
        )
        return tuple(self._items.key(str(name)) for name in found)

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List by a query on a property that only pending documents have, and that is indexed; see the port."""
        found = await self._query(
            self._items.pending_query,
            limit,
            {
                "@endpoint": listed_for(self._account.address.prefix, endpoint),
                "@after": order_of(after.since, self._items.name(after.key)) if after is not None else "",
                "@before": before_of(before),
            },
        )
        return tuple(entry_of(str(item["pending_at"]), self._items.key(str(item["name"]))) for item in found)

    async def why_unlisted(self) -> str:
        """Return why not: where the container does not index the properties of the list, each look would read all documents.

        The emulator has no indexes, and is not asked.
        """
        if self._account.address.emulator:
            return ""
        try:
            properties = await (await self._account.container()).read()
        except LOST as error:
            raise translated(error, reads=True) from error
        paths, words = self._items.unlisted_paths
        if _indexes(properties, paths):
            return ""
        return f"the container does not index {words}: add both paths to its indexing policy"

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        """Read documents of the application in the partition of this key; see the port."""
        place = self._shared_place(key).place
        wanted = list(dict.fromkeys(addresses))
        for address in wanted:
            if problem := address_problem(address):
                raise CommitRefused(f"cannot read document {address.key!r:.80}: {problem}")
        container = await self._account.container()
        places = {address: place._replace(id=str(address.key[0])) for address in wanted}
        found = await read_all(wanted, lambda address: self._read(container, places[address]), at_once=_AT_ONCE)
        return {
            address: Document(body=body_of(item), version=item["_etag"])
            for address, item in zip(wanted, found, strict=True)
            if item is not None
        }

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write all of them in one transactional batch; see the port."""
        check_limits([change], self.limits)
        shared = self._shared_place(change.key)
        batch = operations_of(shared, change, writes, self._clock.now())
        container = await self._account.container()
        try:
            answers = await container.execute_item_batch(
                [(kind, arguments, dict(condition)) for kind, arguments, condition in batch],  # the driver changes conditions
                shared.place.partition_key,
            )
        except CosmosBatchOperationError as error:
            if (refusal := refused(error, batch, self._account.pause)) is None:
                return None
            raise refusal from error
        except LOST as error:
            raise translated(error) from error
        return version_of(answers, batch, change)

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        """Return why the container would never take this document next to that with this key, or ""."""
        try:
            shared = self._shared_place(key)
        except CommitRefused as error:
            return str(error)
        return problem_of(shared, write)

    async def why_not_together(self) -> str:
        if self._partitions is not None:
            return ""
        return (
            "each document of this container is a partition of its own: use a container of the application's, and add "
            "?partition_key=/PATH with its partition key to the URL of the store"
        )

    async def check(self) -> tuple[str, ...]:
        """See the port; warns of an emulator, and where expired documents stay. Raises SetupError, CommitFailed."""
        client = await self._account.client()
        address = self._account.address
        try:
            policy = (await client._get_database_account()).ConsistencyPolicy or {}  # noqa: SLF001 - there is no public way
            properties = await (await self._account.container()).read()
        except CosmosResourceNotFoundError as error:
            raise SetupError(
                f"container {address.place} does not exist: run `onceonly schema create module:endpoint`"
            ) from error
        except LOST as error:
            raise refused_setup(error, address) from error
        if not address.emulator:
            _refuse_stale(str(policy.get("defaultConsistencyLevel")), address.endpoint)
        _refuse_container(properties, address)
        return (*_emulator_warnings(is_used=address.emulator), *_expiry_warnings(properties))

    def _shared_place(self, key: str) -> SharedPlace:
        """Return where documents of the application are, next to this one. Raises CommitRefused where none can be."""
        if self._partitions is None or not split_key(key).values:
            raise CommitRefused(_NO_PARTITION)
        return SharedPlace(self._partitions, self._partitions.place(key))

    async def _query(self, query: str, limit: int, parameters: Mapping[str, str]) -> list[Any]:
        container = await self._account.container()
        named: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in parameters.items()]
        try:
            return [each async for each in container.query_items(query.format(limit=int(limit)), parameters=named)]
        except LOST as error:
            raise translated(error, reads=True) from error

    async def _read(self, container: ContainerProxy, place: ItemPlace) -> Mapping[str, Any] | None:
        try:
            return await container.read_item(place.id, place.partition_key)
        except CosmosHttpResponseError as error:
            if self._is_missing(error):
                return None
            raise translated(error, reads=True) from error
        except LOST as error:
            raise translated(error, reads=True) from error

    async def _write(self, container: ContainerProxy, place: ItemPlace, change: Change) -> Version | None:
        if change.body is None and not change.expected:  # Cosmos DB has no condition for that
            return "" if await self._read(container, place) is None else None
        try:
            return await self._write_item(container, place, change)
        except CosmosResourceExistsError:
            if not change.expected:
                return None
            raise OutcomeUnknown("Cosmos DB reported a conflict of ids for a replacement, which is not expected") from None
        except CosmosHttpResponseError as error:
            if change.expected and (error.status_code == 412 or self._is_missing(error)):  # noqa: PLR2004 - precondition failed
                return None
            raise translated(error) from error
        except LOST as error:
            raise translated(error) from error

    async def _write_item(self, container: ContainerProxy, place: ItemPlace, change: Change) -> Version:
        condition: dict[str, Any] = {"etag": change.expected, "match_condition": MatchConditions.IfNotModified}
        if change.body is None:
            await container.delete_item(place.id, place.partition_key, **condition)
            return ""
        item = self._items.item(place, change, self._clock.now())
        if change.expected:
            answer = await container.replace_item(place.id, item, no_response=True, **condition)
        else:
            answer = await container.create_item(item, no_response=True)
        version = answer.get_response_headers().get("etag")
        if not version:
            raise OutcomeUnknown("Cosmos DB returned no ETag for a write, so its version is unknown")
        return str(version)

    def _is_missing(self, error: CosmosHttpResponseError) -> bool:
        """Return whether the document is missing; sub-statuses mean that the container is, or that a replica lags."""
        if error.status_code == 404:  # noqa: PLR2004 - not found
            return not error.sub_status
        return self._account.address.emulator and "undefined (reading 'id')" in str(error)  # how the emulator says it


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[CosmosDocuments]:
    """Open documents at cosmos://:key@account.documents.azure.com/database/container; connects at the first call.

    Without a key: AZURE_COSMOS_KEY, else the identity of the machine (azure-identity). Raises SetupError when the URL is wrong.
    """
    async with open_account(read_address(url)) as account:
        yield CosmosDocuments(account, clock=clock)


async def create(url: str) -> None:
    """Make the database and the container where they are missing. Raises SetupError, CommitFailed.

    With an identity instead of a key Azure forbids this; make the container by its own tools then: partition key /id, or that
    of the URL, and time to live on without a default.
    """
    address = read_address(url)
    async with open_account(address) as account:
        try:
            database = await (await account.client()).create_database_if_not_exists(address.database)
            await database.create_container_if_not_exists(address.container, partition_key=_definition(address), default_ttl=-1)
        except LOST as error:
            raise refused_setup(error, address) from error


def _definition(address: CosmosAddress) -> PartitionKey:
    if len(address.paths) > 1:
        return PartitionKey(list(address.paths), kind="MultiHash")
    return PartitionKey(address.paths[0] if address.paths else OWN_PARTITION)


def _refuse_stale(level: str, endpoint: str) -> None:
    if level != "Strong":
        raise SetupError(
            f"{endpoint} has consistency level {level}: reads may be stale, and a message may be handled "
            "twice. Set the account's default consistency to Strong (requires one write region)"
        )


def _refuse_container(properties: Mapping[str, Any], address: CosmosAddress) -> None:
    paths = [str(path) for path in properties.get("partitionKey", {}).get("paths") or []]
    expected = list(address.paths) or [OWN_PARTITION]
    if paths != expected:
        given = "use" if address.paths or not paths else f"add ?partition_key={','.join(paths)} to its URL, or use"
        raise SetupError(
            f"{address.place} has partition key {', '.join(paths) or '(none)'}: {given} a container with partition key "
            f"{', '.join(expected)}"
        )
    if properties.get("uniqueKeyPolicy", {}).get("uniqueKeys"):
        raise SetupError(
            f"{address.place} has unique keys other than the id, and two documents of onceonly in one partition have the same: "
            "none. Use a container without unique keys"
        )
    if address.paths and not _indexes(properties, frozenset({"/onceonly/name/?"})):
        raise SetupError(f"{address.place} does not index /onceonly/name/?, so its documents cannot be listed: add the path")


def _indexes(properties: Mapping[str, Any], paths: frozenset[str]) -> bool:
    """Return whether the container indexes all these paths. The default policy indexes everything."""
    policy = properties.get("indexingPolicy") or {}
    included = {str(each.get("path")) for each in policy.get("includedPaths", ())}
    if str(policy.get("indexingMode", "consistent")).lower() != "consistent":
        return False
    return not policy or "/*" in included or paths <= included


def _emulator_warnings(*, is_used: bool) -> tuple[str, ...]:
    return ("this is an emulator: its certificate and its consistency are not checked",) if is_used else ()


def _expiry_warnings(properties: Mapping[str, Any]) -> tuple[str, ...]:
    if properties.get("defaultTtl") is not None:
        return ()
    return ("expired documents are not deleted: turn on the container's time to live, without a default",)
