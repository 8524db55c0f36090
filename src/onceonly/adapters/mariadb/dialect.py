"""MariaDB 10.6 or newer and MySQL 9, through asyncmy. What is different on MySQL is in `mysql`.

The server is in autocommit mode, and `begin` sends START TRANSACTION. Only then the status flag in the server's answers shows
whether that transaction is still open. With autocommit off, what follows a deadlock or an implicit commit opens another
transaction on its own, without a report.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Row, Select, Table, bindparam, event, insert, update
from sqlalchemy.dialects.mysql import insert as mysql_insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from onceonly.adapters.mariadb.connection import (
    EFFECTS,
    QUIET,
    Locks,
    code_of,
    limit_read,
    listen,
    note_savepoint,
    refuse,
    reset,
    rolled_back_by,
    skip_warnings,
    start_over,
    tls_context,
)
from onceonly.adapters.mariadb.counted_inserts import GAPLESS, LEVEL, insert_counted, insert_counted_behind
from onceonly.adapters.mariadb.maintenance import MariaDBMaintenance, has_lock, lock, unlock
from onceonly.adapters.mariadb.mysql import IDLE, limit_idle, read_history, replace_idle_connections
from onceonly.adapters.mariadb.statements import NOTE_START, commit_within, delete_each, lock_each
from onceonly.model.errors import CommitFailed, ConflictError, SetupError
from onceonly.sql.dialect import KEPT_OPEN, DatabaseFailure, DatabaseHistory, Dialect, Limit, Purpose, QueueTaking, State
from onceonly.sql.maintenance import RingMaintenance
from onceonly.sql.statement_events import StatementListener
from onceonly.sql.urls import tls_options

if TYPE_CHECKING:
    from onceonly.adapters.mariadb.watch import SideConnections

OLDEST = (10, 6, 0)  # the first with SKIP LOCKED; RETURNING came with 10.5
OLDEST_MYSQL = (8, 0, 1)
ROWS_AT_ONCE = 10_000
_IN_TRANSACTION = 1
"""SERVER_STATUS_IN_TRANS, a flag in the server's answers."""
POOL_RECYCLE_SECONDS = 3600  # servers close idle connections, after 8 hours by default (wait_timeout)
_DURABLE_FLUSHES = (1, 3)  # 3 is 1 with more syncs
_NOT_ALLOWED = (1142, 1227)
_LOGIN_FAILURES: dict[int | None, str] = {
    **dict.fromkeys((1045, 1698, 3159), "the server rejected this user or password, or a connection without TLS"),
    1044: "this user may not use this database: grant the permission",
    1049: "this database does not exist on the server: create it",
}
_OFF = (0, "0", "OFF")

# https://mariadb.com/kb/en/mariadb-error-codes/. What the server said for sure; all others say nothing that can be relied on.
_FAILURES = {
    **dict.fromkeys((1020, 1213, 1412), DatabaseFailure.LOCKED),  # 1412: a table was truncated since the snapshot was taken
    **dict.fromkeys((1205, 3572), DatabaseFailure.HELD),
    **dict.fromkeys(
        (1022, 1048, 1062, 1169, 1216, 1217, 1364, 1451, 1452, 1557, 1586, 1761, 1762, 3819, 4025), DatabaseFailure.CONSTRAINT
    ),
    **dict.fromkeys((1051, 1052, 1054, 1060, 1064, 1066, 1093, 1103, 1109, 1111, 1118, 1136, 1146), DatabaseFailure.STATEMENT),
    **dict.fromkeys((1969, 3024), DatabaseFailure.STATEMENT),  # max_statement_time, and MySQL's MAX_EXECUTION_TIME
    **dict.fromkeys((1241, 1242, 1264, 1265, 1267, 1292, 1305, 1365, 1366, 1406, 1411), DatabaseFailure.STATEMENT),
    **dict.fromkeys((1416, 1525, 1644, 1690, 3140, 4078), DatabaseFailure.STATEMENT),
    **dict.fromkeys((1142, 1143, 1227, 1370), DatabaseFailure.FORBIDDEN),  # of a table, a column, the server, a routine
    **dict.fromkeys((1792, 1836), DatabaseFailure.READ_ONLY),
    1243: DatabaseFailure.SESSION,  # an unknown prepared statement
    1153: DatabaseFailure.ABORTED,  # a packet larger than max_allowed_packet: the server closes the connection after saying so
    **dict.fromkeys(
        (1021, 1040, 1044, 1045, 1049, 1114, 1129, 1130, 1203, 1226, 1290, 1698, 2003, 3159), DatabaseFailure.UNABLE
    ),
}

_LEVELS = {  # units get what the user chose
    Purpose.WRITING: "READ COMMITTED",
    Purpose.LEASING: "READ COMMITTED",
    Purpose.READING: "REPEATABLE READ",
}

_CHARSET = ", ".join(f"SESSION character_set_{name} = utf8mb4" for name in ("client", "connection", "results"))
"""For statements of handlers, and what `init_connect` has set: quotes in text are escaped for UTF-8."""

_SETTINGS = (
    "SELECT @@innodb_flush_log_at_trx_commit AS flush, @@log_bin AS log_bin, @@sync_binlog AS sync_binlog,"
    " @@global.read_only AS read_only, @@innodb_read_only AS innodb_read_only, @@sql_mode AS sql_mode,"
    " @@character_set_client AS charset, DATABASE() AS db, CONNECTION_ID() AS number"
)

_HISTORY = (
    "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_id', 'log_bin', 'gtid_binlog_pos', 'gtid_current_pos', 'wsrep_on',"
    " 'server_uuid', 'gtid_mode', 'gtid_executed')"
)


class MariaDB(Dialect):
    """The dialect of MariaDB servers. One instance serves one database.

    `current` stays the default: a unit's snapshot is taken by its first plain read, which that is. A locking read would be as
    current, and would lock the gaps of `records` at REPEATABLE READ: in a trial of 480 units with duplicates it cost 43
    deadlocks, without it there were none.
    """

    name = "mysql"
    embedded = False
    autocommits = False  # only a transaction can be READ COMMITTED, without locks on gaps
    single_writer = False
    begins_lazily = False
    blocks_commit = False
    has_schemas = False
    isolations = frozenset({"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"})
    default_isolation = "READ COMMITTED"
    stale_levels = frozenset({"REPEATABLE READ"})
    gapless: str | None = GAPLESS
    maintenance: RingMaintenance = MariaDBMaintenance()
    effects = EFFECTS
    errors: tuple[type[Exception], ...] = ()
    listener = StatementListener(before=(refuse,), after=(note_savepoint,), rewrite=limit_read)

    def __init__(self) -> None:
        self._side: SideConnections | None = None
        self._idle = 0
        self._locks = Locks()

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Make an engine. A lock is waited for `timeout` seconds, rounded up to whole ones, which is all the server knows."""
        if not url.database:
            raise SetupError("this URL has no database: use a URL such as mysql://user@host/database")
        from onceonly.adapters.mariadb.watch import SideConnections, connecting  # noqa: PLC0415 - the driver is imported when a URL names it

        waits = max(1, math.ceil(timeout))
        settings = f"innodb_lock_wait_timeout = {waits}, SESSION lock_wait_timeout = {waits}, {_CHARSET}"
        self._side = SideConnections()
        self._locks = Locks(waits)
        engine = create_async_engine(
            url.set(drivername="mysql+asyncmy", query={}),
            isolation_level="AUTOCOMMIT",
            connect_args={
                "autocommit": True,
                "ssl": tls_context(tls_options(url)),
                "async_creator_fn": connecting(self._side),
                "init_command": f"SET SESSION {settings}",
            },
            pool_size=KEPT_OPEN,
            max_overflow=-1,  # a handler that needs a second connection must not wait for its own unit
            pool_recycle=POOL_RECYCLE_SECONDS,
            pool_reset_on_return=None,  # a ROLLBACK after each COMMIT would cost a round trip
        )
        event.listen(engine.sync_engine, "reset", reset)
        listen(engine)
        self._locks.watch(engine)
        replace_idle_connections(engine)
        return engine

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Return a view of a user's engine in autocommit mode. Raises SetupError unless it uses asyncmy."""
        if engine.sync_engine.dialect.driver != "asyncmy":
            raise SetupError("a MariaDB engine must use asyncmy: create_async_engine('mysql+asyncmy://user@host/database')")
        view = engine.execution_options(isolation_level="AUTOCOMMIT")
        listen(view)
        event.listen(view.sync_engine, "before_cursor_execute", skip_warnings)
        return view

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Check that commits are durable, and that this is a primary that refuses what it cannot store. Raises SetupError."""
        try:
            async with engine.connect() as connection:
                _check_version(engine)
                _quote_names_by_backticks(engine)
                found = (await connection.exec_driver_sql(_SETTINGS)).one()
                _check_settings(found, durable=durable)
                if self._side is None:
                    _check_literals(found)
                await connection.run_sync(self._compare_numbers, found.number)
                await _check_primary(connection)
        except DBAPIError as error:
            if code_of(error) in _LOGIN_FAILURES:
                raise SetupError(f"MariaDB: {_LOGIN_FAILURES[code_of(error)]}") from error
            raise

    def _compare_numbers(self, connection: Connection, number: int) -> None:
        """Find out whether the server numbers this connection as the driver does; a proxy in between does not."""
        if self._side is not None:
            driver: Any = connection.connection.driver_connection
            self._side.is_direct = int(driver.thread_id()) == number

    async def history(self, engine: AsyncEngine) -> DatabaseHistory | None:
        """Return the server's number, and the last transaction of each domain in its binary log (GTID).

        None on Galera, whose nodes are equal, without a binary log, where no replica can be, and on MySQL without GTIDs.
        """
        async with engine.connect() as connection:
            rows: Iterable[Any] = await connection.exec_driver_sql(_HISTORY)
            found: dict[str, str] = {row[0].lower(): row[1] for row in rows}
        if "gtid_executed" in found:
            return read_history(found)
        if found.get("wsrep_on", "OFF") != "OFF" or "gtid_current_pos" not in found or found.get("log_bin") != "ON":
            return None
        positions = _positions(f"{found['gtid_current_pos']},{found['gtid_binlog_pos']}")
        return DatabaseHistory(f"server {found['server_id']}", positions, found["gtid_current_pos"] or found["gtid_binlog_pos"])

    def expect(self, longest: float) -> None:
        """End a transaction on the server when its client is silent for `longest` seconds: its host may have vanished."""
        self._idle = max(self._idle, math.ceil(longest))

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin, in one round trip. This library's own writes are READ COMMITTED: they must not lock the gaps between keys."""
        start_over(connection)
        connection.info[LEVEL] = level = _LEVELS.get(purpose, isolation)
        only = " READ ONLY" if purpose is Purpose.READING else ""
        first = f"SET TRANSACTION ISOLATION LEVEL {level}; " if level else ""
        if self._side is not None and self._idle != connection.info.get(IDLE, 0):  # a user's session stays as it is
            connection.info[IDLE] = self._idle
            first = f"SET {limit_idle(self._idle)}; {first}"
        connection.exec_driver_sql(f"{first}START TRANSACTION{only}{self._locks.begun(connection, purpose)}")

    def started(self, connection: Connection) -> int:
        """Store the time in a variable of the session. The statement reads no table, so it takes no snapshot."""
        connection.exec_driver_sql(NOTE_START)
        return 0

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Do what SQLAlchemy's own commit does not: end a schema lock, keep a limit. Raises when it was rolled back before."""
        cause = rolled_back_by(connection)
        if cause is not None:
            raise ConflictError(cause)  # a COMMIT would be answered with success, for a transaction that is gone
        if limit is not None:
            commit_within(connection, limit)  # SQLAlchemy's COMMIT after it finds nothing to do
        if has_lock(connection):
            connection.exec_driver_sql("COMMIT")  # before others may look
            unlock(connection)

    def roll_back(self, connection: Connection) -> None:
        """Do what SQLAlchemy's own rollback does not: end a schema lock."""
        start_over(connection)
        unlock(connection)

    def state(self, connection: Connection) -> State:
        """Read the status flag of the server's last answer, and what its errors said; an error carries no flag."""
        if connection.closed or connection.invalidated:
            return State.LOST
        driver = connection.connection.driver_connection
        if driver is None or not driver.connected:
            return State.LOST
        if rolled_back_by(connection) is not None:
            return State.ABORTED
        return State.OPEN if driver.get_transaction_status() else State.ENDED

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Make statements wait for no lock after a lock time-out. Claims have been made by now, so their wait is not shortened.

        The server cannot reject a handler's COMMIT. One on the driver's own connection is detected afterwards.
        """
        if of_messages and (caution := self._locks.caution(connection, isolated=isolated)):
            connection.exec_driver_sql(caution)

    @contextmanager
    def own_settings(self, connection: Connection) -> Iterator[None]:
        """Set what could hinder the library's statements to the server's values. The connection is closed after the unit."""
        connection.exec_driver_sql(f"SET SESSION sql_mode = @@GLOBAL.sql_mode, SESSION foreign_key_checks = 1, {_CHARSET}")
        yield

    @contextmanager
    def waiting(self, connection: Connection, milliseconds: int | None) -> Iterator[None]:
        """Set `innodb_lock_wait_timeout`, which is in whole seconds, and set it back."""
        if milliseconds is None:
            yield
            return
        before = connection.exec_driver_sql("SELECT @@SESSION.innodb_lock_wait_timeout").scalar_one()
        connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {math.ceil(milliseconds / 1000)}")
        try:
            yield
        finally:
            connection.exec_driver_sql(f"SET SESSION innodb_lock_wait_timeout = {before}")

    def commits_each_statement(self, connection: Connection) -> bool:
        """Ask asyncmy, aiomysql, PyMySQL, or mysqlclient, which has no status."""
        driver: Any = connection.connection.driver_connection
        mode = getattr(driver, "get_autocommit", None)
        if mode is None or not mode():
            return False
        status = getattr(driver, "get_transaction_status", lambda: getattr(driver, "server_status", 0) & _IN_TRANSACTION)
        return not status()

    def insert_absent(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Run INSERT IGNORE ... RETURNING, which returns what it inserted and not what it found.

        IGNORE would also cut what is too long, so that is looked at before. ON DUPLICATE KEY UPDATE returns both, and it locks
        rows that were there exclusively. The server has a warning for each duplicate, which the cursor does not fetch.
        """
        if not rows:
            return []
        _check_lengths(table, rows)
        if not connection.dialect.insert_returning:
            return insert_counted(connection, table, rows, key=key)
        statement = insert(table).prefix_with("IGNORE").returning(*(table.c[name] for name in key))
        options = {"insertmanyvalues_page_size": ROWS_AT_ONCE, QUIET: True}
        return connection.execute(statement, [dict(row) for row in rows], execution_options=options).all()

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        if connection.dialect.insert_returning:
            return super().insert_behind(connection, table, first, rows, key=key)
        _check_lengths(table, rows)
        return insert_counted_behind(connection, table, first, rows, key=key)

    def update_last(self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: str) -> None:
        values = {name: value for name, value in row.items() if name != key}
        connection.execute(update(table).where(table.c[key] == row[key]).values(values))

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
        """Run INSERT ... ON DUPLICATE KEY UPDATE, all rows in one statement: as UPDATE each would be a round trip."""
        if rows:
            statement = mysql_insert(table)
            values = {name: statement.inserted[name] for name in rows[0] if name != key}
            connection.execute(statement.on_duplicate_key_update(values), [dict(row) for row in rows])

    def lock(
        self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Run SELECT ... FOR UPDATE that looks up one key after the other."""
        statement, parameters = lock_each(connection, table, keys, key=key, returning=returning)
        return connection.execute(statement, parameters).all()

    def consume(self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
        """Lock, then delete what is there: DELETE ... RETURNING would go through a small table from end to end."""
        there = [row[0] for row in self.lock(connection, table, keys, key=key, returning=[key])]
        if there:
            self.remove(connection, [table], there, key=key)
        return frozenset(there)

    def remove(
        self,
        connection: Connection,
        tables: Sequence[Table],
        keys: Sequence[Any],
        *,
        key: str,
        only: Mapping[str, Any] | None = None,
    ) -> int:
        """Run one DELETE for each table, that looks up one key after the other."""
        count = 0
        for table in tables:
            statement, parameters = delete_each(connection, table, keys, key=key, only=only or {})
            count = connection.execute(statement, parameters).rowcount
        return count

    def take(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> QueueTaking:
        """Build SELECT ... FOR UPDATE SKIP LOCKED, then UPDATE by primary key; UPDATE has no RETURNING here."""
        return _SelectAndUpdate(table, first, marks, returning)

    def lock_schema(self, connection: Connection, name: str) -> None:
        """Take a lock by name: it outlives the commits that DDL makes, and is released at the end."""
        if not lock(connection, name, wait="@@lock_wait_timeout"):
            raise CommitFailed(
                "another process is changing the schema and held its lock for too long: retry when it has finished"
            )

    def set_savepoint(self, connection: Connection, name: str, *, again: bool) -> None:
        """Set a savepoint. The server deletes one of the same name."""
        connection.dialect.do_savepoint(connection, name)

    def classify(self, error: DBAPIError) -> DatabaseFailure:
        code = code_of(error)
        return _FAILURES.get(code, DatabaseFailure.NOTHING) if code is not None else DatabaseFailure.NOTHING


class _SelectAndUpdate:
    """Taking by two statements: what is taken is locked by the first, and cannot change before the second."""

    def __init__(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> None:
        (number,) = table.primary_key.columns
        shown = (marks.get(name, table.c[name]) for name in returning)
        self._select = first.with_only_columns(number, *shown).with_for_update(skip_locked=True)
        self._update = update(table).where(number.in_(bindparam("taken", expanding=True))).values(dict(marks))

    def __call__(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Any]:
        taken = connection.execute(self._select, dict(parameters)).all()
        if taken:
            connection.execute(self._update, {**parameters, "taken": [row[0] for row in taken]})
        return [row[1:] for row in taken]


def _positions(listed: str) -> dict[str, int]:
    """Read GTIDs, `domain-server-sequence` with commas between: the highest sequence of each domain."""
    found: dict[str, int] = {}
    for each in filter(None, listed.split(",")):
        domain, _, sequence = each.strip().split("-")
        found[domain] = max(found.get(domain, 0), int(sequence))
    return found


def _check_lengths(table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    for column in table.c:
        longest = getattr(column.type, "length", None)
        if longest and any(len(row.get(column.name) or "") > longest for row in rows):
            raise SetupError(
                f"a value for {table.name}.{column.name} is too long; the limit is {longest} characters. Shorten it"
            )


def _check_version(engine: AsyncEngine) -> None:
    dialect: Any = engine.dialect
    version = dialect.server_version_info or ()
    oldest = OLDEST if dialect.is_mariadb else OLDEST_MYSQL
    if version < oldest:
        system = "MariaDB" if dialect.is_mariadb else "MySQL"
        raise SetupError(f"{system} {'.'.join(map(str, version))} is too old: {'.'.join(map(str, oldest))} or newer is needed")


def _check_settings(found: Row[Any], *, durable: bool) -> None:
    problems = [
        problem
        for problem, is_there in (
            ("no database is selected: add one to the URL", not found.db),
            (
                "it is read-only (read_only=1), as a replica or during maintenance: use the primary",
                found.read_only not in _OFF,
            ),
            (
                "InnoDB is read-only (innodb_read_only=1): set it to 0, or use another server",
                found.innodb_read_only not in _OFF,
            ),
            ("it truncates values that are too long: add STRICT_TRANS_TABLES to sql_mode", "STRICT_" not in found.sql_mode),
            (
                f"the character set of the connection is {found.charset}, which cannot store all text: use utf8mb4",
                found.charset != "utf8mb4",
            ),
            (
                f"a power failure loses commits (innodb_flush_log_at_trx_commit={found.flush}): set it to 1",
                durable and found.flush not in _DURABLE_FLUSHES,
            ),
            (
                f"a power failure loses commits from the binary log (sync_binlog={found.sync_binlog}): set it to 1",
                durable and found.log_bin not in _OFF and found.sync_binlog != 1,
            ),
        )
        if is_there
    ]
    if problems:
        raise SetupError("this server cannot be used: " + "; ".join(problems))


def _quote_names_by_backticks(engine: AsyncEngine) -> None:
    """Make SQLAlchemy quote names in the way that is right in every `sql_mode`.

    It looks at the mode of the first connection only. In another mode a name between double quotes would be a text.
    """
    dialect: Any = engine.dialect
    if dialect.identifier_preparer.initial_quote != "`":
        dialect.identifier_preparer = dialect.preparer(dialect, server_ansiquotes=False)


def _check_literals(found: Row[Any]) -> None:
    """Refuse a user's engine whose driver would write bytes of handlers that end inside of their literals."""
    if "NO_BACKSLASH_ESCAPES" in found.sql_mode:
        raise SetupError(
            "this engine cannot be used: sql_mode has NO_BACKSLASH_ESCAPES, and asyncmy escapes bytes by backslashes, so parts "
            "of a value would be executed. Remove the mode, or give onceonly the URL instead of the engine"
        )


async def _check_primary(connection: AsyncConnection) -> None:
    """Refuse a server that replicates from another: the same claim could come to both. Needs a privilege to be seen."""
    dialect: Any = connection.dialect
    try:
        sources = (
            await connection.exec_driver_sql("SHOW ALL SLAVES STATUS" if dialect.is_mariadb else "SHOW REPLICA STATUS")
        ).mappings()
    except DBAPIError as error:
        if code_of(error) in _NOT_ALLOWED:
            return
        raise
    if any(row.get("Slave_SQL_Running", row.get("Replica_SQL_Running")) == "Yes" for row in sources):
        raise SetupError("this server cannot be used: it is a replica, which may lack recent commits. Use the primary")
