"""The SQL subjects of the library, with a constraint that is checked at COMMIT, and emptied in one statement."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar, Self, cast

from sqlalchemy import Column, ForeignKey, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.ports.store import Resources
from onceonly.sql.queue import SCHEMA as QUEUE_SCHEMA
from onceonly.sql.schema import create, create_user_tables
from onceonly.sql.store import SCHEMA as STORE_SCHEMA
from onceonly_conformance import on_sql
from onceonly_conformance.on_sql import TRACES
from tests.sql.emptying import empty

METADATA = MetaData()
TRACES.to_metadata(METADATA)
DEFERRED = Table(
    "deferred",
    METADATA,
    Column("key", String, primary_key=True),
    Column("of", ForeignKey("traces.key", deferrable=True, initially="DEFERRED")),
)


class SqlSubject(on_sql.SqlSubject):
    """Everything there is in one SQL database, named by its URL, or in one SQLite file."""

    metadata: ClassVar[MetaData] = METADATA

    def __init__(self, place: Path | str) -> None:
        super().__init__(place if isinstance(place, str) else f"sqlite:///{place}")

    @classmethod
    @asynccontextmanager
    async def open(cls, place: Path | str) -> AsyncIterator[Self]:
        """Open a database that has the tables; close every connection at the end."""
        async with super().open(place) as subject:  # type: ignore[arg-type]  # see above
            yield subject

    async def refuse(self, resources: Resources) -> None:
        """Break a constraint that is checked at commit only."""
        session = cast("AsyncSession", resources.get(AsyncSession))
        await session.execute(insert(DEFERRED).values(key="x", of="no such key"))

    async def empty(self) -> None:
        """Delete every row of every table."""
        database = await self.database()
        kinds = (STORE_SCHEMA.tables, QUEUE_SCHEMA.tables)
        own = [table for tables in kinds for table in tables(database.prefix, database.schema).sorted_tables]
        await empty(database, (*reversed(self.metadata.sorted_tables), *own))


class ForgettingSubject(on_sql.ForgettingSqlSubject, SqlSubject):
    """A store that another system remembers for."""


class ImpatientSubject(on_sql.ImpatientSqlSubject, SqlSubject):
    """A store whose statements do not wait for long."""


class SqlRings(on_sql.SqlRingSubject, SqlSubject):
    """A store that forgets soon, by the subject's clock. Nobody waits for long."""


async def make_tables(place: Path | str) -> None:
    """Make all tables in a database."""
    async with SqlSubject.open(place) as subject:
        database = await subject.database()
        await create(database, STORE_SCHEMA)
        await create(database, QUEUE_SCHEMA)
        await create_user_tables(database, METADATA)
