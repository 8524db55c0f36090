"""A PostgreSQL database of this benchmark's own: made, emptied between runs, read, and dropped."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg

from benchmarks.scenario import ENTITY, OUTBOX, Base
from benchmarks.worker import find_optional
from onceonly.assembly import open_database, schemas

GLANCE = 0.01  # seconds
TRUNCATIONS = 5  # attempts to empty the tables: a deadlock with a reader ends one of them
KEPT = re.compile(r"schema|version|migration|_queues$|_subscriptions$")
"""Tables that say what a database is like, and not what happened in it."""


class BackendDatabase:
    """The database, seen from the parent. Counters are read through another one, so that reading counts nothing here."""

    def __init__(self, url: str, server: asyncpg.Connection, own: asyncpg.Connection, *, server_url: str) -> None:
        """Stand on what `opened` connected."""
        self.url = url
        self._server_url = server_url
        self._server = server
        self.own = own
        self._name = urlsplit(url).path.lstrip("/")
        self.looks = 0
        self._prepared: set[str] = set()

    async def empty(self) -> None:
        """Delete what earlier runs left in any table, of whatever library. A process that is ending may still read them."""
        found = await self.own.fetch(
            "select schemaname, tablename from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
        )
        tables = [f'"{schema}"."{table}"' for schema, table in found if not KEPT.search(table)]
        for left in reversed(range(TRUNCATIONS)):
            try:
                await self.own.execute(f"truncate {', '.join(tables)} cascade")
            except asyncpg.DeadlockDetectedError:
                if not left:
                    raise
            else:
                return

    async def prepare(self, module: str) -> None:
        """Make the tables of a row's package, once."""
        prepare = None if module in self._prepared else find_optional(f"{module}:prepare")
        self._prepared.add(module)
        if prepare is not None:
            await prepare(self.url)

    async def written(self, tag: str) -> list[str]:
        """Read the orders that a run wrote."""
        found = await self.own.fetch("select order_id from baseline_order where order_id like $1", f"{tag}-%")
        kept = await self.own.fetch("select convert_from(key, 'UTF8') from onceonly_entities")
        entities = [key.removeprefix(ENTITY) for (key,) in kept]
        return [*(order_id for (order_id,) in found), *(order_id for order_id in entities if order_id.startswith(f"{tag}-"))]

    async def store_finished(self, stored: int, wanted: int) -> None:
        """Make it look as if so many messages had been handled long ago: claims, outbox rows and orders."""
        numbers = f"generate_series({stored + 1}, {wanted}) n"
        for statement in (
            f"insert into onceonly_claims(key, fingerprint) select md5(n::text)::uuid, n from {numbers}",  # noqa: S608 - numbers
            f"insert into baseline_outbox(id, dispatched_at) select md5(n::text)::uuid::text, now() from {numbers}",  # noqa: S608 - numbers
            f"insert into baseline_order(order_id) select 'finished-' || n from {numbers}",  # noqa: S608 - numbers
            "vacuum (analyze)",  # or the server would do it while others are measured
        ):
            await self.own.execute(statement, timeout=600)
        with suppress(asyncpg.InsufficientPrivilegeError):  # what this wrote is written out now, not while others are measured
            await self.own.execute("checkpoint", timeout=600)

    async def wal(self) -> int:
        """Read the server's position in its write-ahead log, in bytes; other databases of the server write there too."""
        return int(await self._server.fetchval("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))

    async def commits(self) -> int:
        """Read the committed transactions, once every other connection is closed and so has reported; `looks` left out."""
        others = "select count(*) from pg_stat_activity where datname = $1 and pid <> $2 and backend_type = 'client backend'"
        while await self._server.fetchval(others, self._name, self.own.get_server_pid()):  # noqa: ASYNC110 - a server tells nobody
            await asyncio.sleep(GLANCE)
        with suppress(asyncpg.UndefinedFunctionError):  # before PostgreSQL 15 what this connection did is reported late
            await self.own.execute("select pg_stat_force_next_flush()")
        found = await self._server.fetchval("select xact_commit from pg_stat_database where datname = $1", self._name)
        return int(found) - self.looks

    async def deadlocks(self) -> int:
        """Read how many deadlocks there were, once every other connection has reported; see `commits`."""
        return int(await self._server.fetchval("select deadlocks from pg_stat_database where datname = $1", self._name))

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[list[int]]:
        """Count again and again, through a connection of its own, how many sessions wait for a lock of another's."""
        waiting = "select count(*) from pg_stat_activity where datname = $1 and wait_event_type = 'Lock'"
        seen: list[int] = []
        watcher = await asyncpg.connect(self._server_url)

        async def watch() -> None:
            while True:
                seen.append(int(await watcher.fetchval(waiting, self._name)))
                await asyncio.sleep(GLANCE)

        watching = asyncio.create_task(watch())
        try:
            yield seen
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await watcher.close()

    async def look(self, query: str) -> int:
        """Read one number, not counted among the commits."""
        self.looks += 1
        return int(await self.own.fetchval(query))

    async def version(self) -> str:
        """Name the server's version."""
        return str(await self._server.fetchval("show server_version"))


@asynccontextmanager
async def opened(server_url: str) -> AsyncIterator[BackendDatabase]:
    """Make a database with the scenario's and the library's tables, and drop it at the end."""
    name = f"onceonly_bench_{os.getpid()}_{uuid4().hex[:8]}"
    url = urlsplit(server_url)._replace(path=f"/{name}").geturl()
    server = await asyncpg.connect(server_url)
    try:
        await server.execute(f"create database {name}")
        own = await asyncpg.connect(url)
        try:
            await make_tables(url)
            yield BackendDatabase(url, server, own, server_url=server_url)
        finally:
            await own.close()
            await server.execute(f"drop database {name} with (force)")
    finally:
        await server.close()


async def make_tables(url: str) -> None:
    """Create the tables of the library and of the scenario."""
    from onceonly.sql.schema import create, create_user_tables  # noqa: PLC0415 - as `onceonly schema create` does

    async with open_database(url) as database:
        for schema in schemas():
            await create(database, schema)
        await create_user_tables(database, Base.metadata)
        await create_user_tables(database, OUTBOX.metadata)
