"""Documents of the application in MongoDB: any collection of the store's database, in one transaction with the store's own.

A document of the application has no field of ours. It is read with its `_id`. Its version is a hash of its BSON as it was read.
The transaction reads it again and compares: its snapshot is then the one that the writes are checked against, so a change after
it is a write conflict. Equal content is the same version, which is right here: nothing else of the document could have been
read. For the same reason there is nowhere to put an expiry: a TTL index on a field of the document is the application's own.

The transaction has read concern "snapshot", and its commit waits for the journals of a majority. Until the commit is sent
nothing can have happened, so each error is definite. A transaction that the server gave up for a write conflict is begun again.
The driver repeats a commit without an answer once, which is safe: the server does not commit a transaction twice. It repeats no
transaction. Whatever goes wrong with the commit itself leaves the outcome unknown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec
from bson import CodecOptions, encode
from bson.raw_bson import RawBSONDocument
from msgspec import Raw
from pymongo import AsyncMongoClient, DeleteOne, InsertOne, ReadPreference, ReplaceOne, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from onceonly.adapters.mongodb.address import MongoDBAddress
from onceonly.adapters.mongodb.client import translated
from onceonly.adapters.mongodb.extended_json import NotJson, body_of, fields_of, with_widths
from onceonly.documents.bulk import read_all
from onceonly.documents.clients import DRIVER_FAULTS
from onceonly.model.errors import CommitFailed, CommitRefused, LockTimeout, OutcomeUnknown
from onceonly.ports.documents import Document, DocumentAddress, DocumentWrite, Version

MAX_TOGETHER = 100
MOST_BYTES = 16 * 1024 * 1024
"""The size of a document in BSON."""
ATTEMPTS, FIRST_PAUSE_SECONDS = 6, 0.005
"""How often a transaction begins that loses to others, and the pause after the first; each later pause is twice as long."""
_AT_ONCE = 16
_LONGEST = 235  # bytes of database, dot and collection; MongoDB 4.4 takes 255 where it is not sharded
_LOST: tuple[type[Exception], ...] = (PyMongoError, *DRIVER_FAULTS)
_RAW: "CodecOptions[RawBSONDocument]" = CodecOptions(document_class=RawBSONDocument)
_DUPLICATE_KEY, _WRITE_CONFLICT = 11000, 112
_NEVER = {
    52,  # DollarPrefixedFieldName
    61,  # ShardKeyNotFound
    73,  # InvalidNamespace
    121,  # DocumentValidationFailure
    166,  # CommandNotSupportedOnView
    257,  # TransactionTooLarge
    263,  # OperationNotSupportedInTransaction
    10334,  # BSONObjectTooLarge
    17280,  # KeyTooLong
    17419,  # the document would grow too large
}
"""Codes of writes that the server never takes."""

Fields = dict[str, Any]
WriteOwn = Callable[[AsyncClientSession], Awaitable[Version | None]]
"""Writes the store's own document in a transaction: its new version, or None when it had another one."""
_Operation = InsertOne[Fields] | ReplaceOne[Fields] | DeleteOne


class _LostRace(Exception):
    """Another transaction was faster; this one is undone."""


class _ReadItem(NamedTuple):
    version: Version
    raw: bytes


class ApplicationCollections:
    """The collections of a database that are not the store's own."""

    def __init__(self, client: "AsyncMongoClient[Fields]", address: MongoDBAddress) -> None:
        self._client = client
        self._address = address
        self._database = client[address.database]

    async def read(self, addresses: Sequence[DocumentAddress]) -> Mapping[DocumentAddress, Document]:
        """Read documents, each on its own; see the port. Raises CommitFailed, CommitRefused."""
        for address in addresses:
            if problem := self.problem_of_address(address):
                raise CommitRefused(f"cannot read document {_shown(address)}: {problem}")
        found = await read_all(list(dict.fromkeys(addresses)), self._read, at_once=_AT_ONCE)
        return {address: document for address, document in found if document is not None}

    async def write_together(self, write_own: WriteOwn, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write all in one transaction, or none; see the port. `problem_of` finds no problem in them.

        Raises CommitFailed, CommitRefused, LockTimeout, OutcomeUnknown.
        """
        pause = FIRST_PAUSE_SECONDS
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._attempt(write_own, writes)
            except _LostRace:
                await asyncio.sleep(pause)
                pause *= 2
        try:
            return await self._attempt(write_own, writes)
        except _LostRace as error:
            raise LockTimeout(f"another transaction holds a document, after {ATTEMPTS} attempts: {error}") from error

    def problem_of(self, write: DocumentWrite) -> str:
        """Return why MongoDB would never take it; see the port."""
        problem = self.problem_of_address(write.address)
        return problem or ("" if write.body is None else _problem_of_body(write.address.key[0], write.body))

    def problem_of_address(self, address: DocumentAddress) -> str:
        """Return why there cannot be such a document, or ""."""
        own, name, key = self._address.collection, address.collection, address.key[0]
        size = len(f"{self._address.database}.{name}".encode())
        problems = (
            (not name, f"name its collection with collection=; {own!r} has the store's own documents"),
            (name == own, f"the collection {own!r} has the store's own documents: use another one"),
            (not _is_collection(name), f"MongoDB has no collection with the name {name!r:.80}"),
            (size > _LONGEST, f"database and collection have names of {size} bytes; the limit of MongoDB is {_LONGEST}"),
            (len(address.key) > 1, "its key has several parts, and the `_id` of a document is one value"),
            (isinstance(key, int) and not -(2**63) <= key < 2**63, "its key is an integer of more than 64 bits"),
        )
        return next((problem for is_wrong, problem in problems if is_wrong), "")

    async def _read(self, address: DocumentAddress) -> tuple[DocumentAddress, Document | None]:
        collection = self._raw(address.collection).with_options(read_concern=ReadConcern("linearizable"))
        try:
            found = await collection.find_one({"_id": address.key[0]}, max_time_ms=self._milliseconds())
        except _LOST as error:
            raise translated(error, reads=True) from error
        if found is None:
            return address, None
        try:
            body, _ = body_of(bytes(found.raw))
        except NotJson as error:
            raise CommitRefused(f"document {_shown(address)} {error}") from error
        return address, Document(body=_with_key(address.key[0], body), version=_version(bytes(found.raw)))

    async def _attempt(self, write_own: WriteOwn, writes: Sequence[DocumentWrite]) -> Version | None:
        is_sent = False
        try:
            async with self._client.start_session() as session:  # its end aborts what is not committed
                await session.start_transaction(
                    read_concern=ReadConcern("snapshot"),
                    write_concern=WriteConcern("majority", j=True, wtimeout=self._milliseconds()),
                    read_preference=ReadPreference.PRIMARY,
                    max_commit_time_ms=self._milliseconds(),
                )
                version = await self._write(session, write_own, writes)
                if version is None:
                    return None
                # Crash here: nothing is committed, and the server forgets the transaction after its time.
                is_sent = True
                await session.commit_transaction()
        except _LOST as error:
            if is_sent:
                raise OutcomeUnknown(f"MongoDB: {error}") from error
            raise _before_commit(error) from error
        return version

    async def _write(self, session: AsyncClientSession, write_own: WriteOwn, writes: Sequence[DocumentWrite]) -> Version | None:
        """Write all of it into the transaction. Returns None when a document has another version.

        The order is the same for all, so that of two transactions one gets through.
        """
        collections = [(name, _of_collection(name, writes)) for name in sorted({write.address.collection for write in writes})]
        before: dict[DocumentAddress, _ReadItem] = {}
        for name, some in collections:
            before.update(await self._found(session, name, [write.address for write in some if write.expected]))
        if any(write.expected and _version_in(before, write) != write.expected for write in writes):
            return None
        version = await write_own(session)
        if version is None:
            return None
        for name, some in collections:
            if not await self._write_some(session, name, some, before):
                return None
        return version

    async def _found(
        self, session: AsyncClientSession, name: str, addresses: Sequence[DocumentAddress]
    ) -> Mapping[DocumentAddress, _ReadItem]:
        if not addresses:
            return {}
        by_key = {address.key[0]: address for address in addresses}
        there = await self._raw(name).find({"_id": {"$in": list(by_key)}}, session=session).to_list()
        return {by_key[each["_id"]]: _ReadItem(_version(raw), raw) for each in there for raw in [bytes(each.raw)]}

    async def _write_some(
        self,
        session: AsyncClientSession,
        name: str,
        writes: Sequence[DocumentWrite],
        before: Mapping[DocumentAddress, _ReadItem],
    ) -> bool:
        operations = [_operation(write, before.get(write.address)) for write in writes]
        try:
            done = await self._database[name].bulk_write(operations, session=session)
        except BulkWriteError as error:
            return _refusal(error, writes)
        return done.matched_count + done.upserted_count + done.inserted_count + done.deleted_count == len(writes)

    def _raw(self, name: str) -> AsyncCollection[RawBSONDocument]:
        return self._database[name].with_options(codec_options=_RAW, read_preference=ReadPreference.PRIMARY)

    def _milliseconds(self) -> int:
        return round(self._address.timeout * 1000)


def _is_collection(name: str) -> bool:
    """Return whether a collection of users' can have this name."""
    is_odd = any(part in name for part in ("$", "\0", "..")) or name.startswith((".", "system.")) or name.endswith(".")
    return bool(name) and not is_odd


def _problem_of_body(key: str | int, body: bytes) -> str:
    try:
        fields = fields_of(body)
        size = len(encode({**fields, "_id": key}))
    except NotJson as error:
        return f"it {error}"
    except _LOST as error:
        return f"it cannot be encoded: {error}"
    if not _is_key_value(fields.get("_id", key), key):
        return f"its field `_id` is {fields['_id']!r:.80}, and its key is {key!r:.80}"
    return f"it has {size:,} bytes in MongoDB; the limit is {MOST_BYTES:,}" if size > MOST_BYTES else ""


def _is_key_value(found: object, key: str | int) -> bool:
    """Return whether this value is the key. 7.0 and true are not the keys 7 and 1."""
    is_type = isinstance(found, str) if isinstance(key, str) else isinstance(found, int) and not isinstance(found, bool)
    return is_type and found == key


def _with_key(key: str | int, body: bytes) -> bytes:
    return msgspec.json.encode({"_id": key, **msgspec.json.decode(body, type=dict[str, Raw])})


def _of_collection(name: str, writes: Iterable[DocumentWrite]) -> list[DocumentWrite]:
    some = [write for write in writes if write.address.collection == name]
    return sorted(some, key=lambda write: (isinstance(write.address.key[0], str), *write.address.key))


def _version(raw: bytes) -> Version:
    return blake2b(raw, digest_size=16).hexdigest()


def _version_in(before: Mapping[DocumentAddress, _ReadItem], write: DocumentWrite) -> Version | None:
    found = before.get(write.address)
    return None if found is None else found.version


def _operation(write: DocumentWrite, found: _ReadItem | None) -> _Operation:
    key = {"_id": write.address.key[0]}
    if write.body is None:
        return DeleteOne(key)
    fields = fields_of(write.body)
    if found is not None:
        _, old = body_of(found.raw)
        fields = with_widths(fields, old)
    document = {**key, **fields, **key}  # first, and of the type of the key
    if write.expected == "":
        return InsertOne(document)
    return ReplaceOne(key, document, upsert=write.expected is None)


def _refusal(error: BulkWriteError, writes: Sequence[DocumentWrite]) -> bool:
    """Return that a document is there that must not exist. Raises for every other refusal of a write."""
    wrong: Mapping[str, Any] = next(iter((error.details or {}).get("writeErrors", ())), {})
    write, text = writes[wrong.get("index", 0)], f"MongoDB: {wrong.get('errmsg') or error}"
    if wrong.get("code") == _WRITE_CONFLICT:
        raise _LostRace(text) from error
    if wrong.get("code") == _DUPLICATE_KEY and _is_key(wrong):
        if write.expected is None:
            raise _LostRace(text) from error
        return False
    if wrong.get("code") in {_DUPLICATE_KEY, *_NEVER}:
        raise CommitRefused(f"document {_shown(write.address)}: {text}") from error
    raise CommitFailed(text) from error


def _is_key(wrong: Mapping[str, Any]) -> bool:
    """Return whether it is the `_id` that exists, and not what another unique index is about."""
    if "keyPattern" in wrong:
        return list(wrong["keyPattern"]) == ["_id"]
    return "index: _id_ " in str(wrong.get("errmsg"))


def _before_commit(error: Exception) -> Exception:
    """Return what an error means as long as the commit is not sent: nothing has happened."""
    text = f"MongoDB: {error}"
    if isinstance(error, OperationFailure):
        if error.has_error_label("TransientTransactionError"):
            return _LostRace(text)
        if error.code in _NEVER:
            return CommitRefused(text)
    return CommitFailed(text)


def _shown(address: DocumentAddress) -> str:
    parts = address.key[0] if len(address.key) == 1 else address.key
    return f"{parts!r:.80}" + (f" of {address.collection!r:.80}" if address.collection else "")
