"""The store on documents as a subject of the suites: all its messages are about one entity, which is the business data."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Self, cast

from msgspec.structs import replace

from onceonly.adapters.memory.documents import MemoryDocuments
from onceonly.documents.pending import DocumentPending
from onceonly.documents.store import DocumentStore
from onceonly.model.entities import Entities
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.ports.documents import DocumentLimits, Documents
from onceonly.ports.store import BeginResult, Resources, Unit
from onceonly.sql.database import Database, open_database
from onceonly.sql.store import SqlDocuments
from onceonly_conformance.suite import ENDPOINT
from tests.conformance.memory_subjects import Timed

ENTITY = "everything"
LIMITS = DocumentLimits(service="this service", key=1024, body=1 << 20)
WEEK = timedelta(days=7)


class AboutOneEntity:
    """A unit, seen with messages and records that say nothing of their entity, as the suites make them."""

    def __init__(self, unit: Unit) -> None:
        self.inner, self.key, self.resources = unit, unit.key, unit.resources
        found = unit.found
        pending = tuple(replace(record, unit="") for record in found.pending)
        self.found = BeginResult(_bare(found.new), pending, _bare(found.done), _bare(found.mismatched), found.undecidable)

    async def commit(self, records: Sequence[Record]) -> None:
        """Commit."""
        await self.inner.commit([replace(record, unit=self.key) for record in records])

    def abandon(self) -> None:
        """Give up."""
        self.inner.abandon()


class OneEntityStore(DocumentStore):
    """Reads of every message that it is about the one entity, and lists the records in its document."""

    known: set[Identity]

    async def begin(self, messages: Sequence[Message], *, isolated: bool = False) -> AboutOneEntity:  # type: ignore[override]
        """Begin."""
        self.known.update(message.identity for message in messages)
        return AboutOneEntity(await super().begin([replace(each, unit=ENTITY) for each in messages], isolated=isolated))

    async def forget(self, records: Sequence[Record]) -> None:
        """Forget."""
        await super().forget([replace(record, unit=f"entity/{ENTITY}") for record in records])

    async def fence(self, unit: str, identity: Identity, message: Message | None = None) -> Record | None:
        """Fence."""
        record = await super().fence(f"entity/{ENTITY}", identity, message)
        return record and replace(record, unit="")

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """Look into the document, as only one who knows the messages can."""
        records = (await self.look(f"entity/{ENTITY}")).records
        named = [(identity, records.get(self.name_of(identity))) for identity in self.known]
        found = [kept.record(identity, "") for identity, kept in named if kept]
        return tuple(record for record in found if record.is_pending)


class SearchedEntityStore(OneEntityStore):
    """The same, with the records that a relay finds."""

    pending: DocumentPending

    async def undispatched(self, older_than: int, limit: int) -> tuple[Record, ...]:
        """List what is pending."""
        return _of_no_entity(await self.pending.undispatched(older_than, limit))

    async def take(self, older_than: int, limit: int, *, lease: int, after: Identity | None = None) -> tuple[Record, ...]:
        """Take."""
        return _of_no_entity(await self.pending.take(older_than, limit, lease=lease, after=after))

    async def find(self, identities: Sequence[Identity]) -> tuple[Record, ...]:
        """Find."""
        return _of_no_entity(await self.pending.find(identities))


class DocumentStores(Timed):
    """Document stores of two endpoints on one place for documents."""

    def __init__(self, *, history: timedelta | None) -> None:
        super().__init__()
        self._history = history
        self._known: set[Identity] = set()

    async def documents(self) -> Documents:
        """Open the place."""
        return MemoryDocuments(self.driver, limits=LIMITS)

    async def store(self, endpoint: str = ENDPOINT) -> OneEntityStore:
        """Open a store."""
        store = OneEntityStore(await self.documents(), endpoint, clock=self.clock, history=self._history)
        store.known = self._known
        return store

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Write into the entity."""
        self.write_now(resources.get, key, value)

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Write into the entity."""
        entities = cast("Entities", get(Entities))
        entities.write(ENTITY, json.dumps({**_read(entities.read(ENTITY)), key: value}).encode())

    async def refuse(self, resources: Resources) -> None:
        """Make the entity larger than its document may be."""
        cast("Entities", resources.get(Entities)).write(ENTITY, json.dumps("x" * LIMITS.body).encode())

    async def read(self) -> dict[str, str]:
        """Read the entity."""
        return _read((await (await self.store()).look(f"entity/{ENTITY}")).state)

    async def traces(self) -> int:
        """Count what the documents still know about messages."""
        documents = await self.documents()
        store = await self.store()
        found = [await store.look(key) for key in await documents.keys("entity/")]
        others = [key for key in await documents.keys("") if not key.startswith("entity/")]
        return sum(len(each.records) + len(each.register) for each in found) + len(others)


class SearchedDocumentStores(DocumentStores):
    """The same, with what a relay finds."""

    async def store(self, endpoint: str = ENDPOINT) -> SearchedEntityStore:
        """Open a store."""
        documents = MemoryDocuments(self.driver, limits=LIMITS)
        store = SearchedEntityStore(documents, endpoint, clock=self.clock, history=self._history)
        store.known = self._known
        store.pending = DocumentPending(store, documents)
        return store


class SqlDocumentStores(DocumentStores):
    """The same on documents in a SQL database."""

    database: Database

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, *, history: timedelta | None) -> AsyncIterator[Self]:
        """Open it for one test."""
        subject = cls(history=history)
        subject.database = await open_database(url, clock=subject.clock)
        try:
            yield subject
        finally:
            await subject.database.close()

    async def documents(self) -> Documents:
        """Open the place."""
        return SqlDocuments(self.database, limits=LIMITS)


def _of_no_entity(records: Sequence[Record]) -> tuple[Record, ...]:
    return tuple(replace(record, unit="") for record in records)


def _bare(messages: Sequence[Message]) -> tuple[Message, ...]:
    return tuple(replace(message, unit="") for message in messages)


def _read(state: bytes | None) -> dict[str, str]:
    return cast("dict[str, str]", json.loads(state)) if state else {}
