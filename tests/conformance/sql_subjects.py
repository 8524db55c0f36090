"""SQL adapters as subjects of the suites: each opens a database object, and so connections, of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Self, cast

from sqlalchemy import Column, ForeignKey, MetaData, String, Table, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from onceonly.model.message import Message
from onceonly.model.record import Effect, Record
from onceonly.model.ring import ring_key
from onceonly.ports.store import Resources
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA as QUEUE_SCHEMA
from onceonly.sql.queue import SqlTransport
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SCHEMA as STORE_SCHEMA
from onceonly.sql.store import ClaimMode, SqlDeadLetters, SqlRing, SqlStore
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import tables
from onceonly.testing.clock import ManualClock
from onceonly.testing.ring_subject import RETENTION_MS
from onceonly.testing.suite import ENDPOINT
from tests.sql.emptying import empty

LEASE = 30.0
SMALL = 4096
METADATA = MetaData()
TRACES = Table("traces", METADATA, Column("key", String(200), primary_key=True), Column("value", String(200)))
DEFERRED = Table(
    "deferred",
    METADATA,
    Column("key", String, primary_key=True),
    Column("of", ForeignKey(TRACES.c.key, deferrable=True, initially="DEFERRED")),
)


class SqlSubject:
    """Everything there is in one SQL database, named by its URL, or in one SQLite file."""

    claim_mode: ClassVar[ClaimMode] = ClaimMode.HISTORY

    def __init__(self, place: Path | str) -> None:
        self.clock = ManualClock()
        self.url = place if isinstance(place, str) else f"sqlite:///{place}"
        self._opened: list[Database] = []

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Path | str) -> AsyncIterator[Self]:
        """Open a database that has the tables; close every connection at the end."""
        subject = cls(place)
        try:
            yield subject
        finally:
            for opened in subject._opened:
                await opened.close()

    async def database(self) -> Database:
        """Open the database as a process of its own would."""
        self._opened.append(await open_database(self.url, clock=self.clock))
        return self._opened[-1]

    async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        """Open a store."""
        return SqlStore(await self.database(), endpoint, claim_mode=self.claim_mode, clock=self.clock)

    async def transport(self, endpoint: str = ENDPOINT) -> SqlTransport:
        """Open a transport."""
        return SqlTransport(await self.database(), endpoint, lease=LEASE, max_body=SMALL, clock=self.clock)

    async def ahead(self, endpoint: str, milliseconds: int) -> SqlTransport:
        """Open a transport in a process whose clock is ahead; the database's clock is the subject's."""
        self._opened.append(await open_database(self.url, clock=ManualClock(self.clock.now() + milliseconds)))
        return SqlTransport(self._opened[-1], endpoint, lease=LEASE, max_body=SMALL, clock=self.clock)

    async def dead_letters(self) -> SqlDeadLetters:
        """Open the dead letters."""
        return SqlDeadLetters(await self.database())

    async def write(self, resources: Resources, key: str, value: str) -> None:
        """Add a row in the unit's session, as a handler would."""
        session = cast("AsyncSession", resources.get(AsyncSession))
        await session.execute(insert(TRACES).values(key=key, value=value))

    def write_now(self, get: Callable[[type], object], key: str, value: str) -> None:
        """Add a row in the unit's synchronous session."""
        cast("Session", get(Session)).execute(insert(TRACES).values(key=key, value=value))

    async def refuse(self, resources: Resources) -> None:
        """Break a constraint that is checked at commit only."""
        session = cast("AsyncSession", resources.get(AsyncSession))
        await session.execute(insert(DEFERRED).values(key="x", of="no such key"))

    async def read(self) -> dict[str, str]:
        """Read the committed rows."""
        async with (await self.database()).reading() as connection:
            rows = await connection.execute(select(TRACES.c.key, TRACES.c.value))
            return {row.key: row.value for row in rows}

    def now(self) -> int:
        """Give the time."""
        return self.clock.now()

    async def pass_time(self, milliseconds: int) -> None:
        """Let time pass."""
        self.clock.advance(milliseconds)

    async def lapse(self) -> None:
        """Let every lease end."""
        self.clock.advance(int(LEASE * 1000))

    async def empty(self) -> None:
        """Delete every row of every table."""
        database = await self.database()
        kinds = (STORE_SCHEMA.tables, QUEUE_SCHEMA.tables)
        own = [table for tables in kinds for table in tables(database.prefix, database.schema).sorted_tables]
        await empty(database, (DEFERRED, TRACES, *own))


class ForgettingSubject(SqlSubject):
    """A store that another system remembers for."""

    claim_mode = ClaimMode.UNTIL_FORGOTTEN

    async def traces(self) -> int:
        """Count what the tables still know about messages."""
        database = await self.database()
        own = tables(database.prefix, database.schema)
        counts = [select(func.count()).select_from(table) for table in (own.claims, own.records, own.register, own.tokens)]
        async with database.reading() as connection:
            return sum([await connection.scalar(count) or 0 for count in counts])


class SqlRings(SqlSubject):
    """A store that forgets soon, by the subject's clock. Nobody waits for long."""

    def __init__(self, place: Path | str) -> None:
        super().__init__(place)
        self.url += f"{'&' if '?' in self.url else '?'}timeout=0.3"

    async def store(self, endpoint: str = ENDPOINT) -> SqlStore:
        """Open a store."""
        return SqlStore(await self.database(), endpoint, retention=RETENTION_MS, clock=self.clock)

    async def ring(self) -> SqlRing:
        """Open the ring."""
        return SqlRing(await self.database(), retention=RETENTION_MS, clock=self.clock)

    async def claim_as_before(self, *messages: Message, decided: tuple[Effect, ...] = ()) -> None:
        """Write the rows."""
        database, bucketing = await self.database(), await (await self.ring()).bucketing()
        own = tables(database.prefix, database.schema)
        async with database.writing() as connection:
            for each in messages:
                key = ring_key(ENDPOINT, each.identity, each.former_instant)
                bucket = own.buckets[bucketing.bucket(each.former_instant)]
                await connection.execute(insert(bucket).values(key=key, fingerprint=each.fingerprint))
                row = row_of(ENDPOINT, Record(each.identity, decided), self.now(), key)
                await connection.execute(insert(own.records).values(**row))

    async def is_claimed_as_before(self, message: Message) -> bool:
        """Look for the row."""
        database, bucketing = await self.database(), await (await self.ring()).bucketing()
        bucket = tables(database.prefix, database.schema).buckets[bucketing.bucket(message.former_instant)]
        key = ring_key(ENDPOINT, message.identity, message.former_instant)
        async with database.reading() as connection:
            return await connection.scalar(select(bucket.c.fingerprint).where(bucket.c.key == key)) == message.fingerprint


async def make_tables(place: Path | str) -> None:
    """Make all tables in a database."""
    async with SqlSubject.open(place) as subject:
        database = await subject.database()
        await create(database, STORE_SCHEMA)
        await create(database, QUEUE_SCHEMA)
        await create_user_tables(database, METADATA)
