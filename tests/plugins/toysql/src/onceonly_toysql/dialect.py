"""The dialect of this library. One transaction writes at a time, so few statements have to lock anything."""

import asyncio
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Table, bindparam, delete, event, select, update
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from onceonly.errors import SetupError
from onceonly.sql.dialect import (
    DatabaseFailure,
    Dialect,
    Limit,
    Purpose,
    QueueTaking,
    RingMaintenance,
    SingleStatementTaking,
    State,
    StatementListener,
    TooLate,
)

_FAILURES = {
    sqlite3.SQLITE_BUSY: DatabaseFailure.LOCKED,
    sqlite3.SQLITE_LOCKED: DatabaseFailure.LOCKED,
    sqlite3.SQLITE_CONSTRAINT: DatabaseFailure.CONSTRAINT,
    sqlite3.SQLITE_ERROR: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_MISMATCH: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_TOOBIG: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_FULL: DatabaseFailure.UNABLE,
    sqlite3.SQLITE_READONLY: DatabaseFailure.UNABLE,
    sqlite3.SQLITE_CANTOPEN: DatabaseFailure.UNABLE,
}
"""What SQLite reports for sure. Any other code leaves the outcome open."""
PRIMARY_CODE = 0xFF


class ToyMaintenance:
    """Maintenance of a file: a transaction that writes is alone."""

    leads_in_transaction = False

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Rely on the write lock."""
        return True

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Rely on the write lock."""
        return True

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Delete every row."""
        connection.execute(delete(table))
        return True

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Return the size of the file."""
        pages, size = (connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size"))
        return int(pages * size)

    def lead(self, connection: Connection, name: str) -> bool:
        """Let every process lead. Their transactions take turns."""
        return True

    def follow(self, connection: Connection, name: str) -> None:
        """Do nothing."""


class ToySql(Dialect):
    """A file with SQLite's rules."""

    name = "toysql"
    embedded = True
    single_writer = True
    autocommits = False
    blocks_commit = False
    begins_lazily = False
    has_schemas = False
    isolations: frozenset[str] = frozenset({"SERIALIZABLE"})
    gapless: str | None = None
    maintenance: RingMaintenance = ToyMaintenance()
    errors: tuple[type[Exception], ...] = ()
    listener = StatementListener()

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Create an engine. Raises SetupError for a database in memory."""
        if not url.database or url.database == ":memory:":
            raise SetupError("a toysql URL has the path of a file. Write for example toysql:///var/lib/shop.db")
        engine = create_async_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": timeout}, max_overflow=-1)
        event.listen(engine.sync_engine, "connect", _configure)
        event.listen(engine.sync_engine, "handle_error", _keep)
        return engine

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Turn off the transaction control of the driver."""
        return engine.execution_options(isolation_level="AUTOCOMMIT")

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Switch the file to WAL, so that readers do not wait."""
        async with engine.connect() as connection:
            await connection.exec_driver_sql("PRAGMA journal_mode = WAL")

    def expect(self, longest: float) -> None:
        """Do nothing: a process that ends releases its locks."""

    def drop_connections(self) -> None:
        """Do nothing: a file always answers."""

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin. A transaction that writes waits here for the write lock."""
        connection.exec_driver_sql("BEGIN" if purpose is Purpose.READING else "BEGIN IMMEDIATE")

    def started(self, connection: Connection) -> int:
        """Return the milliseconds of the machine's clock."""
        return time.monotonic_ns() // 1_000_000

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Check the limit. SQLAlchemy commits."""
        if limit is not None and self.started(connection) - limit.since > limit.milliseconds:
            raise TooLate(f"not committed within {limit.milliseconds} ms")

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Do nothing."""

    def allow_commit(self, connection: Connection) -> None:
        """Do nothing."""

    def roll_back(self, connection: Connection) -> None:
        """Do nothing: SQLAlchemy rolls back."""

    def state(self, connection: Connection) -> State:
        """Ask the driver."""
        driver = connection.connection.driver_connection
        try:
            return State.OPEN if driver is not None and driver.in_transaction else State.ENDED
        except ValueError:  # it was closed
            return State.ENDED

    def insert_absent(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Run INSERT ... ON CONFLICT DO NOTHING RETURNING."""
        if not rows:
            return []
        statement = insert(table).on_conflict_do_nothing(index_elements=list(key)).returning(*(table.c[name] for name in key))
        return connection.execute(statement, [dict(row) for row in rows]).all()

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
        """Run an UPDATE for each row."""
        if rows:
            values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in rows[0] if name != key}
            statement = update(table).where(table.c[key] == bindparam(f"new_{key}")).values(values)
            connection.execute(statement, [{f"new_{name}": value for name, value in row.items()} for row in rows])

    def lock(
        self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Read: the write lock covers every row."""
        query = select(*(table.c[name] for name in returning)).where(self.among(table.c[key], "keys"))
        return connection.execute(query.order_by(table.c[key]), {"keys": keys}).all()

    def consume(self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
        """Run DELETE ... RETURNING."""
        statement = delete(table).where(self.among(table.c[key], "keys")).returning(table.c[key])
        return frozenset(connection.scalars(statement, {"keys": keys}))

    def remove(
        self,
        connection: Connection,
        tables: Sequence[Table],
        keys: Sequence[Any],
        *,
        key: str,
        only: Mapping[str, Any] | None = None,
    ) -> int:
        """Run a DELETE for each table."""
        count = 0
        for table in tables:
            having = (table.c[name] == value for name, value in (only or {}).items())
            statement = delete(table).where(self.among(table.c[key], "keys"), *having)
            count = connection.execute(statement, {"keys": keys}).rowcount
        return count

    def among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Build an IN with a variable for each value."""
        return column.in_(bindparam(parameter, expanding=True))

    def current(self, query: Select[Any]) -> Select[Any]:
        """Change nothing: a transaction that writes reads the latest state."""
        return query

    def take(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> QueueTaking:
        """Take by one UPDATE ... RETURNING."""
        (number,) = table.primary_key.columns
        taken = update(table).where(number.in_(first)).values(dict(marks))
        return SingleStatementTaking(taken.returning(*(table.c[name] for name in returning)))

    def lock_schema(self, connection: Connection, name: str) -> None:
        """Rely on the write lock."""

    def classify(self, error: DBAPIError) -> DatabaseFailure:
        """Classify by SQLite's primary result code."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        return DatabaseFailure.NOTHING if code is None else _FAILURES.get(code & PRIMARY_CODE, DatabaseFailure.NOTHING)


def _keep(context: ExceptionContext) -> None:
    """Keep a connection whose statement was cancelled: dropped, it would have its locks until it is collected."""
    if isinstance(context.original_exception, asyncio.CancelledError):
        context.is_disconnect = False


def _configure(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()
