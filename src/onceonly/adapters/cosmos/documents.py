"""Documents in a Cosmos DB container: `id` is the key and the partition, `body` the JSON object, for people too.

Inserts are creates, replaces and deletes bear the ETag they expect (If-Match). Each document has a fresh random `attempt`,
so that an ETag can never come again even where a service would compute it from the content. Transactional batches are not
used: each document is a partition of its own, so that load is spread.

Reads must see every acknowledged write. Of the five consistency levels of an account only Strong promises that, in one
region and in several. Session promises it to the writer's session only, Consistent Prefix and Eventual to none. Bounded
Staleness allows an agreed lag; that reads in the write region happen to be current is not promised, so it is refused too. An
account with several write regions cannot be Strong. `check` reads the account's level, and a client cannot ask for more.

The emulator of the tests proves the conditions on single documents, the names and bodies. It proves nothing about consistency
(it says Session, so `?emulator=true` must be given, which also takes any certificate), expiry, throttling, sizes, regions, or
how the service spreads a list over partitions. Never set it for an account that matters.
"""

from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from string import ascii_letters, digits
from typing import Any
from uuid import uuid4

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.cosmos import PartitionKey
from azure.cosmos.aio import ContainerProxy
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceExistsError, CosmosResourceNotFoundError

from onceonly.adapters.cosmos.address import read_address
from onceonly.adapters.cosmos.client import Account, open_account, refused_setup, translated
from onceonly.documents.bulk import read_all, write_all
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.encoding import NativeValues, decode_key, from_native, is_text, key_encoder, to_native
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits
from onceonly.documents.no_retry import SentTwiceError
from onceonly.documents.pending_order import before_of, entry_of, order_of
from onceonly.model.errors import OutcomeUnknown, SetupError
from onceonly.ports.documents import Change, Document, PendingDocument, Version
from onceonly.ports.environment import Clock

__all__ = ["CosmosDocuments", "create", "open_documents"]

_AT_ONCE = 16
_LONGEST_TTL_SECONDS = 2**31 - 1
_NATIVE = NativeValues(  # its numbers are those of JavaScript, and so may be the order of its fields
    least=-(2**53), greatest=2**53, whole_floats=False, is_name=lambda name: not name.isdigit() and name != "__proto__"
)
_encode = key_encoder(ascii_letters + digits + "_-:")
_LOST: tuple[type[Exception], ...] = (AzureError, SentTwiceError, *DRIVER_FAULTS)
_PARTITION = "/id"


class CosmosDocuments:
    """Documents in one container; see the port and the limits of this module.

    Each document is a request of its own, 16 at a time. `expires` becomes `ttl`, which counts where the container has a
    default time to live; `create` sets that to "on, without a default".
    """

    limits = DOCUMENT_LIMITS["Cosmos DB"]

    def __init__(self, account: Account, *, clock: Clock) -> None:
        self._account = account
        self._clock = clock

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        wanted = [key for key in dict.fromkeys(keys) if is_text(key)]
        if not wanted:
            return {}
        container = await self._account.container()
        found = await read_all(wanted, lambda key: self._read(container, _encode(key)), at_once=_AT_ONCE)
        return {
            key: Document(body=_body(item), version=item["_etag"])
            for key, item in zip(wanted, found, strict=True)
            if item is not None
        }

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        if not changes:
            return ()
        container = await self._account.container()
        return await write_all(changes, lambda change: self._write(container, change), at_once=_AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their names; see the port. Raises CommitFailed."""
        container = await self._account.container()
        query = f"SELECT TOP {int(limit)} VALUE c.id FROM c WHERE STARTSWITH(c.id, @prefix) AND c.id > @after ORDER BY c.id"  # noqa: S608 - a number
        parameters: list[dict[str, Any]] = [
            {"name": "@prefix", "value": _encode(prefix)},
            {"name": "@after", "value": _encode(after)},
        ]
        try:
            return tuple([decode_key(str(name)) async for name in container.query_items(query, parameters=parameters)])
        except _LOST as error:
            raise translated(error, reads=True) from error

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List by a query on a property that only pending documents have, and that is indexed; see the port."""
        container = await self._account.container()
        query = (
            f"SELECT TOP {int(limit)} c.id, c.pending_at FROM c WHERE c.pending_at > @after AND c.pending_at < @before "  # noqa: S608 - a number
            "AND ARRAY_CONTAINS(c.pending_for, @endpoint) ORDER BY c.pending_at"
        )
        parameters: list[dict[str, Any]] = [
            {"name": "@endpoint", "value": endpoint},
            {"name": "@after", "value": order_of(after.since, _encode(after.key)) if after is not None else ""},
            {"name": "@before", "value": before_of(before)},
        ]
        try:
            found = [item async for item in container.query_items(query, parameters=parameters)]
        except _LOST as error:
            raise translated(error, reads=True) from error
        return tuple(entry_of(str(item["pending_at"]), decode_key(str(item["id"]))) for item in found)

    async def why_unlisted(self) -> str:
        """Return why not: where the container indexes nothing automatically, each look would read all documents.

        The emulator has no indexes, and is not asked.
        """
        if self._account.address.emulator:
            return ""
        try:
            properties = await (await self._account.container()).read()
        except _LOST as error:
            raise translated(error, reads=True) from error
        policy = properties.get("indexingPolicy") or {}
        paths = {str(each.get("path")) for each in policy.get("includedPaths", ())}
        if str(policy.get("indexingMode", "consistent")).lower() == "consistent" and (
            not policy or "/*" in paths or {"/pending_at/?", "/pending_for/[]/?"} <= paths
        ):
            return ""
        return "the container does not index /pending_at/? and /pending_for/[]/?: add both paths to its indexing policy"

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
        except _LOST as error:
            raise refused_setup(error, address) from error
        if not address.emulator:
            _refuse_stale(str(policy.get("defaultConsistencyLevel")), address.endpoint)
        _refuse_container(properties, address.place)
        return (*_emulator_warnings(is_used=address.emulator), *_expiry_warnings(properties))

    async def _read(self, container: ContainerProxy, name: str) -> Mapping[str, Any] | None:
        try:
            return await container.read_item(name, name)
        except CosmosHttpResponseError as error:
            if self._is_missing(error):
                return None
            raise translated(error, reads=True) from error
        except _LOST as error:
            raise translated(error, reads=True) from error

    async def _write(self, container: ContainerProxy, change: Change) -> Version | None:
        if change.body is None and not change.expected:  # Cosmos DB has no condition for that
            return "" if await self._read(container, _encode(change.key)) is None else None
        try:
            return await self._write_item(container, _encode(change.key), change)
        except CosmosResourceExistsError:
            if not change.expected:
                return None
            raise OutcomeUnknown("Cosmos DB reported a conflict of ids for a replacement, which is not expected") from None
        except CosmosHttpResponseError as error:
            if change.expected and (error.status_code == 412 or self._is_missing(error)):  # noqa: PLR2004 - precondition failed
                return None
            raise translated(error) from error
        except _LOST as error:
            raise translated(error) from error

    async def _write_item(self, container: ContainerProxy, name: str, change: Change) -> Version:
        condition: dict[str, Any] = {"etag": change.expected, "match_condition": MatchConditions.IfNotModified}
        if change.body is None:
            await container.delete_item(name, name, **condition)
            return ""
        item = _item(name, change, self._clock.now())
        if change.expected:
            answer = await container.replace_item(name, item, no_response=True, **condition)
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

    With an identity instead of a key Azure forbids this; make the container by its own tools then: partition key /id, time
    to live on without a default.
    """
    address = read_address(url)
    async with open_account(address) as account:
        try:
            database = await (await account.client()).create_database_if_not_exists(address.database)
            await database.create_container_if_not_exists(
                address.container, partition_key=PartitionKey(_PARTITION), default_ttl=-1
            )
        except _LOST as error:
            raise refused_setup(error, address) from error


def _refuse_stale(level: str, endpoint: str) -> None:
    if level != "Strong":
        raise SetupError(
            f"{endpoint} has consistency level {level}: reads may be stale, and a message may be handled "
            "twice. Set the account's default consistency to Strong (requires one write region)"
        )


def _refuse_container(properties: Mapping[str, Any], place: str) -> None:
    paths = properties.get("partitionKey", {}).get("paths")
    if paths != [_PARTITION]:
        raise SetupError(f"{place} has partition key {paths}: create a container with partition key {_PARTITION}")
    if properties.get("uniqueKeyPolicy", {}).get("uniqueKeys"):
        raise SetupError(
            f"{place} has unique keys other than the id, which documents can violate: create a container without them"
        )


def _emulator_warnings(*, is_used: bool) -> tuple[str, ...]:
    return ("this is an emulator: its certificate and its consistency are not checked",) if is_used else ()


def _expiry_warnings(properties: Mapping[str, Any]) -> tuple[str, ...]:
    if properties.get("defaultTtl") is not None:
        return ()
    return ("expired documents are not deleted: turn on the container's time to live, without a default",)


def _item(name: str, change: Change, now: int) -> dict[str, Any]:
    body = change.body or b""
    value = to_native(body, _NATIVE)
    kept: dict[str, Any] = {"bytes": b64encode(body).decode()} if value is None else {"body": value}
    left = max(1, min(_LONGEST_TTL_SECONDS, -(-(change.expires - now) // 1000))) if change.expires else -1
    if change.pending_for:
        kept |= {"pending_for": list(change.pending_for), "pending_at": order_of(change.pending_since, name)}
    return {"id": name, "attempt": uuid4().hex, "ttl": left, **kept}


def _body(item: Mapping[str, Any]) -> bytes:
    return from_native(item["body"]) if "body" in item else b64decode(item["bytes"])
