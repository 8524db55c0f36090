"""The store of a run, seen past the library: what the endpoints wrote, and what deduplication left next to it."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Protocol

import msgspec
from sqlalchemy import Table, func, select

from onceonly import SetupError
from onceonly.assembly import open_database, schemas, shown
from onceonly.assembly.documents import open_documents
from onceonly.config.location import read_url
from onceonly.demo.audit import JournalRow
from onceonly.demo.books import Books
from onceonly.demo.flights import LEDGER, LOYALTY
from onceonly.demo.legs import EndpointCounts, counted
from onceonly.demo.options import Deduplication
from onceonly.demo.place import DemoUrls, has_prefix
from onceonly.formats.documents import EntityDocument, decode_entity
from onceonly.ports.documents import Change, Documents
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database
from onceonly.sql.schema import create, create_user_tables, drop
from onceonly.sql.store.claims import count_claims
from onceonly.sql.store.tables import tables

PAGE = 100
TRIES = 10


class StoreContents(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the store: what endpoints counted, what deduplication left, and the marks that it keeps on purpose."""

    counted: EndpointCounts
    records: int
    attempts: int
    claims: int = 0
    live: int = 0
    marks: int = 0


class DemoStore(Protocol):
    """A store that a run works on."""

    async def look(self) -> StoreContents:
        """Read all of it. Raises CommitFailed, OutcomeUnknown."""


class TablesDemoStore:
    """A SQL database."""

    def __init__(self, database: Database, place: DemoUrls) -> None:
        """Look into the tables behind the place's prefix."""
        self._database = database
        self._books = Books(place.prefix, place.store)
        self._keeps_claims = place.deduplication is Deduplication.HISTORY

    async def look(self) -> StoreContents:
        """Read the users' tables and count the library's; see the protocol."""
        ours = tables(self._database.prefix, self._database.schema)
        async with self._database.reading() as connection:
            claims = await connection.run_sync(count_claims, ours)
        return StoreContents(
            counted=await self._counted(),
            records=await self._count(ours.records),
            attempts=await self._count(ours.register),
            claims=0 if self._keeps_claims else claims,
            live=await self._count(ours.tokens),
            marks=claims if self._keeps_claims else 0,
        )

    async def _counted(self) -> EndpointCounts:
        books = self._books
        async with self._database.reading() as connection:
            rows = await connection.execute(select(books.journal).order_by(books.journal.c.line))
            journal = [JournalRow(row.endpoint, row.source, row.id, row.mark) for row in rows]
            miles = {
                name: {row.carrier: row.miles for row in await connection.execute(select(table.c.carrier, table.c.miles))}
                for name, table in ((LEDGER, books.ledger), (LOYALTY, books.loyalty))
            }
        return EndpointCounts(journal, miles)

    async def _count(self, table: Table) -> int:
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.count()).select_from(table)) or 0


class DocumentsDemoStore:
    """A service that keeps documents."""

    def __init__(self, documents: Documents, place: DemoUrls) -> None:
        self._documents = documents
        self._keeps_records = place.deduplication is Deduplication.HISTORY

    async def look(self) -> StoreContents:
        """Read every document that a unit may be; see the protocol."""
        found = [document for kind in ("entity/", "message/", "bucket/") async for document in self._read(kind)]
        records = [record for document in found for record in document.records.values()]
        kept = sum(not record.pending for record in records) if self._keeps_records else 0
        return StoreContents(
            counted=counted([document.state for document in found if document.state is not None]),
            records=len(records) - kept,
            attempts=sum(len(document.register) for document in found) + await count_keys(self._documents, "register/"),
            marks=kept,
        )

    async def _read(self, kind: str) -> AsyncIterator[EntityDocument]:
        async for keys in pages(self._documents, kind):
            for key, document in (await self._documents.load(keys)).items():
                yield decode_entity(key, document.body)


async def open_ground(stack: AsyncExitStack, place: DemoUrls) -> DemoStore:
    """Make the tables of a run, or look at the place for its documents; the end of `stack` leaves nothing of them."""
    if read_url(place.store).keeps_documents:
        return DocumentsDemoStore(await open_emptied(stack, place.store), place)
    database = await stack.enter_async_context(open_database(place.store))
    metadata = Books(place.prefix, place.store).metadata

    async def dropped() -> None:
        async with database.writing() as connection:
            await connection.run_sync(metadata.drop_all)
        for schema in schemas("store", "documents"):
            await drop(database, schema)

    stack.push_async_callback(dropped)
    for schema in schemas("store", "documents"):
        await create(database, schema)
    await create_user_tables(database, metadata)
    return TablesDemoStore(database, place)


async def open_dedup(stack: AsyncExitStack, place: DemoUrls) -> Documents | None:
    """Open the documents that hold tokens or marks, if there are any; the end of `stack` leaves nothing of them."""
    if not place.dedup_url:
        return None
    if read_url(place.dedup_url).keeps_documents:
        return await open_emptied(stack, place.dedup_url, is_shared=place.dedup_url == place.store)
    if place.dedup_url != place.store:
        database = await stack.enter_async_context(open_database(place.dedup_url))
        stack.push_async_callback(drop, database, *schemas("documents"))
        await create(database, *schemas("documents"))
    return await stack.enter_async_context(open_documents(place.dedup_url, clock=LIVE.clock))


async def open_emptied(stack: AsyncExitStack, url: str, *, is_shared: bool = False) -> Documents:
    """Open a place for documents, emptied at the end of `stack`. Raises SetupError where other data may be."""
    documents = await stack.enter_async_context(open_documents(url, clock=LIVE.clock))
    if not has_prefix(url) and not is_shared and await documents.keys("", limit=1):
        raise SetupError(f"{shown(url)} is not empty, and the demo empties it: give it a place of its own")
    stack.push_async_callback(empty, documents)
    return documents


async def empty(documents: Documents) -> None:
    """Delete all documents of a place; services whose lists lag are asked again."""
    for _ in range(TRIES):
        if not await documents.keys("", limit=1):
            return
        async for keys in pages(documents, ""):
            found = await documents.load(keys)
            changes = [Change(key=key, body=None, expected=document.version) for key, document in found.items()]
            if changes:
                await documents.save(changes)


async def count_keys(documents: Documents, prefix: str) -> int:
    """Count the documents whose keys begin so."""
    return sum([len(keys) async for keys in pages(documents, prefix)])


async def pages(documents: Documents, prefix: str) -> AsyncIterator[Sequence[str]]:
    """List keys, some at a time."""
    after = ""
    while keys := await documents.keys(prefix, after=after, limit=PAGE):
        yield keys
        after = keys[-1]
