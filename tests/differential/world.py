"""A database with the tables of the programs: it is emptied before each run and read after it, past both sides."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, insert, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from onceonly.sql.database import Database, Source
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA
from tests.differential.models import QUERIES, SEED, Account, Base
from tests.differential.operations import MARIADB, SQLITE
from tests.differential.tools import Read, Run
from tests.sql.harness import opened

Rows = dict[str, list[tuple[Any, ...]]]


@dataclass
class Observed:
    """What can be seen of a program's run on one side."""

    rows: Rows
    reads: dict[int, list[Read]]
    sent: dict[int, list[Any]]
    failed: dict[int, str]
    entities: dict[str, int]
    runs: dict[int, Run] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)


def users_engine(database: str, url: str, **options: Any) -> AsyncEngine:
    """Make an engine as a user would."""
    address = make_url(url)
    if database == MARIADB:
        name, options = "mysql+asyncmy", {"isolation_level": "READ COMMITTED", **options}
    else:
        name = "sqlite+aiosqlite" if database == SQLITE else database
    engine = create_async_engine(address.set(drivername=name, query={}), **options)
    if database == SQLITE:
        event.listen(engine.sync_engine, "connect", _check_foreign_keys)
    return engine


def plain_engine(database: str, url: str, **options: Any) -> AsyncEngine:
    """Make an engine for the reference. On SQLite it begins transactions as SQLAlchemy's documentation advises."""
    engine = users_engine(database, url, **options)
    if database == SQLITE:
        event.listen(engine.sync_engine, "connect", _leave_transactions_to_sqlalchemy)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _check_foreign_keys(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA foreign_keys = ON")


def _leave_transactions_to_sqlalchemy(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA synchronous = OFF")


def _begin_sqlite(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class World:
    """One database, the library on it, and plain engines."""

    def __init__(self, name: str, source: Source, database: Database, engine: AsyncEngine) -> None:
        self.name, self.source, self.database, self.engine = name, source, database, engine

    async def reset(self) -> None:
        """Make all rows those at the start."""
        await self.database.settle()
        async with self.engine.begin() as connection:
            await self._forget_fsync(connection)
            for table in reversed(Base.metadata.sorted_tables):
                await connection.execute(table.delete())
            for kind, rows in SEED.items():
                await connection.execute(insert(kind), rows)

    async def _forget_fsync(self, connection: AsyncConnection) -> None:
        if self.name.startswith("postgresql"):
            await connection.execute(text("SET LOCAL synchronous_commit = off"))

    async def rows(self) -> Rows:
        """Read all rows."""
        await self.database.settle()
        async with self.engine.begin() as connection:
            found = {name: [tuple(row) for row in await connection.execute(text(query))] for name, query in QUERIES.items()}
        found["orders"] = [(*row[:-1], _shown(row[-1])) for row in found["orders"]]
        return found

    async def add(self, account: str, amount: int) -> bool:
        """Add to an account in a transaction of another connection, unless its row is locked."""
        of_account = Account.__table__.c.id == account
        async with self.engine.connect() as connection:
            try:
                await connection.execute(text(f"SELECT id FROM diff_accounts WHERE id = '{account}' FOR UPDATE NOWAIT"))  # noqa: S608 - our own
            except DBAPIError:
                await connection.rollback()
                return False
            await self._forget_fsync(connection)
            added = update(Account.__table__).where(of_account).values(balance=Account.__table__.c.balance + amount)
            done = await connection.execute(added)
            await connection.commit()
            return bool(done.rowcount)


def _shown(tags: Any) -> str:
    """Return a JSON value in one form, however a driver reads it."""
    return json.dumps(json.loads(tags) if isinstance(tags, str) else tags, sort_keys=True)


@asynccontextmanager
async def open_world(name: str, url: str, *, fresh: bool = False) -> AsyncIterator[World]:
    """Open a database that is this test's own, and make the tables. With `fresh` each transaction has its own connection."""
    options = {"poolclass": NullPool} if fresh else {}
    engine = plain_engine(name, url, **options)
    source: Source = users_engine(name, url, **options) if fresh else url
    try:
        async with opened(source) as database:
            await create(database, SCHEMA)
            world = World(name, source, database, engine)
            async with engine.begin() as connection:
                await connection.run_sync(Base.metadata.drop_all)
                await connection.run_sync(Base.metadata.create_all)
            yield world
    finally:
        await engine.dispose()
        if isinstance(source, AsyncEngine):
            await source.dispose()
