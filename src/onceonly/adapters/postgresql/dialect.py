"""PostgreSQL, through asyncpg or psycopg.

Both drivers run in autocommit, and `begin` says BEGIN itself: at once, with the isolation that is wanted, so that the driver's
own state tells at any time whether the transaction is still there.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    Connection,
    Row,
    Select,
    Table,
    TableValuedAlias,
    Text,
    Update,
    any_,
    bindparam,
    cast,
    delete,
    event,
    func,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.util import await_only

from onceonly.adapters.postgresql.deadlocks import BE_BRIEF, Deadlocks
from onceonly.adapters.postgresql.drivers import KEEPALIVES, PostgreSQLDriver, driver_named
from onceonly.adapters.postgresql.maintenance import PostgreSQLMaintenance
from onceonly.adapters.postgresql.notifications import PostgreSQLListening, notify_text
from onceonly.adapters.postgresql.statements import EFFECTS, InsertStatements, held_text, hold_text, take_held_text
from onceonly.adapters.postgresql.watch import ConnectionWatch
from onceonly.model.errors import ConflictError, SetupError
from onceonly.sql.dialect import (
    BATCH_LOCK_SECONDS,
    KEPT_OPEN,
    DatabaseFailure,
    DatabaseHistory,
    DatabaseNow,
    Dialect,
    DriverScope,
    Limit,
    Listening,
    Purpose,
    QueueTaking,
    SingleStatementTaking,
    State,
    TooLate,
)
from onceonly.sql.maintenance import RingMaintenance
from onceonly.sql.options import POOLED
from onceonly.sql.statement_events import StatementListener
from onceonly.sql.translation import translated
from onceonly.sql.urls import USE_POOLED, tls_options

OLDEST = 12
LONGEST_IDLE_MS = 2**31 - 1  # the server takes no more

# https://www.postgresql.org/docs/current/errcodes-appendix.html. Connection errors (08), operator intervention (57),
# internal and system errors (XX, 58) and all others say nothing that can be relied on.
_FAILURES = {
    "40001": DatabaseFailure.LOCKED,  # serialization failure
    "40P01": DatabaseFailure.LOCKED,  # deadlock
    "55P03": DatabaseFailure.HELD,  # lock_timeout
    "40002": DatabaseFailure.CONSTRAINT,
    "25P02": DatabaseFailure.ABORTED,
    "25006": DatabaseFailure.READ_ONLY,
    "42501": DatabaseFailure.FORBIDDEN,
    "55006": DatabaseFailure.UNABLE,  # object in use
    "57014": DatabaseFailure.STATEMENT,  # statement_timeout, or cancelled by hand
    "26000": DatabaseFailure.SESSION,  # a pooler gave a prepared statement to another session, or DEALLOCATE removed it
    "42P05": DatabaseFailure.SESSION,  # the same
}
_FORBIDDEN, _ROW_SECURITY = "42501", "ExecWithCheckOptions"
"""The SQLSTATE, and the server's routine that also raises it for a row. Its words depend on the server's language."""
_FAILURES_BY_CLASS = {
    "23": DatabaseFailure.CONSTRAINT,
    "44": DatabaseFailure.CONSTRAINT,
    "P0": DatabaseFailure.CONSTRAINT,  # a trigger's RAISE
    "0A": DatabaseFailure.STATEMENT,
    "21": DatabaseFailure.STATEMENT,
    "22": DatabaseFailure.STATEMENT,
    "42": DatabaseFailure.STATEMENT,
    "54": DatabaseFailure.STATEMENT,
    "53": DatabaseFailure.UNABLE,  # disk full, out of memory, too many connections
}
# A plan is kept with its prepared statement. One that was made while the queue was empty would read all of a later backlog.
_BY_INDEX = "".join(f"; SET LOCAL enable_{step} = off" for step in ("seqscan", "bitmapscan", "sort"))
_BEGIN = {
    Purpose.WRITING: f"BEGIN ISOLATION LEVEL READ COMMITTED{_BY_INDEX}",
    Purpose.LEASING: f"BEGIN ISOLATION LEVEL READ COMMITTED{_BY_INDEX}; SET LOCAL synchronous_commit = off",
    Purpose.READING: "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
}
_WAIT = "wait_for_lock"
_RESTORED = ("search_path", "session_replication_role", "row_security", "lock_timeout", "statement_timeout", "role")
_UNCHANGED = frozenset({("session_replication_role", "origin"), ("role", "none")})
_CURRENT_SETTINGS = "SELECT " + ", ".join(f"current_setting('{name}')" for name in _RESTORED)
# `session_replication_role` is a superuser's. Nobody else can have changed it.
_OWN_SETTINGS = (
    "SET LOCAL ROLE NONE; SET LOCAL search_path TO DEFAULT; SET LOCAL row_security TO DEFAULT;"
    " SET LOCAL lock_timeout TO DEFAULT; SET LOCAL statement_timeout TO DEFAULT;"
    " SELECT set_config('session_replication_role', 'origin', true)"
    " WHERE current_setting('session_replication_role') <> 'origin'"
)
_SCHEMA_LOCK_TIMEOUT = "60s"
_SET_LOCAL = text("SELECT set_config(:name, :value, true)")
_RESET = "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; SELECT pg_advisory_unlock_all()"
_UNITS = (Purpose.UNIT, Purpose.BATCH)
_BEGUN = (State.OPEN, State.ABORTED)
ONE_INSERTED, TWO_INSERTED = "INSERT 0 1", "INSERT 0 2"
_BATCH_LOCK_MS = round(BATCH_LOCK_SECONDS * 1000)
_IDLE = "idle_in_transaction_session_timeout"
_IDLE_STATUS = 0
"""libpq's status of a connection without an open transaction."""
_PROBE = text(
    "SELECT pg_is_in_recovery(), current_setting('transaction_read_only'), current_setting('synchronous_commit'),"
    " current_setting('fsync'), (SELECT source <> 'client' FROM pg_settings WHERE name = 'synchronous_commit'),"
    # What the next connection will get: the present one may be older than ALTER DATABASE or ALTER ROLE.
    " (SELECT setting FROM pg_db_role_setting, unnest(setconfig) AS setting"
    " WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))"
    " AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user))"
    " AND setting LIKE 'synchronous\\_commit=%'"
    " ORDER BY (setrole <> 0 AND setdatabase <> 0) DESC, setrole <> 0 DESC, setdatabase <> 0 DESC LIMIT 1),"
    " (SELECT CAST(reset_val AS bigint) FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout')"
)
_SETTING = text("SELECT current_setting(:name)")
_FLUSHED = "pg_wal_lsn_diff(pg_current_wal_flush_lsn(), '0/0'), CAST(pg_current_wal_flush_lsn() AS text)"
_TIMELINE = "substr(pg_walfile_name(pg_current_wal_flush_lsn()), 1, 8)"
_CHECKPOINT = "(SELECT lpad(to_hex(timeline_id), 8, '0') FROM pg_control_checkpoint())"
_SYSTEM = "(SELECT CAST(system_identifier AS text) FROM pg_control_system())"
# Each is for users who may not call a function of the one before, or for services that do not have it.
_HISTORIES: tuple[tuple[str, ...], ...] = (
    (_SYSTEM, _TIMELINE, _FLUSHED),
    ("''", _TIMELINE, _FLUSHED),
    (_SYSTEM, _CHECKPOINT, _FLUSHED),
    (_SYSTEM, _CHECKPOINT, "NULL, ''"),
    ("''", "''", _FLUSHED),
)
_HISTORY_UNAVAILABLE = ("42501", "42883", "0A000", "55000")  # not allowed, not there, not supported, not in this state
_UNPREPARED = {"26000", "42P05"}  # a prepared statement that is not there, or is there already
_UNKNOWN_PARAMETER = "unsupported startup parameter"
# A statement that fails, in words of its own, and with it what is said in the same request behind it.
_LATE, _NO_NUMBER = "onceonly: too late", "22P02"
_UNLESS_LATE = (
    "SELECT CAST(CASE WHEN clock_timestamp() > transaction_timestamp() + interval '{} milliseconds'"
    f" THEN '{_LATE}' ELSE '0' END AS integer); "
)
_LOGIN_FAILURES = {
    "28": "the server rejected this user or password",
    "3D": "this database does not exist on the server: create it",
}
_LOGIN_FAILURES_BY_TEXT = {  # libpq keeps no SQLSTATE of a failed connection, and PgBouncer has one for all
    "authentication failed": "28",
    "no such user": "28",
    '" does not exist': "3D",
    "no such database": "3D",
}


class PostgreSQL(Dialect):
    """The dialect of PostgreSQL, by one of its drivers."""

    name = "postgresql"
    embedded = False
    single_writer = False
    blocks_commit = False
    has_schemas = True
    isolations: frozenset[str] = frozenset({"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"})

    notifies = True
    gapless: str | None = None
    inserts_at_once = True
    maintenance: RingMaintenance = PostgreSQLMaintenance()
    effects = EFFECTS

    def __init__(self, driver: str) -> None:
        """Use the driver that a URL or an engine names; asyncpg when it names none. Raises SetupError, DriverMissing."""
        self._driver: PostgreSQLDriver = driver_named(driver)
        self._deadlocks = Deadlocks(self._driver)
        self._statements = InsertStatements()
        self._isolation: str | None = None
        self._is_own = False
        self._watching: ConnectionWatch | None = None
        self._pooled: bool | None = None
        self._lock_timeout = 0
        self._idle = self._idle_of_server = 0
        self._beginnings: dict[tuple[Purpose, str | None], str] = {}
        self._histories = _HISTORIES
        self.autocommits = True
        self.begins_lazily = self._driver.reports_last_result
        self.errors = self._driver.errors
        self.listener = StatementListener(
            before=(self._execute_held_text,), after=self._driver.statement_hooks, savepoints=self._driver.savepoints
        )

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Make an engine for a server, or for a pooler before it: `?pgbouncer=` tells which; without it, this finds out."""
        self._is_own = True
        given = url.query.get(POOLED)
        self._pooled = None if given is None else given == "true"
        self._lock_timeout = round(timeout * 1000)
        engine = create_async_engine(
            url.set(drivername=f"postgresql+{self._driver.name}", query={}),
            isolation_level="AUTOCOMMIT",
            connect_args=self._driver.connect_arguments(tls_options(url)),
            pool_size=KEPT_OPEN,
            max_overflow=-1,  # a handler that needs a second connection must not wait for its own unit
        )
        event.listen(engine.sync_engine, "do_connect", self._connecting)
        self._driver.watch_connecting(engine, self._is_pooled)
        self._watching = ConnectionWatch(self._driver, self._is_pooled, lambda: self._idle / 1000)
        event.listen(engine.sync_engine, "connect", self._watching.connected)
        self._watch(engine)
        return engine

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Return a view of a user's engine in autocommit; units get the isolation that the engine was made with."""
        chosen = engine.sync_engine.get_execution_options().get("isolation_level")
        # private, but without it an engine made for SERIALIZABLE would silently get less
        chosen = chosen or getattr(engine.sync_engine.dialect, "_on_connect_isolation_level", None)
        self._isolation = chosen if chosen in self.isolations else None
        view = engine.execution_options(isolation_level="AUTOCOMMIT")
        self._watch(view)
        return view

    def expect(self, longest: float) -> None:
        """End a transaction on the server when its client is silent for `longest` seconds: its host may have vanished."""
        self._idle = max(self._idle, min(LONGEST_IDLE_MS, round(longest * 1000)))
        self._beginnings.clear()

    def _watch(self, engine: AsyncEngine) -> None:
        self._driver.watch(engine)
        self._deadlocks.watch(engine)

    def _connecting(self, _dialect: object, _record: object, _positional: object, arguments: dict[str, Any]) -> None:
        """Complete what the driver connects with. A pooler takes no settings for a session."""
        assert self._watching is not None  # noqa: S101 - an engine of this library's own has it
        self._watching.connecting(arguments)
        if self._pooled is None:
            self._pooled = await_only(self._driver.detects_pooler(arguments))
        self._adapt()
        settings = {} if self._pooled else {"lock_timeout": f"{self._lock_timeout}", **KEEPALIVES}
        arguments |= self._driver.session_arguments(arguments, settings, pooled=self._pooled)

    def drop_connections(self) -> None:
        """Close all connections of an engine of this library's own at once."""
        if self._watching is not None:
            self._watching.drop_all()

    def forget_connections(self) -> None:
        """Forget closed connections, with their prepared statements: SQLAlchemy caches its dialects, which lead here."""
        if self._watching is not None:
            self._watching.forget_closed()

    def _is_pooled(self) -> bool:
        return bool(self._pooled)

    @property
    def is_pooled(self) -> bool:  # type: ignore[override]  # here it is found out
        return self._is_pooled()

    @property
    def listens(self) -> bool:  # type: ignore[override]  # here it is found out
        """Whether no pooler is between: LISTEN belongs to a session."""
        return not self._pooled

    async def notify(self, engine: AsyncEngine, channel: str, words: Iterable[str]) -> None:
        """Send NOTIFY in a transaction of its own."""
        async with engine.connect() as connection:
            try:
                await connection.run_sync(self._driver.execute_text, notify_text(channel, words))
            except BaseException:
                await connection.invalidate()  # it may have a transaction open
                raise

    async def listen(self, engine: AsyncEngine, channel: str, heard: Callable[[str], None]) -> Listening:
        """Take a connection out of the pool, and LISTEN on it."""
        connection = await engine.connect()
        listening = PostgreSQLListening(connection, self._driver)
        try:
            await connection.run_sync(self._take_out)
            await listening.open(channel, heard)
        except BaseException:
            await asyncio.shield(listening.close())
            raise
        return listening

    def _take_out(self, connection: Connection) -> None:
        if self._watching is not None:
            self._watching.leave(connection.connection.dbapi_connection)  # it waits for the server all the time
        connection.detach()

    def _adapt(self) -> None:
        """Behind a pooler each transaction may get another session; so what is said belongs to a transaction, always."""
        self.autocommits = not self._pooled
        self._beginnings.clear()

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Check that this server keeps what it commits, and can be written. Raises SetupError."""
        drivers: tuple[type[Exception], ...] = (DBAPIError, *self.errors)
        try:
            async with engine.connect() as connection:
                try:
                    version, found = await connection.run_sync(self._probe)
                except BaseException:
                    await connection.invalidate()  # it may have a transaction open
                    raise
        except drivers as error:
            raise self._refused(error) or error from error.__cause__
        replica, read_only, synchronous, fsync, inherits, later, self._idle_of_server = found
        self._beginnings.clear()
        if version[0] < OLDEST:
            raise SetupError(f"PostgreSQL {'.'.join(map(str, version))} is too old: {OLDEST} or newer is needed")
        if replica:
            raise SetupError("this PostgreSQL server is a standby: use the primary")
        if read_only == "on":
            raise SetupError(
                "PostgreSQL allows only reads here: set default_transaction_read_only=off for this user and database"
            )
        if inherits and later is not None:
            synchronous = later.partition("=")[2]
        if durable and "off" in (synchronous, fsync):
            which = "synchronous_commit" if synchronous == "off" else "fsync"
            raise SetupError(f"PostgreSQL commits with {which}=off, so a crash loses commits: set {which}=on for this database")

    def _probe(self, connection: Connection) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Read the server's settings, in one transaction: a pooler may give every other statement to another session."""
        if self._pooled is None:  # a user's engine
            self._pooled = self._driver.is_pooled(connection)
            self._adapt()
            if self._pooled and (change := self._driver.needed_behind_pooler(connection)):
                raise SetupError(f"this engine reaches PostgreSQL through a connection pooler such as PgBouncer: {change}")
        self._driver.execute_text(connection, "BEGIN")
        found = tuple(connection.execute(_PROBE).one())
        for name, wanted in self._driver.text_settings:
            value = str(connection.execute(_SETTING, {"name": name}).scalar_one())
            if value != wanted:
                raise SetupError(
                    f"PostgreSQL's {name} is {value} in these sessions, and psycopg would store other bytes or text than it is "
                    f"given: set {name}={wanted} for this user and database, or in the options of the engine"
                )
        self._driver.execute_text(connection, "ROLLBACK")
        return connection.dialect.server_version_info or (0,), found

    async def history(self, engine: AsyncEngine) -> DatabaseHistory | None:
        """Return the timeline, and what is durable of its log. A promotion begins a new timeline."""
        async with engine.connect() as connection:
            try:
                return await connection.run_sync(self._history)
            except BaseException:
                await connection.invalidate()  # it may have a transaction open
                raise

    def _history(self, connection: Connection) -> DatabaseHistory | None:
        while self._histories:
            self._driver.execute_text(connection, "BEGIN")
            try:
                system, timeline, position, shown = connection.execute(text(f"SELECT {', '.join(self._histories[0])}")).one()
            except DBAPIError as error:
                if self._driver.sqlstate(error) not in _HISTORY_UNAVAILABLE:
                    raise
                self._histories = self._histories[1:]
            else:
                name = f"timeline {int(timeline, 16)}" if timeline else "server"
                positions = {} if position is None else {"": int(position)}
                return DatabaseHistory(name, positions, shown, system)
            finally:
                self._driver.execute_text(connection, "ROLLBACK")
        return None

    def _refused(self, error: Exception) -> SetupError | None:
        """Return the error about what a person has to change; None for other errors."""
        words, state = str(error), self._driver.sqlstate(error)
        if _UNKNOWN_PARAMETER in words or state in _UNPREPARED:
            return SetupError(f"PostgreSQL: {words.splitlines()[0]}. {USE_POOLED}")
        if (state or "")[:2] not in _LOGIN_FAILURES:
            state = next((it for part, it in _LOGIN_FAILURES_BY_TEXT.items() if part in words), "")
        return SetupError(f"PostgreSQL: {_LOGIN_FAILURES[state[:2]]}") if state else None

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin. Units get the database's own isolation unless another was chosen; BEGIN may go with what is said next."""
        chosen = isolation or self._isolation
        self._driver.begun(connection)
        self._deadlocks.begun(connection)
        if connection.info.get(_IDLE) != self._idle and self._keeps_settings:
            if self._needs_limit():
                self._execute_text(
                    connection, f"SET {_IDLE} = {self._idle}"
                )  # once for a connection; SET LOCAL would cost each time
            connection.info[_IDLE] = self._idle
        hold_text(connection, self._beginnings.get((purpose, chosen)) or self._beginning(purpose, chosen))
        if purpose not in _UNITS or not self.begins_lazily:
            self._execute_held_text(connection)

    def _beginning(self, purpose: Purpose, isolation: str | None) -> str:
        """Return the text that begins a transaction. An administrator's limit that is shorter stays."""
        unit = f"BEGIN ISOLATION LEVEL {isolation}" if isolation in self.isolations else "BEGIN"
        settings = {}
        if self._needs_limit() and not self._keeps_settings:
            settings[_IDLE] = self._idle
        if self._pooled and self._lock_timeout:
            settings["lock_timeout"] = self._lock_timeout
        if purpose is Purpose.BATCH and self._is_own and not 0 < self._lock_timeout <= _BATCH_LOCK_MS:
            settings["lock_timeout"] = _BATCH_LOCK_MS
        words = "".join(f"; SET LOCAL {name} = {value}" for name, value in settings.items())
        if purpose is Purpose.BATCH and not self._is_own:
            words += f"; {BE_BRIEF}"
        self._beginnings[purpose, isolation] = beginning = f"{_BEGIN.get(purpose, unit)}{words}"
        return beginning

    def _needs_limit(self) -> bool:
        return self._idle > 0 and not 0 < self._idle_of_server <= self._idle

    @property
    def _keeps_settings(self) -> bool:
        """Whether a session is this library's own, and no user's."""
        return self._is_own and not self._pooled

    def started(self, connection: Connection) -> int:
        """Note nothing: the server knows when its transaction began, which is at `block_commit` or with a statement before."""
        return 0

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Commit as the driver needs it, behind what waits to be said, and with a limit behind what fails when that is over.

        Raises ConflictError, CommitFailed, CommitRefused when what waited failed.
        """
        before = take_held_text(connection)
        unless_late = "" if limit is None else _UNLESS_LATE.format(limit.milliseconds)
        try:
            self._driver.commit(connection, f"{before}; {unless_late}" if before else unless_late)
        except DBAPIError as error:
            if limit is not None and _LATE in str(error.orig) and self._driver.sqlstate(error) == _NO_NUMBER:
                raise TooLate(f"not committed within {limit.milliseconds} ms of its start") from error
            if before and self.state(connection) in _BEGUN:  # COMMIT ends it, however it ends: so it was not come to
                raise translated(error, self, locked=ConflictError) from error
            raise

    def roll_back(self, connection: Connection) -> None:
        take_held_text(connection)
        self._driver.roll_back(connection)

    def state(self, connection: Connection) -> State:
        """Ask the driver; a transaction whose BEGIN waits to be said is open."""
        state = self._driver.state(connection)
        return State.OPEN if state is State.ENDED and held_text(connection).startswith("BEGIN") else state

    def has_ended(self, connection: Connection) -> bool:
        """Ask the driver, and look closer only where it has no transaction open."""
        adapted: Any = connection.connection.dbapi_connection
        return not self._driver.is_in_transaction(adapted) and self.state(connection) is State.ENDED

    def is_busy(self, connection: Connection) -> bool:
        adapted: Any = connection.connection.dbapi_connection
        return adapted is not None and self._driver.awaits(adapted) is not None

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Shorten the wait for locks after a deadlock or a lock time-out.

        Claims have been made by now, so their wait is not shortened.

        The server cannot reject a handler's COMMIT. One on the driver's own connection is detected afterwards.
        """
        self._execute_held_text(connection)
        if caution := self._deadlocks.caution(connection, of_messages=of_messages, isolated=isolated):
            self._driver.execute_text(connection, caution)

    def set_savepoint(self, connection: Connection, name: str, *, again: bool) -> None:
        """Set a savepoint, in the same request that releases the one before: the server would keep both."""
        if not again:
            connection.dialect.do_savepoint(connection, name)
            return
        hold_text(connection, f"RELEASE SAVEPOINT {name}; SAVEPOINT {name}")
        self._execute_held_text(connection)

    def enclose_driver(self, driver: object, scope: DriverScope) -> object | None:
        return self._driver.enclose(driver, scope)

    @contextmanager
    def own_settings(self, connection: Connection) -> Iterator[None]:
        """Set what could hinder the library's statements to the session's own values, and then back."""
        row = connection.exec_driver_sql(_CURRENT_SETTINGS).one()
        self._driver.execute_text(connection, _OWN_SETTINGS)
        yield
        self._execute_held_text(connection)
        for name, value in zip(_RESTORED, row, strict=True):  # the role last: it may not be allowed to set the others
            if (name, value) not in _UNCHANGED:
                connection.execute(_SET_LOCAL, {"name": name, "value": value})

    def reset_session(self, connection: Connection) -> bool:
        """Reset all settings and release advisory locks. A user's engine may need settings that this would undo."""
        if not self._keeps_settings:
            return False
        self._driver.execute_text(connection, _RESET)
        connection.info.pop(_IDLE, None)
        return True

    @contextmanager
    def waiting(self, connection: Connection, milliseconds: int | None) -> Iterator[None]:
        """Set `lock_timeout` for this transaction, and set it back unless an error has aborted the transaction."""
        if milliseconds is None:
            yield
            return
        reading = "WITH before AS MATERIALIZED (SELECT current_setting('lock_timeout') AS value)"
        setting = f"SELECT value, set_config('lock_timeout', '{int(milliseconds)}', true) FROM before"  # noqa: S608 - a number
        before = connection.exec_driver_sql(f"{reading} {setting}").scalar_one()
        yield
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{before}'")

    def commits_each_statement(self, connection: Connection) -> bool:
        """Ask psycopg, psycopg2 or pg8000. asyncpg has no such mode: SQLAlchemy begins its transactions."""
        driver: Any = connection.connection.driver_connection
        status = getattr(getattr(driver, "info", None), "transaction_status", _IDLE_STATUS)
        return bool(getattr(driver, "autocommit", False)) and status == _IDLE_STATUS

    def insert_absent(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Run INSERT ... SELECT FROM unnest(...) ON CONFLICT (key) DO NOTHING RETURNING: one text for any number of rows.

        Above READ COMMITTED a row that was committed after the transaction's first look is a serialization failure.
        """
        if not rows:
            return []
        if len(rows) == 1 and held_text(connection) and (words := self._statements.insert(connection, table, rows[0])):
            answer = self._execute_text(
                connection, f"{take_held_text(connection)}; {words} ON CONFLICT ({', '.join(key)}) DO NOTHING"
            )
            return [_Inserted(rows[0])] if answer == ONE_INSERTED else []  # type: ignore[list-item] # it has what a row has
        names = tuple(rows[0])
        lists = {_list(name): [row[name] for row in rows] for name in names}
        return connection.execute(_insert_absent(table, names, tuple(key)), lists).all()

    def insert_at(
        self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: Sequence[str], wait: int | None
    ) -> int | None:
        """Set `lock_timeout`, insert, read the time, and set the first back, by one statement."""
        inserting = _insert_at(table, tuple(row), tuple(key), is_waiting=wait is not None)
        values = {_new(name): value for name, value in row.items()}
        at: int | None = connection.execute(inserting, values if wait is None else values | {_WAIT: str(wait)}).one().at
        return at

    def insert_and_update(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        change: Update,
        *,
        values: Mapping[str, Any],
    ) -> int:
        """Do both by one statement, for one row. Several rows are inserted by a statement of their own."""
        if len(rows) != 1:
            return super().insert_and_update(connection, table, rows, change, values=values)
        (row,) = rows
        both = _insert_and_update(table, tuple(row), change)
        return connection.execute(both, {**values, **{_new(name): value for name, value in row.items()}}).rowcount

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        """Offer `first` with the others; the lock that an INSERT takes on its table keeps it there.

        Of a lone row the count of what was inserted tells: none of the others is there without `first`.
        """
        if len(rows) == 1 and held_text(connection) and (words := self._statements.insert(connection, table, first, rows[0])):
            answer = self._execute_text(connection, f"{take_held_text(connection)}; {words} ON CONFLICT ({key}) DO NOTHING")
            return None if answer == TWO_INSERTED else [_Inserted(rows[0])] if answer == ONE_INSERTED else []  # type: ignore[list-item] # it has what a row has
        return super().insert_behind(connection, table, first, rows, key=key)

    def insert_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run INSERT ... SELECT FROM unnest(...): SQLAlchemy would send one statement for each row."""
        if rows:
            names = tuple(rows[0])
            connection.execute(_insert_all(table, names), {_list(name): [row[name] for row in rows] for name in names})

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert a single row in the round trip of COMMIT."""
        words = (
            self._statements.insert(connection, table, rows[0]) if len(rows) == 1 and self._driver.reports_last_result else ""
        )
        if words:
            hold_text(connection, words)
        else:
            super().insert_last(connection, table, rows)

    def update_last(self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: str) -> None:
        words = self._statements.update(connection, table, row, key=key) if self._driver.reports_last_result else ""
        if words:
            hold_text(connection, words)
        else:
            super().update_last(connection, table, row, key=key)

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
        """Run UPDATE ... FROM unnest(...): one text for any number of rows."""
        if rows:
            names = tuple(rows[0])
            connection.execute(_update_all(table, names, key), {_list(name): [row[name] for row in rows] for name in names})

    def lock(
        self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Run SELECT ... ORDER BY ... FOR UPDATE, which sorts before it locks."""
        names = tuple(returning)
        return connection.execute(_locked(table, key, names), {_list(key): keys}).all()

    def consume(self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
        """Lock in order and delete in one statement; a DELETE alone would lock as it finds."""
        return frozenset(connection.scalars(_consumed(table, key), {_list(key): keys}))

    def remove(
        self,
        connection: Connection,
        tables: Sequence[Table],
        keys: Sequence[Any],
        *,
        key: str,
        only: Mapping[str, Any] | None = None,
    ) -> int:
        """Run one DELETE, with those from the other tables in its WITH."""
        statement = _removed(tuple(tables), key, tuple((only or {}).items()))
        return connection.execute(statement, {_list(key): keys}).rowcount

    def among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Build `= ANY(array)`: one text for any number."""
        return column == any_(bindparam(parameter, type_=ARRAY(column.type)))

    def take(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> QueueTaking:
        """Take by one statement. The array makes sure that the rows are chosen once, whatever join the planner would like."""
        (number,) = table.primary_key.columns
        chosen = func.array(first.with_for_update(skip_locked=True).scalar_subquery(), type_=ARRAY(number.type))
        taken = update(table).where(number == any_(chosen)).values(dict(marks))
        return SingleStatementTaking(taken.returning(*(table.c[name] for name in returning)))

    def lock_schema(self, connection: Connection, name: str) -> None:
        """Take an advisory lock until the end of the transaction: CREATE TABLE IF NOT EXISTS alone does not prevent conflicts.

        Just-in-time compilation is off in this transaction. Queries of the catalogue find out what has to be created. To
        compile one takes up to a second, and to run it a millisecond. Several processes that start together wait for each other
        longer than for other locks.
        """
        connection.execute(text("SET LOCAL jit = off"))
        usual = connection.scalar(select(func.current_setting("lock_timeout")))
        connection.execute(_SET_LOCAL, {"name": "lock_timeout", "value": _SCHEMA_LOCK_TIMEOUT})
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(name, 0))))
        connection.execute(_SET_LOCAL, {"name": "lock_timeout", "value": usual})

    def classify(self, error: DBAPIError) -> DatabaseFailure:
        state = self._driver.sqlstate(error)
        if state is None:
            return DatabaseFailure.STATEMENT if self._driver.refused(error) else DatabaseFailure.NOTHING
        if state == _FORBIDDEN and self._driver.routine(error) == _ROW_SECURITY:
            return DatabaseFailure.CONSTRAINT  # a row that a policy refuses: no permission of a table helps
        return _FAILURES.get(state) or _FAILURES_BY_CLASS.get(state[:2], DatabaseFailure.NOTHING)

    def _execute_held_text(self, connection: Connection, *_: object) -> None:
        if words := take_held_text(connection):
            self._execute_text(connection, words)

    def _execute_text(self, connection: Connection, words: str) -> str:
        drivers: tuple[type[Exception], ...] = (OSError, *self.errors)
        try:
            return self._driver.execute_text(connection, words)
        except drivers as error:
            if self._driver.state(connection) not in _BEGUN:
                connection.exec_driver_sql("ROLLBACK")  # fails as well, and lets the pool know that its connections are cut off
            raise DBAPIError(words.partition(" (")[0], None, error) from error


class _Inserted:
    """What a row of RETURNING has, of one that was inserted without."""

    def __init__(self, row: Mapping[str, Any]) -> None:
        self.__dict__.update(row)


@cache
def _insert_absent(table: Table, names: tuple[str, ...], key: tuple[str, ...]) -> Any:
    absent = _insert_all(table, names).on_conflict_do_nothing(index_elements=list(key))
    return absent.returning(*(table.c[name] for name in key))


@cache
def _insert_at(table: Table, names: tuple[str, ...], key: tuple[str, ...], *, is_waiting: bool) -> Select[Any]:
    """Return the statement. What is materialized runs in this order: a row is made when the time-out has been set.

    The time-out is set back when the row is there, or another transaction has made it.
    """
    row = [cast(bindparam(_new(name), type_=table.c[name].type), table.c[name].type) for name in names]
    given = select(*row)
    before = select(func.current_setting("lock_timeout").label("value")).cte("before").prefix_with("MATERIALIZED")
    set_now = _set_lock_timeout(bindparam(_WAIT, type_=Text)).label("own")
    waiting = select(before.c.value, set_now).cte("waiting").prefix_with("MATERIALIZED")
    if is_waiting:
        given = given.select_from(waiting).where(waiting.c.own.is_not(None))
    absent = insert(table).from_select(names, given).on_conflict_do_nothing(index_elements=list(key))
    inserted = absent.returning(DatabaseNow().label("at")).cte("inserted")
    at = select(inserted.c.at).scalar_subquery()
    if not is_waiting:
        return select(at.label("at"))
    done = select(waiting.c.value, at.label("at")).cte("done").prefix_with("MATERIALIZED")
    return select(done.c.at, _set_lock_timeout(done.c.value))


def _set_lock_timeout(value: ColumnElement[str]) -> ColumnElement[str]:
    return func.set_config("lock_timeout", value, True)  # noqa: FBT003 - a parameter of SQL


@cache
def _insert_and_update(table: Table, names: tuple[str, ...], change: Update) -> Update:
    row = {name: bindparam(_new(name), type_=table.c[name].type) for name in names}
    return change.add_cte(insert(table).values(row).cte("inserted"))


def _new(name: str) -> str:
    return f"new_{name}"


@cache
def _insert_all(table: Table, names: tuple[str, ...]) -> Insert:
    rows = _rows(table, names)
    return insert(table).from_select(names, select(*(rows.c[name] for name in names)))


@cache
def _update_all(table: Table, names: tuple[str, ...], key: str) -> Update:
    rows = _rows(table, names)
    return update(table).where(table.c[key] == rows.c[key]).values({name: rows.c[name] for name in names if name != key})


@cache
def _locked(table: Table, key: str, names: tuple[str, ...]) -> Select[Any]:
    chosen = select(*(table.c[name] for name in names)).where(_among(table.c[key]))
    return chosen.order_by(table.c[key]).with_for_update()


@cache
def _consumed(table: Table, key: str) -> Any:
    column = table.c[key]
    locked = func.array(_locked(table, key, (key,)).scalar_subquery(), type_=ARRAY(column.type))
    return delete(table).where(column == any_(locked)).returning(column)


@cache
def _removed(tables: tuple[Table, ...], key: str, only: tuple[tuple[str, Any], ...]) -> Any:
    *others, last = (
        delete(table).where(_among(table.c[key]), *(table.c[name] == value for name, value in only)) for table in tables
    )
    return last.add_cte(*(other.cte(f"from_{number}") for number, other in enumerate(others)))


def _among(column: Column[Any]) -> ColumnElement[bool]:
    return column == any_(bindparam(_list(column.name), type_=ARRAY(column.type)))


def _rows(table: Table, names: tuple[str, ...]) -> TableValuedAlias:
    columns = [table.c[name] for name in names]
    lists = [bindparam(_list(column.name), type_=ARRAY(column.type)) for column in columns]
    return func.unnest(*lists).table_valued(*(_untyped(column) for column in columns)).render_derived()


def _untyped(column: Column[Any]) -> Column[Any]:
    return Column(column.name, column.type)


def _list(name: str) -> str:
    return f"{name}_list"
