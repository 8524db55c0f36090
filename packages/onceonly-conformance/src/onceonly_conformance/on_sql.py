"""The store, the queue and the documents on a SQL database, as subjects of their suites. Each opens connections of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, Self, cast

from sqlalchemy import Column, MetaData, String, Table, delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, registry

from onceonly.config.deduplication import ClaimMode
from onceonly.model.record import Record
from onceonly.ports.documents import Documents
from onceonly.ports.store import PendingRecords, Resources
from onceonly.ports.transactions import OpenTransaction
from onceonly.sql.database import Database, open_database
from onceonly.sql.dialect import Dialect
from onceonly.sql.queue import SqlTransport
from onceonly.sql.queue_tables import SCHEMA as QUEUE_SCHEMA
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import (
    DOCUMENTS_SCHEMA,
    SqlAttempts,
    SqlDeadLetters,
    SqlDocuments,
    SqlRegister,
    SqlRing,
    SqlStore,
    SqlTransactions,
)
from onceonly.sql.store.tables import SCHEMA as STORE_SCHEMA
from onceonly.sql.store.tables import tables
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.documents_subject import Moment
from onceonly_conformance.ring_subject import RETENTION_MS
from onceonly_conformance.store_subject import WholeStore
from onceonly_conformance.suite import ENDPOINT

LEASE_SECONDS = 30.0
SMALL = 4096
SCHEMAS = (STORE_SCHEMA, QUEUE_SCHEMA, DOCUMENTS_SCHEMA)
METADATA = MetaData()
TRACES = Table("traces", METADATA, Column("key", String(200), primary_key=True), Column("value", String(200)))
REQUIRED = Table(
    "required", METADATA, Column("key", String(200), primary_key=True), Column("value", String(200), nullable=False)
)
Required: type = registry(metadata=METADATA).mapped(type("Required", (), {"__table__": REQUIRED}))


class SqlSubject:
    """One SQL database, named by its URL. A rule moves its clock."""

    claim_mode: ClassVar[ClaimMode] = ClaimMode.HISTORY
    metadata: ClassVar[MetaData] = METADATA

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        self._opened: list[Database] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Self]:
        """Open a database that has the tables. Closes every connection at the end."""
        subject = cls(url)
        try:
            yield subject
        finally:
            for opened in subject._opened:
                await opened.close()

    async def create(self) -> None:
        database = await self.database()
        for schema in SCHEMAS:
            await create(database, schema)
        await create_user_tables(database, self.metadata)

    async def empty(self) -> None:
        database = await self.database()
        own = [table for schema in SCHEMAS for table in schema.tables(database.prefix, database.schema).sorted_tables]
        async with database.writing() as connection:
            for table in (*reversed(self.metadata.sorted_tables), *own):
                await connection.execute(delete(table))

    async def database(self) -> Database:
        """Open the database as another process would."""
        return await self._open(self.clock)

    async def _open(self, clock: ManualClock) -> Database:
        self._opened.append(await open_database(self.url, clock=clock))
        return self._opened[-1]

    async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        return SqlStore(await self.database(), endpoint, claim_mode=self.claim_mode, clock=self.clock)

    async def transport(self, endpoint: str = ENDPOINT) -> SqlTransport:
        return SqlTransport(await self.database(), endpoint, lease=LEASE_SECONDS, max_body=SMALL, clock=self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> SqlTransport:
        """Open a transport in a process whose clock is ahead. The database's clock is the subject's."""
        database = await self._open(ManualClock(self.clock.now() + milliseconds))
        return SqlTransport(database, endpoint, lease=LEASE_SECONDS, max_body=SMALL, clock=self.clock)

    async def register(self, endpoint: str = ENDPOINT) -> SqlRegister:
        return SqlRegister(await self.database(), endpoint)

    async def dead_letters(self) -> SqlDeadLetters:
        return SqlDeadLetters(await self.database())

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Add a row in the unit's session, as a handler would."""
        session = cast("AsyncSession", resources.get(AsyncSession))
        await session.execute(insert(TRACES).values(key=key, value=value))

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Add a row in the unit's synchronous session."""
        cast("Session", get(Session)).execute(insert(TRACES).values(key=key, value=value))

    async def refuse(self, resources: Resources) -> None:
        """Leave an object without its required value in the session. The commit flushes it, and the database refuses it."""
        cast("AsyncSession", resources.get(AsyncSession)).add(Required(key="x"))

    async def read(self) -> dict[str, str]:
        async with (await self.database()).reading() as connection:
            rows = await connection.execute(select(TRACES.c.key, TRACES.c.value))
            return {row.key: row.value for row in rows}

    def now(self) -> int:
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)

    async def lapse(self) -> None:
        self.clock.advance(int(LEASE_SECONDS * 1000))


class ForgettingSqlSubject(SqlSubject):
    """A store whose messages another system stores."""

    claim_mode: ClassVar[ClaimMode] = ClaimMode.UNTIL_FORGOTTEN

    async def traces(self) -> int:
        """Count what the tables still have about messages."""
        database = await self.database()
        own = tables(database.prefix, database.schema)
        counts = [select(func.count()).select_from(table) for table in (own.claims, own.records, own.register, own.tokens)]
        async with database.reading() as connection:
            return sum([await connection.scalar(count) or 0 for count in counts])


class ImpatientSqlSubject(SqlSubject):
    """A store whose statements do not wait for long."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.url += f"{'&' if '?' in self.url else '?'}timeout=0.3"


class SqlRingSubject(ImpatientSqlSubject):
    """A store with a short retention, by the subject's clock. No statement waits for long."""

    async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        return SqlStore(await self.database(), endpoint, retention=RETENTION_MS, clock=self.clock)

    async def ring(self) -> SqlRing:
        return SqlRing(await self.database(), retention=RETENTION_MS, clock=self.clock)


class SqlTransactionSubject:
    """Transactions of a SQL database. Its own clock decides what is late, so the rules wait."""

    def __init__(self, inner: SqlSubject) -> None:
        self.inner = inner
        self.read = inner.read

    async def transactions(self, endpoint: str = ENDPOINT) -> SqlTransactions:
        return SqlTransactions(await self.inner.database(), endpoint)

    async def store(self) -> WholeStore:
        return await self.inner.store()

    async def write(self, opened: OpenTransaction, key: str, value: str) -> None:
        """Add a row in the transaction's session."""
        await self.inner.write(opened.resources, key, value)

    async def record(self, record: Record) -> Record | None:
        return await found_in(await self.store(), record)

    async def pass_time(self, milliseconds: int) -> None:
        await asyncio.sleep(milliseconds / 1000)


class SqlAttemptSubject(SqlTransactionSubject):
    """Transactions of a SQL database that control messages finish."""

    async def transactions(self, endpoint: str = ENDPOINT) -> SqlTransactions:
        return SqlTransactions(await self.inner.database(), endpoint, has_controls=True)

    async def attempts(self) -> SqlAttempts:
        return SqlAttempts(await self.inner.database())


async def found_in(store: PendingRecords, record: Record) -> Record | None:
    return next(iter(await store.find([record.identity])), None)


class SqlDocumentsSubject(SqlSubject):
    """Documents in a SQL database. `cutting` returns a URL or a dialect by which the next write is cut off."""

    cutting: Callable[[str, Moment], "str | Dialect"]

    async def documents(self) -> Documents:
        return SqlDocuments(await self.database())

    async def cut(self, moment: Moment) -> Documents:
        """Open them with a client that is cut off."""
        through = self.cutting(self.url, moment)
        if isinstance(through, str):
            self._opened.append(await open_database(through, clock=self.clock))
        else:
            (await self.database()).dialect = through
        return SqlDocuments(self._opened[-1])

    async def missing(self) -> Documents:
        self._opened.append(await open_database(self.url, clock=self.clock, prefix="missing_"))
        return SqlDocuments(self._opened[-1])

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass, and delete the documents that have expired."""
        self.clock.advance(milliseconds)
        await SqlDocuments(await self.database()).remove_expired()
