"""Documents in a MongoDB collection: `_id` is the key, `version` a fresh random one, `body` the JSON object, for people too.

Writes name the version in their filter and wait for the journals of a majority. Reads have read concern "linearizable": a
primary answers such a read only after a majority has confirmed that it still is the primary, so nothing acknowledged is
missed. "majority" at the primary is not enough, because a primary that was cut off answers old data until it notices.
MongoDB promises that for reads of one document only, therefore each document is read on its own, several at a time.

A standalone server knows no majority: it is read as it is ("local"), and `check` warns of that. It has no transactions either,
so it writes no documents of the application. Replica sets and mongos do (`application`).

Several places may share a collection, each with a prefix: the `_id` is then the prefix, a space, and the key, and no encoded
key has a space. The list of pending documents names the endpoint in the same way.

The emulators of the tests are one server each, so what they cannot prove is everything about several: linearizable reads,
fail-overs, unconfirmed majorities, sharding; nor do they prove what users' rights and hosted services add.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from string import ascii_letters, digits, punctuation
from typing import Any
from uuid import uuid4

from bson import Binary
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from onceonly.adapters.mongodb.address import MongoDBAddress, read_address
from onceonly.adapters.mongodb.application import MAX_TOGETHER, ApplicationCollections
from onceonly.adapters.mongodb.client import open_client, refused_setup, translated
from onceonly.documents.bulk import Outcome, read_all, split, write_requests
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.documents.encoding import NativeValues, decode_key, from_native, is_text, key_encoder, to_native
from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits, check_writes, shorter
from onceonly.documents.pending_order import before_of, entry_of, order_of
from onceonly.model.errors import OutcomeUnknown, SetupError
from onceonly.ports.documents import Change, Document, DocumentAddress, DocumentWrite, PendingDocument, Version
from onceonly.ports.environment import Clock

__all__ = ["MongoDBDocuments", "create", "open_documents"]

OLDEST = 9  # the wire version of MongoDB 4.4: long keys are indexed, and refused writes have their codes
_AT_ONCE = 16
_IN_ONE, _BYTES_IN_ONE = 500, 4 * 1024 * 1024  # inserts that are one message of the protocol, so that a refusal is of all
_LOST: tuple[type[Exception], ...] = (PyMongoError, *DRIVER_FAULTS)
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NATIVE = NativeValues(
    least=-(2**63),
    greatest=2**63 - 1,
    whole_floats=True,
    is_name=lambda name: "\0" not in name and "." not in name and not name.startswith("$"),
)
_encode = key_encoder(ascii_letters + digits + punctuation.replace("=", ""))
_Collection = AsyncCollection[dict[str, Any]]
_DUPLICATE_KEY = 11000
_BEHIND = " "  # behind a prefix, and in no encoded key
PENDING_FOR, PENDING_AT = "pending_for", "pending_at"
"""Fields of documents with unsent messages only, and of the index that has only these."""
_INDEX = [(PENDING_FOR, 1), (PENDING_AT, 1)]
_STANDALONE = (
    "this MongoDB server is standalone: a crash or a lost disk can lose acknowledged writes, and "
    "messages may be handled twice. Use a replica set, which can have one member"
)
_NO_TRANSACTIONS = (
    "this MongoDB server is standalone, so it has no transactions, and cannot write documents of the application together with "
    "the store's. Use a replica set, which can have one member"
)


class MongoDBDocuments:
    """Documents in one collection; see the port and the limits of this module.

    Up to 500 inserts are one request; replaced, deleted and, on a replica set, read documents are one request each, 16 at a
    time. `expires` is the date of an index that MongoDB cleans by, about each minute, and by its own clock.
    """

    max_together = MAX_TOGETHER

    def __init__(self, client: "AsyncMongoClient[dict[str, Any]]", address: MongoDBAddress, *, clock: Clock) -> None:
        self._client = client
        self._address = address
        self._clock = clock
        concern = WriteConcern("majority", j=True, wtimeout=round(address.timeout * 1000))
        self._collection: _Collection = client[address.database].get_collection(
            address.collection, write_concern=concern, read_preference=ReadPreference.PRIMARY
        )
        self._application = ApplicationCollections(client, address)
        self._prefix = f"{address.prefix}{_BEHIND}" if address.prefix else ""
        self.limits = shorter(DOCUMENT_LIMITS["MongoDB"], taken=len(self._prefix))
        self._hello: Mapping[str, Any] | None = None

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        names = {self._name(key): key for key in dict.fromkeys(keys) if is_text(key)}
        if not names:
            return {}
        try:
            if await self._is_standalone():
                found = await self._collection.find({"_id": {"$in": list(names)}}).to_list()
            else:
                found = [one for one in await read_all(list(names), self._read, at_once=_AT_ONCE) if one is not None]
        except _LOST as error:
            raise translated(error, reads=True) from error
        return {names[one["_id"]]: Document(body=_body(one), version=one["version"]) for one in found}

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        check_limits(changes, self.limits)
        inserts = (change for change in changes if _is_insert(change))
        others = [[change] for change in changes if not _is_insert(change)]
        requests = [*split(inserts, most=_IN_ONE, size=_BYTES_IN_ONE), *others]
        return await write_requests(changes, requests, self._send, at_once=_AT_ONCE)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        """List keys in the order of their names; see the port. Raises CommitFailed."""
        first = self._name(prefix)
        wanted: dict[str, Any] = {"$gte": first}
        if after:
            wanted |= {"$gt": self._name(after)}
        if first:
            wanted |= {"$lt": first + "\x7f"}  # behind every letter a name has
        if not self._prefix:
            wanted |= {"$regex": f"^[^{_BEHIND}]*$"}  # not what others have behind a prefix
        try:
            found = await self._collection.find({"_id": wanted}, {"_id": 1}).sort("_id", 1).limit(limit).to_list()
        except _LOST as error:
            raise translated(error, reads=True) from error
        return tuple(self._key(one["_id"]) for one in found)

    async def pending(
        self, endpoint: str, before: int, *, after: PendingDocument | None = None, limit: int = 100
    ) -> tuple[PendingDocument, ...]:
        """List entries of the index, which has only pending documents; see the port."""
        behind = order_of(after.since, self._name(after.key)) if after is not None else ""
        wanted = {PENDING_FOR: self._prefix + endpoint, PENDING_AT: {"$gt": behind, "$lt": before_of(before)}}
        try:
            found = await self._collection.find(wanted, {PENDING_AT: 1}).sort(PENDING_AT, 1).limit(limit).to_list()
        except _LOST as error:
            raise translated(error, reads=True) from error
        return tuple(entry_of(one[PENDING_AT], self._key(one["_id"])) for one in found)

    async def why_unlisted(self) -> str:
        """Return why not: without the index each look would read the whole collection."""
        try:
            indexes = (await self._collection.index_information()).values()
        except _LOST as error:
            raise translated(error, reads=True) from error
        if any(list(index["key"]) == _INDEX for index in indexes):
            return ""
        return f"there is no index on `{PENDING_FOR}` and `{PENDING_AT}`: run `onceonly schema create module:endpoint`"

    async def read(self, key: str, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        """Read documents of any collection but the store's; see the port."""
        return await self._application.read(addresses)

    async def save_together(self, change: Change, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write all in one transaction, or none; see the port."""
        check_limits([change], self.limits)
        check_writes(self, change.key, writes)
        return await self._application.write_together(partial(self._write, change), writes)

    def problem_of(self, key: str, write: DocumentWrite) -> str:
        return self._application.problem_of(write)

    async def why_not_together(self) -> str:
        """Return why not; see the port. Raises CommitFailed."""
        try:
            return _NO_TRANSACTIONS if await self._is_standalone() else ""
        except _LOST as error:
            raise translated(error, reads=True) from error

    async def check(self) -> tuple[str, ...]:
        """See the port; warns of a standalone server, and where expired documents stay. Raises SetupError, CommitFailed."""
        try:
            hello = await self._client.admin.command("hello")
            if hello.get("maxWireVersion", 0) < OLDEST:
                raise SetupError(f"{self._address.place} is too old: MongoDB 4.4 or later is needed")
            database = self._client[self._address.database]
            there = await database.list_collections()
            found = [one async for one in there if one["name"] == self._address.collection]
            if not found:
                where = f"{self._address.collection!r} at {self._address.place}"
                raise SetupError(f"collection {where} does not exist: run `onceonly schema create module:endpoint`")
            _refuse(found[0].get("options") or {}, self._address)
            if hello.get("msg") == "isdbgrid":
                await self._refuse_sharding()
            return (*((_STANDALONE,) if _is_alone(hello) else ()), *await self._expiry())
        except _LOST as error:
            raise refused_setup(error, self._address) from error

    async def _is_standalone(self) -> bool:
        if self._hello is None:
            self._hello = await self._client.admin.command("hello")
        return _is_alone(self._hello)

    async def _read(self, name: str) -> dict[str, Any] | None:
        collection = self._collection.with_options(read_concern=ReadConcern("linearizable"))
        try:
            return await collection.find_one({"_id": name}, max_time_ms=round(self._address.timeout * 1000))
        except _LOST as error:
            raise translated(error, reads=True) from error

    async def _send(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        try:
            return [await self._write(changes[0])] if len(changes) == 1 else await self._insert(changes)
        except _LOST as error:
            raise translated(error) from error

    async def _insert(self, changes: Sequence[Change]) -> Sequence[Outcome]:
        """Insert all in one unordered request, which goes on behind what is there already."""
        versions = [uuid4().hex for _ in changes]
        documents = [self._document(change, version) for change, version in zip(changes, versions, strict=True)]
        try:
            await self._collection.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            return _answers(error, versions)
        return [*versions]

    async def _write(self, change: Change, session: AsyncClientSession | None = None) -> Version | None:
        """Write one document, in the transaction of a session if there is one. Raises what the driver raises."""
        version = uuid4().hex
        if _is_insert(change):
            try:
                await self._collection.insert_one(self._document(change, version), session=session)
            except DuplicateKeyError:
                return None
            return version
        wanted = {"_id": self._name(change.key), "version": change.expected}
        if change.body is None:
            gone = await self._collection.delete_one(wanted, session=session)
            return "" if gone.deleted_count else None
        fields = self._fields(change, version)
        left = {name: "" for name in ("body", "bytes", "expires", PENDING_FOR, PENDING_AT) if name not in fields}
        done = await self._collection.update_one(wanted, {"$set": fields, "$unset": left}, session=session)
        return version if done.matched_count else None

    def _document(self, change: Change, version: Version) -> dict[str, Any]:
        return {"_id": self._name(change.key), **self._fields(change, version)}

    def _fields(self, change: Change, version: Version) -> dict[str, Any]:
        value = to_native(change.body or b"", _NATIVE)
        fields: dict[str, Any] = {"version": version}
        fields |= {"bytes": Binary(change.body or b"")} if value is None else {"body": value}
        if change.pending_for:
            fields[PENDING_FOR] = [self._prefix + endpoint for endpoint in change.pending_for]
            fields[PENDING_AT] = order_of(change.pending_since, self._name(change.key))
        if change.expires:
            fields["expires"] = min(_EPOCH + timedelta(milliseconds=min(change.expires, 10**14)), _LATEST)
        return fields

    def _name(self, key: str) -> str:
        return self._prefix + _encode(key)

    def _key(self, name: str) -> str:
        return decode_key(name.removeprefix(self._prefix))

    async def _refuse_sharding(self) -> None:
        name = f"{self._address.database}.{self._address.collection}"
        sharded = await self._client["config"]["collections"].find_one({"_id": name})
        if sharded and list(sharded.get("key") or {}) != ["_id"]:
            raise SetupError(f"{name} is sharded by {list(sharded.get('key') or {})}, so keys are not unique: shard it by _id")

    async def _expiry(self) -> tuple[str, ...]:
        indexes = (await self._collection.index_information()).values()
        if any(list(index["key"]) == [("expires", 1)] and index.get("expireAfterSeconds") == 0 for index in indexes):
            return ()
        advice = "run `onceonly schema create module:endpoint` to create the index on `expires`"
        return (f"expired documents are not deleted: {advice}",)


@asynccontextmanager
async def open_documents(url: str, *, clock: Clock) -> AsyncIterator[MongoDBDocuments]:
    """Open documents at mongodb://user:password@host/database?collection=onceonly&prefix=shop; connects at the first call.

    Options of MongoDB's own URLs (replicaSet, tls, authSource) are passed on. Raises SetupError when the URL is wrong.
    """
    address = read_address(url)
    async with open_client(address) as client:
        yield MongoDBDocuments(client, address, clock=clock)


async def create(url: str) -> None:
    """Make the collection, and the index that expired documents are removed by, where they are missing.

    Raises SetupError, CommitFailed.
    """
    address = read_address(url)
    async with open_client(address) as client:
        database = client[address.database]
        try:
            if address.collection not in await database.list_collection_names():
                await database.create_collection(address.collection)
            await database[address.collection].create_index("expires", expireAfterSeconds=0)
            await database[address.collection].create_index(_INDEX, sparse=True)
        except _LOST as error:
            raise refused_setup(error, address) from error


def _refuse(options: Mapping[str, Any], address: MongoDBAddress) -> None:
    if options.get("capped") or options.get("timeseries") or options.get("viewOn"):
        raise SetupError(f"{address.collection!r} is a capped or time-series collection, or a view: use a plain collection")
    if options.get("collation", {}).get("locale", "simple") != "simple":
        raise SetupError(f"{address.collection!r} has a collation, so different keys may be equal: create it without one")


def _is_alone(hello: Mapping[str, Any]) -> bool:
    return "setName" not in hello and hello.get("msg") != "isdbgrid"


def _answers(error: BulkWriteError, versions: Sequence[Version]) -> Sequence[Outcome]:
    """Return what became of each of many inserts: those without an error of their own were done, if all is confirmed."""
    details = error.details or {}
    if details.get("writeConcernErrors") or "writeErrors" not in details:
        raise OutcomeUnknown(f"MongoDB: {error}") from error
    refused = {each_error["index"]: each_error for each_error in details["writeErrors"]}
    answers: list[Outcome] = []
    for number, version in enumerate(versions):
        wrong = refused.get(number)
        duplicate = wrong is not None and wrong.get("code") == _DUPLICATE_KEY
        answers.append(version if wrong is None else None if duplicate else OutcomeUnknown(f"MongoDB: {wrong.get('errmsg')}"))
    return answers


def _is_insert(change: Change) -> bool:
    return not change.expected and change.body is not None


def _body(found: Mapping[str, Any]) -> bytes:
    return from_native(found["body"]) if "body" in found else bytes(found["bytes"])
