"""The store of a run, read without the library's ports: what the endpoints wrote, and what deduplication left."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec
from sqlalchemy import Table, func, select

from onceonly import SetupError
from onceonly.assembly import open_database, schemas, shown
from onceonly.assembly.documents import create as create_place
from onceonly.assembly.documents import open_documents
from onceonly.config.location import read_url
from onceonly.formats.documents import EntityDocument, decode_entity
from onceonly.ports.documents import Change, Documents
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables, drop
from onceonly.sql.store.claims import count_claims
from onceonly.sql.store.tables import tables
from onceonly.systems import Family
from onceonly_demo.audit import JournalRow
from onceonly_demo.entity_handlers import EndpointCounts, read_entities
from onceonly_demo.flight_documents import FlightDocuments, count_half_batches
from onceonly_demo.flights import LEDGER, LOYALTY
from onceonly_demo.locations import Locations, has_prefix
from onceonly_demo.options import Deduplication
from onceonly_demo.table_handlers import DemoTables

PAGE = 100
ATTEMPTS = 10


class StoreContents(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the store: what endpoints counted, what deduplication left, and the marks that it keeps on purpose."""

    counted: EndpointCounts
    records: int
    attempts: int
    claims: int = 0
    live: int = 0
    marks: int = 0
    half_batches: int = 0


class Backend(Protocol):
    """The store of a run."""

    async def read(self) -> StoreContents:
        """Read all of it. Raises CommitFailed, OutcomeUnknown."""


class SqlBackend:
    """A SQL database."""

    def __init__(self, database: Database, locations: Locations) -> None:
        self._database = database
        self._tables = DemoTables(locations.prefix, locations.store)
        self._keeps_claims = locations.deduplication is Deduplication.HISTORY

    async def read(self) -> StoreContents:
        """Read the demo's tables and count the rows of the library's; see the protocol."""
        ours = tables(self._database.prefix, self._database.schema)
        async with self._database.reading() as connection:
            claims = await connection.run_sync(count_claims, ours)
        return StoreContents(
            counted=await self._read_tables(),
            records=await self._count(ours.records),
            attempts=await self._count(ours.register),
            claims=0 if self._keeps_claims else claims,
            live=await self._count(ours.tokens),
            marks=claims if self._keeps_claims else 0,
        )

    async def _read_tables(self) -> EndpointCounts:
        async with self._database.reading() as connection:
            rows = await connection.execute(select(self._tables.journal).order_by(self._tables.journal.c.line))
            journal = [JournalRow(row.endpoint, row.source, row.id, row.mark) for row in rows]
            miles = {
                name: {row.carrier: row.miles for row in await connection.execute(select(table.c.carrier, table.c.miles))}
                for name, table in ((LEDGER, self._tables.ledger), (LOYALTY, self._tables.loyalty))
            }
        return EndpointCounts(journal, miles)

    async def _count(self, table: Table) -> int:
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.count()).select_from(table)) or 0


class DocumentsBackend:
    """A document service."""

    def __init__(self, documents: Documents, locations: Locations, flights: FlightDocuments | None) -> None:
        self._documents = documents
        self._flights = flights
        self._keeps_records = locations.deduplication is Deduplication.HISTORY

    async def read(self) -> StoreContents:
        """Read every document that a unit may have written; see the protocol."""
        keyed = [each for kind in ("entity/", "message/", "bucket/") async for each in self._read(kind)]
        found = [document for _, document in keyed]
        states = [(key, document.state) for key, document in keyed if document.state is not None]
        records = [record for document in found for record in document.records.values()]
        kept = sum(not record.pending for record in records) if self._keeps_records else 0
        return StoreContents(
            counted=read_entities([state for _, state in states]),
            records=len(records) - kept,
            attempts=sum(len(document.register) for document in found) + await count_keys(self._documents, "register/"),
            marks=kept,
            half_batches=await count_half_batches(self._flights, self._documents, states) if self._flights else 0,
        )

    async def _read(self, kind: str) -> AsyncIterator[tuple[str, EntityDocument]]:
        async for keys in pages(self._documents, kind):
            for key, document in (await self._documents.load(keys)).items():
                yield key, decode_entity(key, document.body)


async def open_backend(stack: AsyncExitStack, locations: Locations) -> Backend:
    """Open the store of a run and create its tables. The end of `stack` deletes its data."""
    if read_url(locations.store).family is Family.DOCUMENTS:
        flights = FlightDocuments(locations.prefix, locations.collection) if locations.documents else None
        return DocumentsBackend(await open_emptied(stack, locations.store, flights=flights), locations, flights)
    database = await stack.enter_async_context(open_database(locations.store))
    metadata = DemoTables(locations.prefix, locations.store).metadata

    async def dropped() -> None:
        async with database.writing() as connection:
            await connection.run_sync(metadata.drop_all)
        for schema in schemas("store", "documents"):
            await drop(database, schema)

    stack.push_async_callback(dropped)
    for schema in schemas("store", "documents"):
        await create(database, schema)
    await create_user_tables(database, metadata)
    return SqlBackend(database, locations)


async def open_dedup(stack: AsyncExitStack, locations: Locations) -> Documents | None:
    """Open the documents with tokens or marks, if there are any. The end of `stack` deletes them."""
    if not locations.dedup_url:
        return None
    if read_url(locations.dedup_url).family is Family.DOCUMENTS:
        if locations.dedup_url == locations.store:  # what opened that deletes all of it
            return await open_created(stack, locations.dedup_url)
        return await open_emptied(stack, locations.dedup_url)
    if locations.dedup_url != locations.store:
        database = await stack.enter_async_context(open_database(locations.dedup_url))
        stack.push_async_callback(drop, database, *schemas("documents"))
        await create(database, *schemas("documents"))
    return await stack.enter_async_context(open_documents(locations.dedup_url, clock=LIVE.clock))


async def open_emptied(stack: AsyncExitStack, url: str, *, flights: FlightDocuments | None = None) -> Documents:
    """Open documents, which the end of `stack` deletes. Raises SetupError if there may be other data."""
    documents = await open_created(stack, url)
    if not has_prefix(url) and await documents.keys("", limit=1):
        raise SetupError(f"{shown(url)} is not empty, and the demo deletes everything in it: choose an empty one")
    if flights is not None:
        await flights.check(documents)
    stack.push_async_callback(empty, documents)
    if flights is not None:
        stack.push_async_callback(_delete_flights, documents, flights)
    return documents


async def open_created(stack: AsyncExitStack, url: str) -> Documents:
    """Open documents. A missing table, collection, container or bucket is created, and stays: others may use it by then."""
    try:
        return await stack.enter_async_context(open_documents(url, clock=LIVE.clock))
    except SetupError:
        await create_place(url)  # it raises the same error if that is not what is wrong
    return await stack.enter_async_context(open_documents(url, clock=LIVE.clock))


async def empty(documents: Documents) -> None:
    """Delete all documents. Some services list a document late, so the list is read again."""
    for _ in range(ATTEMPTS):
        if not await documents.keys("", limit=1):
            return
        async for keys in pages(documents, ""):
            found = await documents.load(keys)
            changes = [Change(key=key, body=None, expected=document.version) for key, document in found.items()]
            if changes:
                await documents.save(changes)


async def _delete_flights(documents: Documents, flights: FlightDocuments) -> None:
    async for keys in pages(documents, "entity/"):
        for key in keys:
            await flights.delete(documents, key)


async def count_keys(documents: Documents, prefix: str) -> int:
    """Count the documents whose keys have this prefix."""
    return sum([len(keys) async for keys in pages(documents, prefix)])


async def pages(documents: Documents, prefix: str) -> AsyncIterator[Sequence[str]]:
    """List keys, some at a time."""
    after = ""
    while keys := await documents.keys(prefix, after=after, limit=PAGE):
        yield keys
        after = keys[-1]
