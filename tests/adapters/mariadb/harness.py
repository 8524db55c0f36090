"""What the tests of the store on MariaDB share: empty tables, a user's table of orders, and a view from the server's side."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly.sql.database import Database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA
from onceonly.sql.store.unit import SqlUnit
from onceonly_conformance.samples import message
from tests.servers.available import on_mariadb
from tests.sql.harness import connection_of, opened

PREFIX = "own_"
EMPTY = ["DELETE FROM own_claims", "DELETE FROM own_records", "DELETE FROM own_dead_letters", "DELETE FROM own_keys"]
A, B = message("a"), message("b")


def place(url: str, **options: object) -> str:
    """Return the URL of the tests' tables, with options."""
    return url + "?" + "&".join(f"{name}={value}" for name, value in {"prefix": PREFIX, **options}.items())


async def make_tables(url: str) -> None:
    """Make this library's tables, and the user's."""
    async with opened(place(url)) as database:
        await create(database, SCHEMA)
    orders = "CREATE TABLE IF NOT EXISTS orders (id VARCHAR(100) PRIMARY KEY, total INT NOT NULL DEFAULT 0) ENGINE=InnoDB"
    await on_mariadb(orders, url=url)


@asynccontextmanager
async def sockets_closed() -> AsyncIterator[None]:
    """Wait at the end until the sockets opened meanwhile are closed.

    After a failed log-in, asyncmy only begins to close a connection with TLS, and does not wait for the server's answer. A loop
    that ends before leaves the socket behind.
    """
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    before = set(selector.get_map())
    try:
        yield
    finally:
        while not set(selector.get_map()) <= before:  # noqa: ASYNC110 - the driver has no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def opened_empty(url: str) -> AsyncIterator[Database]:
    """Open the database with empty tables."""
    await on_mariadb(*EMPTY, "DELETE FROM orders", url=url)
    async with opened(place(url)) as database:
        yield database


def is_mysql(database: Database) -> bool:
    """Return whether these tests run on MySQL."""
    return not database.engine.dialect.is_mariadb  # type: ignore[attr-defined]


async def session_status(connection: AsyncConnection, name: str) -> int:
    """Ask the server what it counted for this very connection."""
    found = (await connection.exec_driver_sql(f"SHOW SESSION STATUS WHERE Variable_name = '{name}'")).one()
    return int(found[1])


async def run(unit: SqlUnit, statement: str) -> None:
    """Run a statement as a handler does."""
    await connection_of(unit.resources).execute(text(statement))


async def thread_of(unit: SqlUnit) -> int:
    """Return the number that the server knows the unit's connection by."""
    return int((await connection_of(unit.resources).execute(text("SELECT CONNECTION_ID()"))).scalar_one())


async def is_waiting(unit: SqlUnit, thread: int) -> None:
    """Wait until the server says that this connection waits for a row; `unit` is one that does not."""
    query = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_mysql_thread_id = :thread AND trx_state = 'LOCK WAIT'"
    while not (await connection_of(unit.resources).execute(text(query), {"thread": thread})).scalar_one():  # noqa: ASYNC110 - the server has no event
        await asyncio.sleep(0.15)  # the view stays as it was while it is looked at more often than every 0.1 s
