"""What a SQL database has to offer. A new database is one class that derives from `Dialect`.

The tables of this library have a class for each kind of column, such as `ClaimKey`. It is a type of SQLAlchemy. Where its SQL
does not fit a database, register the right one with `sqlalchemy.ext.compiler.compiles`, for the name of the SQLAlchemy dialect.
Values are converted by the `colspecs` of that dialect. Register the clocks `DatabaseNow` and `StatementNow` in any case.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Table, Update, bindparam, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.model.errors import SetupError
from onceonly.sql.columns import ClaimKey, Data, ExactText, Fingerprint, LongText, ReadableText, RowNumber, ShortName, TextKey
from onceonly.sql.database_clock import DatabaseNow, StatementNow, database_now
from onceonly.sql.database_history import DatabaseHistory
from onceonly.sql.maintenance import RingMaintenance
from onceonly.sql.notifications import Listening
from onceonly.sql.statement_effects import Effect, Rule, StatementEffects
from onceonly.sql.statement_events import Execute, Look, Rewrite, StatementListener

__all__ = [
    "BATCH_LOCK_SECONDS",
    "ClaimKey",
    "Data",
    "DatabaseFailure",
    "DatabaseHistory",
    "DatabaseNow",
    "Dialect",
    "DriverScope",
    "Effect",
    "ExactText",
    "Execute",
    "Fingerprint",
    "Limit",
    "Listening",
    "LongText",
    "Look",
    "Purpose",
    "QueueTaking",
    "ReadableText",
    "Rewrite",
    "RingMaintenance",
    "RowNumber",
    "Rule",
    "ShortName",
    "SingleStatementTaking",
    "State",
    "StatementEffects",
    "StatementListener",
    "StatementNow",
    "TextKey",
    "TooLate",
]

KEPT_OPEN = 32
"""Connections that a pool keeps once they were needed; one more than that is closed after each use, which costs far more."""


BATCH_LOCK_SECONDS = 1.0
"""Seconds for which a unit of several messages waits for a lock."""


class TooLate(SQLAlchemyError):
    """A transaction was not committed, because its `Limit` was over. `Dialect.commit` raises it. Nothing happened."""


class DatabaseFailure(Enum):
    """What an error of the database means. Except for NOTHING, the failed statement has changed nothing."""

    LOCKED = "another transaction holds a lock"
    HELD = "the time to wait for a lock is over"
    CONSTRAINT = "a constraint was violated"
    STATEMENT = "the statement is invalid"
    UNABLE = "the database is temporarily unable, such as out of disk space"
    FORBIDDEN = "this user lacks a permission"
    READ_ONLY = "the database or this transaction is read-only"
    SESSION = "the session lacks what was set up in it, such as a prepared statement"
    ABORTED = "an earlier error aborted the transaction"
    NOTHING = "the outcome is unknown"

    @property
    def can_be_set(self) -> bool:
        """Whether a setting of the session can be the cause, such as SET ROLE, SET TRANSACTION READ ONLY or DEALLOCATE.

        If a handler has said such a statement, these failures are its own, wherever they show. If not, they are an outage.
        """
        return self in _CAN_BE_SET


_CAN_BE_SET = frozenset(
    {DatabaseFailure.STATEMENT, DatabaseFailure.FORBIDDEN, DatabaseFailure.READ_ONLY, DatabaseFailure.SESSION}
)


class State(Enum):
    """The state of a database transaction."""

    OPEN = "open"
    ABORTED = "an error aborted it"
    ENDED = "something else committed or rolled it back"
    LOST = "its connection was lost"


class Purpose(Enum):
    """What a database transaction is for."""

    UNIT = "a unit with handlers, at the isolation level of the endpoint or the database"
    BATCH = "a unit with several messages: waits at most 1 s for a lock where this needs no extra round trip"
    WRITING = "internal writes: each statement reads what is committed when it starts"
    LEASING = "internal writes like `WRITING`: a crash of the server may undo them after their commit"
    READING = "internal reads from one snapshot"


class Limit(NamedTuple):
    """The time within which a transaction may be committed: `milliseconds` after `since`, which `Dialect.started` returned."""

    since: int
    milliseconds: int


class DriverScope(Protocol):
    """What decides about uses of the driver's connection in one handler. Its methods raise RuntimeError for what is refused."""

    def before_driver(self, statement: str) -> Coroutine[Any, Any, Any] | None:
        """Look at a statement. Return what is to be awaited before it is executed, or None."""

    def check_use(self) -> None:
        """Check that the handler has not ended."""

    def check_transaction(self) -> None:
        """Check that the unit's transaction has not ended."""

    def before_use(self) -> Coroutine[Any, Any, Any] | None:
        """Look at a use without a text. Return as `before_driver`."""

    def leave(self, what: str) -> None:
        """Note a use whose effects may outlive the transaction: the connection is closed after the unit."""


class Dialect(Protocol):
    """One SQL database. Derive a class from it, and implement every method without a default.

    There are defaults for `history`, `shrink_log`, `has_ended`, `is_busy`, `insert_behind`, `insert_all`, `insert_last`,
    `update_last`, and for databases without notifications.
    Methods that take a connection run in SQLAlchemy's greenlet, so the connection is a synchronous one. They raise what
    SQLAlchemy and the driver raise.
    """

    name: str
    """The name in error messages."""

    embedded: bool
    """Whether the database is a file of this process. Its tables are created at start."""

    single_writer: bool
    """Whether only one transaction can write at a time. The library then lets the transactions of a process take turns."""

    autocommits: bool
    """Whether a single statement can be sent without a transaction, and waits for locks as in one."""

    blocks_commit: bool
    """Whether `block_commit` makes the database refuse a commit, so that `allow_commit` is needed."""

    begins_lazily: bool
    """Whether `begin` sends nothing for a unit, so that it never waits."""

    has_schemas: bool
    """Whether tables can be in schemas. If not, `?schema=` in a URL is an error."""

    isolations: frozenset[str]
    """The isolation levels that a unit may ask for, such as "SERIALIZABLE"."""

    default_isolation: str | None = None
    """The isolation level for units of messages when none was chosen. None: the database's own."""

    stale_levels: frozenset[str] = frozenset()
    """Levels at which a later message of a unit could overwrite what was committed since the unit's first read, unnoticed.

    With one of these each message has a unit of its own.
    """

    gapless: str | None
    """The isolation level for units that lock rows which may be missing, if others lock gaps. None: the unit's own."""

    maintenance: RingMaintenance
    """How tables are emptied, and how one process of all is elected for it."""

    errors: tuple[type[Exception], ...]
    """Errors of the driver that SQLAlchemy does not wrap. They leave the outcome open: OutcomeUnknown."""

    listener: StatementListener
    """Functions that are called for each statement."""

    effects: StatementEffects = StatementEffects()
    """What the text of a statement does to the transaction or the session."""

    inserts_at_once: bool = False
    """Whether many rows are inserted faster with RETURNING, of which SQLAlchemy makes one statement."""

    is_pooled: bool = False
    """Whether a connection pooler may give each transaction another session. Known after `prepare`."""

    notifies: bool = False
    """Whether `notify` wakes connections that `listen`. Receivers of other databases poll."""

    listens: bool = False
    """Whether `listen` works through what is between this process and the server. Known after `prepare`."""

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Create an engine. A statement waits `timeout` seconds for a lock. One that is cancelled leaves no lock behind.

        The options of this library are not in the URL any more. Raises SetupError, DriverMissing.
        """

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Return a view of a user's engine on which `begin` works. It shares the pool. The user's engine does not change."""

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Check the database, and change settings where that is possible. Called before the first transaction, and every 30 s.

        With `durable`, a commit must survive a power cut. Raises SetupError for a database that cannot promise what is needed,
        such as one that is read-only.
        """

    async def history(self, engine: AsyncEngine) -> DatabaseHistory | None:
        """Return how far the server has come, to notice a fail-over that lost commits. Called after `prepare`.

        None, the default: it cannot tell, or this user may not ask. Raises the driver's own errors if it does not answer.
        """
        return None

    async def shrink_log(self, engine: AsyncEngine) -> int:
        """Return disk space of a log in a file of this process, if it is large; return how many logs that were. Must not wait.

        The default does nothing. Raises the driver's own errors.
        """
        return 0

    def expect(self, longest: float) -> None:
        """Set for how many seconds a transaction can be without a statement. The longest of all calls counts.

        A server should end a transaction that is silent for longer, so that a host that has vanished holds no locks.
        """

    def drop_connections(self) -> None:
        """Close all connections of engines from `engine` at once. Calls that wait for them fail. Must not wait.

        The default does nothing.
        """
        return

    def forget_connections(self) -> None:
        """Drop references to closed connections: their engine was disposed of. This object may live longer. Must not wait.

        The default does nothing.
        """
        return

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin a transaction in the driver. `isolation` is one of `isolations`, for units only.

        Where `single_writer` is true, a transaction that writes gets its lock here.
        """

    def started(self, connection: Connection) -> int:
        """Return the time for a `Limit`, in milliseconds by the database's clock. Called soon after `begin`."""

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Commit in the driver, where SQLAlchemy's own commit, which follows, does not.

        With a limit, raise TooLate if it is over by the database's clock. A server must get this check and COMMIT in one
        request, so that no delay on the way makes it commit later. Raises the driver's error if the server rolled back.
        """

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Prepare a unit for its handlers, after its claims are inserted.

        If `blocks_commit` is true, the database refuses a commit by a handler until `allow_commit`. Rollbacks and savepoints
        work. A unit `of_messages` can run again later, so it need not wait for a lock that is held for long. One that is
        `isolated` repeats the unit before it, and should not wait longer than that.
        """

    def set_savepoint(self, connection: Connection, name: str, *, again: bool) -> None:
        """Set a savepoint, on the unit's own connection. `again`: one of this name is left, and not needed any more."""
        if again:
            connection.dialect.do_release_savepoint(connection, name)
        connection.dialect.do_savepoint(connection, name)

    def allow_commit(self, connection: Connection) -> None:
        """Undo `block_commit`. Harmless without one. The default does nothing."""
        return

    def roll_back(self, connection: Connection) -> None:
        """Roll back in the driver, where SQLAlchemy's own rollback does not. Harmless after the end of the transaction."""

    def state(self, connection: Connection) -> State:
        """Return the state of the transaction, as the driver knows it. Must not send a statement."""

    def has_ended(self, connection: Connection) -> bool:
        """Return whether `state` is `State.ENDED`. Called before each statement of a handler.

        The default reads the state.
        """
        return self.state(connection) is State.ENDED

    def is_busy(self, connection: Connection) -> bool:
        """Return whether the database is executing a statement of this connection, as far as SQLAlchemy's driver adapter knows.

        Must not send a statement. A statement that a handler executes on the driver's own connection may be missed.
        """
        # `_execute_mutex` is private. The public events `before_cursor_execute` and `after_cursor_execute` are no alternative:
        # they do not enclose BEGIN and COMMIT, and they cost two calls for each statement. A test notices if it disappears.
        adapted: Any = connection.connection.dbapi_connection
        mutex = getattr(adapted, "_execute_mutex", None)
        return mutex is not None and bool(mutex.locked())

    def enclose_driver(self, driver: object, scope: "DriverScope") -> object | None:
        """Return what stands for the driver's connection in one handler, and obeys the scope. None if there is no such thing.

        A handler that asks for a driver's connection that cannot be enclosed gets a transaction of its own.
        """
        return None

    def own_settings(self, connection: Connection) -> AbstractContextManager[None]:
        """Enclose the library's own statements in a unit whose handler has changed settings. They must not depend on these.

        Handlers' triggers that run at the commit find the settings again. The default changes nothing.
        """
        return nullcontext()

    def reset_session(self, connection: Connection) -> bool:
        """Undo what a handler has set in the session, after the end of its transaction. Return whether that was possible.

        Otherwise the connection is closed. The default returns False.
        """
        return False

    def waiting(self, connection: Connection, milliseconds: int | None) -> AbstractContextManager[None]:
        """Enclose one statement, on a connection of any driver, that waits for a lock no longer than this.

        None: as long as for any lock. A wait that is too long raises the driver's error, which `classify` names. Statements
        after it wait as before. The default changes nothing.
        """
        return nullcontext()

    def commits_each_statement(self, connection: Connection) -> bool:
        """Return whether the driver, any one, is in autocommit mode and has no open transaction, although SQLAlchemy began one.

        Nothing is sent. The default returns False.
        """
        return False

    def insert_absent(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Insert the rows whose `key` columns are not in the table, in this order. Return the `key` columns of these rows.

        Use one statement for some thousand rows. It waits for the end of another transaction that has inserted one of the keys.
        """

    def insert_at(
        self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: Sequence[str], wait: int | None
    ) -> int | None:
        """Do what `insert_absent` does for one row, inside of `waiting`. Return the time of the database after that.

        It is in milliseconds since 1970, None if the row is not inserted. The default asks for it in a statement of its own.
        """
        with self.waiting(connection, wait):
            inserted = self.insert_absent(connection, table, [row], key=key)
        return database_now(connection) if inserted else None

    def insert_and_update(
        self,
        connection: Connection,
        table: Table,
        rows: Sequence[Mapping[str, Any]],
        change: Update,
        *,
        values: Mapping[str, Any],
    ) -> int:
        """Do what `insert_all` does, and execute an UPDATE of another table with these values. Return how many rows it changed.

        The default sends two statements.
        """
        self.insert_all(connection, table, rows)
        return connection.execute(change, values).rowcount

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        """Do what `insert_absent` does, provided that the row `first` is in the table. Return None if it was not.

        In that case it is inserted, and the caller rolls back. Use one statement. No other transaction deletes `first` before
        this one ends.

        The default inserts `first` together with the rows. It is right for a database in which an INSERT locks the table or
        the row that exists already, or with a single writer.
        """
        inserted = self.insert_absent(connection, table, [first, *rows], key=[key])
        return None if any(getattr(row, key) == first[key] for row in inserted) else inserted

    def insert_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows that are not in the table, by one statement for some thousand of them. Send none for no rows.

        The default is INSERT ... VALUES.
        """
        if rows:
            connection.execute(insert(table), [dict(row) for row in rows])

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert as `insert_all` does, or let `commit` insert them and raise the errors. For units only.

        The default inserts at once.
        """
        self.insert_all(connection, table, rows)

    def update_last(self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: str) -> None:
        """Update one row as `update_all` does, or let `commit` update it and raise the errors. For units only.

        The row need not have all columns. The default updates at once.
        """
        self.update_all(connection, table, [row], key=key)

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
        """Update rows to these values. They are found by `key`. They exist, and this transaction has locked them."""

    def lock(
        self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Lock the rows of these keys, in the order of the keys, and no others. Return these columns of the rows that exist.

        The values are those after the lock was obtained. Use one statement.
        """

    def consume(self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
        """Delete the rows of these keys, and lock them in this order. Return the keys of those that existed.

        Waits for the end of another transaction that has deleted or inserted one of them.
        """

    def remove(
        self,
        connection: Connection,
        tables: Sequence[Table],
        keys: Sequence[Any],
        *,
        key: str,
        only: Mapping[str, Any] | None = None,
    ) -> int:
        """Delete the rows of these keys from each table, and lock no others. Return how many the last table had.

        With `only`, delete just the rows with these values. Use one statement for each table, or for all of them.
        """

    def among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Return the condition that a column is in a list of values. The list is passed as `parameter`.

        The default is an IN with as many variables as the list is long.
        """
        return column.in_(bindparam(parameter, expanding=True))

    def current(self, query: Select[Any]) -> Select[Any]:
        """Change a query in a unit so that it reads what is committed now, also at an isolation level with snapshots.

        It is the first plain read of the unit, after the claim. The default returns it as it is.
        """
        return query

    def take(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> "QueueTaking":
        """Return how a queue takes rows of its table. `first` selects their primary key, in order and limited.

        Rows that another transaction is taking are skipped. `marks` are the new values of the rows, `returning` the columns to
        return.
        """

    def lock_schema(self, connection: Connection, name: str) -> None:
        """Take a lock until the end of the transaction: one at a time creates or upgrades the tables of this name."""

    async def notify(self, engine: AsyncEngine, channel: str, words: Iterable[str]) -> None:
        """Send words to all that `listen` on a channel. Must not delay the commits of others. Raises the driver's errors.

        Words and channel consist of lower-case letters, digits and underscores. Not called unless `notifies` is true.
        """
        raise SetupError(f"{self.name} has no notifications")

    async def listen(self, engine: AsyncEngine, channel: str, heard: Callable[[str], None]) -> Listening:
        """Open a connection that calls `heard` with each word sent from now on. Raises the driver's errors.

        The connection is not one of the pool's. Not called unless `listens` is true.
        """
        raise SetupError(f"{self.name} has no notifications")

    def classify(self, error: DBAPIError) -> DatabaseFailure:
        """Return what an error means. Use a list of known codes. Every other error is NOTHING."""


class QueueTaking(Protocol):
    """How a queue takes messages, in a transaction for `Purpose.LEASING`."""

    def __call__(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Take rows, and return the `returning` columns of `Dialect.take`, in any order."""


class SingleStatementTaking:
    """Taking by one statement that updates rows and returns them. `statement` is such a statement."""

    def __init__(self, statement: Any) -> None:
        self.statement = statement

    def __call__(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Execute it."""
        return connection.execute(self.statement, dict(parameters)).all()


def checked_isolation(dialect: Dialect, isolation: str | None) -> str | None:
    """Return an isolation level as SQL writes it. Raises SetupError unless the database has it."""
    if isolation is None:
        return None
    level = " ".join(isolation.upper().replace("_", " ").replace("-", " ").split())
    if level not in dialect.isolations:
        raise SetupError(
            f"isolation={isolation!r} is not a level of {dialect.name}: use one of {', '.join(sorted(dialect.isolations))}"
        )
    return level
