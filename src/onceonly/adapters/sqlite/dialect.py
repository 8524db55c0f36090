"""SQLite, through aiosqlite: WAL, durable commits, and a write lock that is taken when a unit begins.

The driver's own transaction control is off (it would begin late, and commit before DDL): `begin` says BEGIN itself.
"""

import asyncio
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    LargeBinary,
    Row,
    Select,
    String,
    Table,
    bindparam,
    cast,
    delete,
    event,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.engine import URL, ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.sql.compiler import InsertmanyvaluesSentinelOpts

from onceonly.adapters.sqlite.connection import SQLiteConnection, connecting
from onceonly.adapters.sqlite.file import DatabaseFile, FileReplaced
from onceonly.formats.log_events import EventLogger
from onceonly.model.errors import SetupError
from onceonly.sql.dialect import DatabaseFailure, Dialect, Limit, Purpose, QueueTaking, SingleStatementTaking, State, TooLate
from onceonly.sql.maintenance import RingMaintenance
from onceonly.sql.statement_effects import LEFT, TEMPORARY, StatementEffects, begins
from onceonly.sql.statement_events import StatementListener, keep_when_cancelled

OLDEST = (3, 35, 0)  # the first with RETURNING
FULL = 2
ROWS_AT_ONCE = 10_000  # SQLite takes 32,766 variables
LARGE_LOG = 16 * 2**20
"""Bytes from which on maintenance truncates the write-ahead log. SQLite keeps it at 4 MiB unless a reader is in its way."""
WAL_TRIES, WAL_PAUSE_SECONDS = 100, 0.05
_log = EventLogger(logging.getLogger("onceonly.sqlite"))
_OPENED = "onceonly_opened"
_OWN_CODE = 0xFF  # an extended result code keeps the primary one in its lowest byte

# https://www.sqlite.org/rescode.html. IOERR, CORRUPT, INTERRUPT, NOMEM and all others say nothing that can be relied on.
_FAILURES = {
    sqlite3.SQLITE_BUSY: DatabaseFailure.LOCKED,
    sqlite3.SQLITE_LOCKED: DatabaseFailure.LOCKED,
    sqlite3.SQLITE_CONSTRAINT: DatabaseFailure.CONSTRAINT,
    sqlite3.SQLITE_ERROR: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_AUTH: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_MISMATCH: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_TOOBIG: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_RANGE: DatabaseFailure.STATEMENT,
    sqlite3.SQLITE_FULL: DatabaseFailure.UNABLE,
    sqlite3.SQLITE_READONLY: DatabaseFailure.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: DatabaseFailure.UNABLE,
    sqlite3.SQLITE_PERM: DatabaseFailure.UNABLE,
    sqlite3.SQLITE_NOTADB: DatabaseFailure.UNABLE,
}
_READING_PRAGMAS = "table_info|table_xinfo|table_list|index_list|index_info|index_xinfo|foreign_key_list|database_list"
_UNFIT = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


class SQLiteMaintenance:
    """Empties tables of a SQLite file. Whoever writes is alone."""

    leads_in_transaction = False

    def try_alone(self, connection: Connection, name: str) -> bool:
        return True

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Rely on the write lock; readers are not in the way."""
        return True

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Delete without a condition, for which SQLite looks at no row."""
        connection.execute(delete(table))
        return True

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Count the pages of the file that are in use: nothing is known of a single table."""
        pages, free, size = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def lead(self, connection: Connection, name: str) -> bool:
        """Allow every process: SQLite has one writer at a time."""
        return True

    def follow(self, connection: Connection, name: str) -> None:
        """Do nothing."""


class SQLite(Dialect):
    """The dialect of SQLite files."""

    name = "sqlite"
    embedded = True
    autocommits = False  # a writer has to wait for its turn
    single_writer = True
    begins_lazily = False
    blocks_commit = True
    has_schemas = False
    isolations: frozenset[str] = frozenset({"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"})
    """Whatever is asked for, units get SERIALIZABLE: one writer at a time."""

    gapless: str | None = None
    maintenance: RingMaintenance = SQLiteMaintenance()
    effects = StatementEffects(
        begins(rf"{TEMPORARY}|ATTACH\b|DETACH\b", LEFT),
        begins(r"CREATE\s[^;(]*?[\s\"'`\[]temp[\"'`\]]?\s*\.", LEFT),
        begins(rf"PRAGMA\s+(?!(?:\w+\.)?(?:{_READING_PRAGMAS})\b)", LEFT),
    )
    errors: tuple[type[Exception], ...] = ()
    listener = StatementListener()
    _adopted: DatabaseFile | None = None
    _log_reported = 0

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Make an engine for a file. Raises SetupError for an in-memory database and for a directory that is not there."""
        _check_file(url)
        engine = create_async_engine(
            url.set(drivername="sqlite+aiosqlite"),
            isolation_level="AUTOCOMMIT",
            connect_args={"timeout": timeout, "async_creator_fn": connecting(DatabaseFile(url.database or ""))},
            pool_size=8,
            max_overflow=-1,  # a handler that needs a second connection must not wait for its own unit
        )
        _number_rows_in_order(engine)
        event.listen(engine.sync_engine, "connect", _configure)
        keep_when_cancelled(engine)  # its thread finishes a statement before it takes the next one
        _drop_when_moved(engine)
        return engine

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Return a view of a user's engine with the driver's transaction control off. Raises SetupError as `engine` does."""
        if engine.sync_engine.dialect.driver != "aiosqlite":
            raise SetupError("a SQLite engine must use aiosqlite: create_async_engine('sqlite+aiosqlite:///shop.db')")
        _check_file(engine.url)
        view = engine.execution_options(isolation_level="AUTOCOMMIT")
        keep_when_cancelled(view)
        self._adopted = DatabaseFile(engine.url.database or "")
        return view

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Switch the file to WAL, and check that commits are durable. Raises SetupError, also if it is not a database."""
        try:
            async with engine.connect() as connection:
                version = await connection.run_sync(lambda it: it.dialect.server_version_info or ())
                if version < OLDEST:
                    raise SetupError(f"SQLite {'.'.join(map(str, version))} is too old: 3.35 or newer is needed")
                await _switch_to_wal(connection)
                synchronous = (await connection.exec_driver_sql("PRAGMA synchronous")).scalar_one()
        except DBAPIError as error:
            if _code(error) in _UNFIT and not isinstance(error.orig, FileReplaced):
                raise SetupError(f"{type(error.orig).__name__}: {error.orig}") from error
            raise
        if durable and synchronous < FULL:
            raise SetupError("this engine has PRAGMA synchronous below FULL, so a power failure loses commits: set it to FULL")

    async def shrink_log(self, engine: AsyncEngine) -> int:
        """Copy a large write-ahead log into the database, and truncate it. Logged where a reader does not let it.

        SQLite itself copies what it can every 1,000 pages, and writes the log from its beginning again once no reader is left
        in it. It never makes the file smaller. The log is reported again when it is twice as large.
        """
        file = f"{engine.url.database}-wal"
        if _size(file) < LARGE_LOG:
            self._log_reported = 0
            return 0
        async with engine.connect() as connection:
            waits = (await connection.exec_driver_sql("PRAGMA busy_timeout")).scalar_one()
            await connection.exec_driver_sql("PRAGMA busy_timeout = 0")  # TRUNCATE keeps writers away while it waits
            try:
                found: Any = (await connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")).one()
            finally:
                await connection.exec_driver_sql(f"PRAGMA busy_timeout = {waits}")
        busy, frames, copied = found
        if not busy:
            return 1
        if copied < frames and (size := _size(file)) >= 2 * self._log_reported:
            self._log_reported = size
            _log.warning("write-ahead log is large, a reader keeps it from being emptied", extra={"file": file, "bytes": size})
        return 0

    def expect(self, longest: float) -> None:
        """Do nothing."""

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin. A writing transaction waits for the write lock here, so it can never lose it to another one later."""
        reads = purpose is Purpose.READING
        driver = connection.connection.driver_connection
        if isinstance(driver, SQLiteConnection):
            driver.only_reads = False  # BEGIN itself is not interrupted
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
        if isinstance(driver, SQLiteConnection):
            driver.only_reads = reads
        if self._adopted is not None and _OPENED not in connection.info:
            connection.info[_OPENED] = self._adopted.found()

    def started(self, connection: Connection) -> int:
        """Read the clock of this machine, which is SQLite's as well. Monotonic: it cannot be set."""
        return time.monotonic_ns() // 1_000_000

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Check the limit, and leave the rest to SQLAlchemy: the driver commits what was begun in any way.

        Not on a user's engine: its connections do not look at their file when they commit.
        """
        if limit is not None and self.started(connection) - limit.since > limit.milliseconds:
            raise TooLate(f"not committed within {limit.milliseconds} ms of its start")
        if self._adopted is not None:
            self._commit_adopted(connection, self._adopted)

    def _commit_adopted(self, connection: Connection, file: DatabaseFile) -> None:
        adapted: Any = connection.connection.dbapi_connection
        try:
            adapted.commit()
            file.check(connection.info[_OPENED])
        except FileReplaced as error:
            connection.invalidate(error)
            raise DBAPIError("COMMIT", None, error) from error

    def roll_back(self, connection: Connection) -> None:
        """Leave it to SQLAlchemy."""

    def state(self, connection: Connection) -> State:
        driver = connection.connection.driver_connection
        try:
            return State.OPEN if driver is not None and driver.in_transaction else State.ENDED
        except ValueError:  # aiosqlite: the connection was closed
            return State.ENDED

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Make SQLite itself refuse COMMIT, and BEGIN after a rollback; a user's own authorizer is replaced.

        Setting an authorizer also expires what is prepared, so that a COMMIT in the driver's statement cache is refused too.
        """
        _authorize(connection, _refuse_commit)

    def allow_commit(self, connection: Connection) -> None:
        _authorize(connection, None)

    @contextmanager
    def waiting(self, connection: Connection, milliseconds: int | None) -> Iterator[None]:
        if milliseconds is None:
            yield
            return
        before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")

    def commits_each_statement(self, connection: Connection) -> bool:
        """Ask the driver. Python's own begins no transaction before the first statement that writes."""
        return not getattr(connection.connection.driver_connection, "in_transaction", True)

    def insert_absent(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Run INSERT ... VALUES ... ON CONFLICT (key) DO NOTHING RETURNING."""
        if not rows:
            return []
        statement = insert(table).on_conflict_do_nothing(index_elements=list(key)).returning(*(table.c[name] for name in key))
        options = {"insertmanyvalues_page_size": ROWS_AT_ONCE}
        return connection.execute(statement, [dict(row) for row in rows], execution_options=options).all()

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
        """Run one UPDATE for each row: they all stay in this process."""
        if rows:
            values: dict[str, Any] = {name: bindparam(f"new_{name}") for name in rows[0] if name != key}
            statement = update(table).where(table.c[key] == bindparam(f"new_{key}")).values(values)
            connection.execute(statement, [{f"new_{name}": value for name, value in row.items()} for row in rows])

    def lock(
        self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Read: the holder of the write lock has them all."""
        query = select(*(table.c[name] for name in returning)).where(self.among(table.c[key], "keys"))
        return connection.execute(query.order_by(table.c[key]), {"keys": keys}).all()

    def consume(self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
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
        """Run one DELETE for each table: they all stay in this process."""
        count = 0
        for table in tables:
            having = (table.c[name] == value for name, value in (only or {}).items())
            statement = delete(table).where(self.among(table.c[key], "keys"), *having)
            count = connection.execute(statement, {"keys": keys}).rowcount
        return count

    def take(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> QueueTaking:
        """Take by one statement. The write lock excludes other receivers."""
        (number,) = table.primary_key.columns
        taken = update(table).where(number.in_(first)).values(dict(marks))
        return SingleStatementTaking(taken.returning(*(_as_stored(table.c[name]) for name in returning)))

    def lock_schema(self, connection: Connection, name: str) -> None:
        """Rely on the write lock."""

    def classify(self, error: DBAPIError) -> DatabaseFailure:
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is not None:
            return _FAILURES.get(code & _OWN_CODE, DatabaseFailure.NOTHING)
        unbindable = isinstance(error.orig, sqlite3.InterfaceError | sqlite3.ProgrammingError)
        return DatabaseFailure.STATEMENT if unbindable and "closed" not in str(error.orig) else DatabaseFailure.NOTHING


def _check_file(url: URL) -> None:
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        raise SetupError(
            "a SQLite database in memory has only one connection, so units cannot be isolated: use a file, such as "
            "sqlite:///shop.db, or memory://"
        )
    if not Path(name).absolute().parent.is_dir():
        raise SetupError(f"the directory of the SQLite file {name} does not exist: create it first")


def _code(error: DBAPIError) -> int:
    """Return SQLite's primary result code; 0 when the driver raised on its own."""
    return getattr(error.orig, "sqlite_errorcode", 0) & _OWN_CODE


def _configure(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _number_rows_in_order(engine: AsyncEngine) -> None:
    """Allow the ORM to insert many objects by one statement: SQLite numbers the rows of VALUES upwards, in their order.

    It does so unless the table has the greatest number there is (2**63 - 1); after that SQLite picks numbers at random.
    """
    engine.sync_engine.dialect.insertmanyvalues_implicit_sentinel = InsertmanyvaluesSentinelOpts.AUTOINCREMENT


def _as_stored(column: Column[Any]) -> ColumnElement[Any]:
    """Read a column as it is stored: SQLite keeps text in a column of bytes, and bytes that are not text in one of text."""
    is_plain = isinstance(column.type, String | LargeBinary)
    return cast(column, LargeBinary).label(column.name) if is_plain else column


def _authorize(connection: Connection, authorizer: Callable[..., int] | None) -> None:
    """Set SQLite's authorizer in the thread of the driver's connection; in the greenlet."""
    adapted: Any = connection.connection.dbapi_connection
    adapted.run_async(lambda driver: driver.set_authorizer(authorizer))


def _refuse_commit(action: int, operation: object, *_: object) -> int:
    is_refused = action == sqlite3.SQLITE_TRANSACTION and operation != "ROLLBACK"
    return sqlite3.SQLITE_DENY if is_refused else sqlite3.SQLITE_OK


def _size(file: str) -> int:
    """Return the size of a file in bytes; 0 if it is not there."""
    try:
        return os.stat(file).st_size  # noqa: PTH116 - as where the file is compared
    except OSError:
        return 0


async def _switch_to_wal(connection: AsyncConnection) -> None:
    """Switch to WAL; when several processes create one file at once, SQLite refuses without waiting for its lock."""
    for tries_left in reversed(range(WAL_TRIES)):
        try:
            await connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except DBAPIError as error:
            if _code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or not tries_left:
                raise
            await asyncio.sleep(WAL_PAUSE_SECONDS)
        else:
            return


def _drop_when_moved(engine: AsyncEngine) -> None:
    """Replace all connections when one finds that its file was deleted or replaced."""

    def drop(context: ExceptionContext) -> None:
        if isinstance(context.original_exception, FileReplaced):
            context.is_disconnect = True

    event.listen(engine.sync_engine, "handle_error", drop)
