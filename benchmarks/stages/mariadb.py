"""A MariaDB database of this benchmark's own: made, emptied between runs, read, and dropped."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from benchmarks.stages.database import KEPT, make_tables


class MariaDBDatabase:
    """The database, seen from the parent."""

    def __init__(self, url: str, name: str, engine: AsyncEngine, version: str) -> None:
        """Stand on what `opened` created."""
        self.url = url
        self.version = version
        self._name = name
        self._engine = engine

    async def prepare(self, module: str) -> None:
        """Nothing: the rows of this database have no packages with tables of their own."""

    async def empty(self) -> None:
        """Delete what earlier runs left in any table."""
        tables = text("SELECT table_name FROM information_schema.tables WHERE table_schema = :name")
        async with self._engine.connect() as connection:
            for (table,) in (await connection.execute(tables, {"name": self._name})).all():
                if not KEPT.search(table):
                    await connection.execute(text(f"TRUNCATE `{self._name}`.`{table}`"))

    async def written(self, tag: str) -> list[str]:
        """Read the orders that a run wrote."""
        query = text(f"SELECT order_id FROM `{self._name}`.baseline_order WHERE order_id LIKE :orders")  # noqa: S608 - own name
        async with self._engine.connect() as connection:
            return list((await connection.execute(query, {"orders": f"{tag}-%"})).scalars())

    async def wal(self) -> int:
        """Read how many bytes the server has written to its redo log; other databases of the server write there too."""
        return await self._status("Innodb_os_log_written")

    async def commits(self) -> int:
        """Read how many times COMMIT was executed; those of other databases of the server count as well."""
        return await self._status("Com_commit")

    async def _status(self, name: str) -> int:
        query = text("SELECT variable_value FROM information_schema.global_status WHERE variable_name = :name")
        async with self._engine.connect() as connection:
            return int((await connection.execute(query, {"name": name})).scalar_one())


@asynccontextmanager
async def opened(server_url: str) -> AsyncIterator[MariaDBDatabase]:
    """Make a database with the scenario's and the library's tables, and drop it at the end. Raises a driver's errors."""
    name = f"onceonly_bench_{os.getpid()}_{uuid4().hex[:8]}"
    server = make_url(server_url).set(drivername="mysql+asyncmy", database="")
    engine = create_async_engine(server, isolation_level="AUTOCOMMIT")
    try:
        async with engine.connect() as connection:
            version = str((await connection.execute(text("SELECT version()"))).scalar_one())
            await connection.execute(text(f"CREATE DATABASE `{name}`"))
        try:
            url = make_url(server_url).set(drivername="mariadb", database=name).render_as_string(hide_password=False)
            await make_tables(url)
            yield MariaDBDatabase(url, name, engine, version)
        finally:
            async with engine.connect() as connection:
                await connection.execute(text(f"DROP DATABASE `{name}`"))
    finally:
        await engine.dispose()
