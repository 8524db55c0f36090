"""What differs between SQL databases, on one screen. A new database is one file that implements this."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Column, ColumnElement, Connection, Row, Select, Table, insert
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.model.errors import SetupError
from onceonly.sql.maintenance import RingMaintenance
from onceonly.sql.statement_events import StatementListener

KEPT_OPEN = 32
"""Connections that a pool keeps once they were needed; one more than that is closed after each use, which costs far more."""


BATCH_LOCK_SECONDS = 1.0
"""Seconds for which a unit of several messages waits for a lock: the others in it must not wait long for one."""


class DatabaseFailure(Enum):
    """What a database said for sure when it raised an error. Nothing of the statement happened, but for NOTHING."""

    LOCKED = "another transaction is in the way"
    HELD = "another transaction held a lock for longer than this one waits"
    CONSTRAINT = "a constraint refused the change"
    STATEMENT = "this statement can never work here"
    UNABLE = "the database cannot do it at the moment"
    FORBIDDEN = "this user may not do it; no message is to blame"
    ABORTED = "an error before left the transaction so that it cannot be committed"
    NOTHING = "nothing that can be relied on"


class State(Enum):
    """What has become of a database transaction."""

    OPEN = "open"
    ABORTED = "an error left it so that nothing can be committed"
    ENDED = "it was committed or rolled back by other means"
    LOST = "its connection is gone"


class Purpose(Enum):
    """What a database transaction is begun for."""

    UNIT = "a unit: handlers work in it, at the isolation that the user chose or the database's own"
    BATCH = "a unit of several messages: it waits for a lock for 1 s at most, where that costs no round trip"
    WRITING = "statements of this library that write; each sees what is committed when it starts"
    READING = "statements of this library that only read, all of them one state"


class Limit(NamedTuple):
    """How long after `since`, which `Dialect.started` gave, a database transaction may still be committed."""

    since: int
    milliseconds: int


class Dialect(Protocol):
    """One database system. Its functions run inside SQLAlchemy's greenlet, so they take synchronous connections.

    A dialect is a subclass. It inherits the defaults of `insert_behind`, `insert_all`, `insert_last` and `update_last`.
    """

    name: str
    embedded: bool
    """Whether the database is a file of this process, whose tables are made at start."""

    single_writer: bool
    """Whether one writing transaction at a time is all there can be."""

    autocommits: bool
    """Whether a single statement may be sent without a transaction around it, and still waits and locks as it should."""

    holds: bool
    """Whether `hold` has the database itself refuse a commit, so that `let_go` is needed."""

    begins_later: bool
    """Whether `begin` says nothing yet for a unit, so that it never waits."""

    has_schemas: bool
    """Whether tables live in schemas, which `?schema=` names."""

    isolations: frozenset[str]
    """The isolation levels that a unit may ask for."""

    gapless: str | None
    """The isolation at which a unit that looks for rows which may be gone does not lock the gaps they left; None for any."""

    maintenance: RingMaintenance
    """What empties tables, and sees that only one does."""

    errors: tuple[type[Exception], ...]
    """What the driver raises past SQLAlchemy; all of it is OutcomeUnknown."""

    looks: StatementListener
    """What looks at each statement."""

    def engine(self, url: URL, *, timeout: float) -> AsyncEngine:
        """Make an engine of this library's own; a lock is waited for `timeout` seconds. Raises SetupError, DriverMissing."""

    def adopt(self, engine: AsyncEngine) -> AsyncEngine:
        """Give a view of a user's engine on which `begin` works; shares its pool and changes nothing of it."""

    async def prepare(self, engine: AsyncEngine, *, durable: bool) -> None:
        """Bring the database into the state that the promise needs, once, before its first transaction.

        Raises SetupError when it is not durable and cannot be made so, or cannot be written.
        """

    def expect(self, longest: float) -> None:
        """Expect a transaction to be without a statement for at most `longest` seconds; the longest one expected counts.

        A server ends a transaction that is silent for longer, so that a host that has vanished holds no locks.
        """

    def hang_up(self) -> None:
        """Close all connections of an engine of this library's own at once: what waits for them fails. Awaits nothing."""

    def begin(self, connection: Connection, purpose: Purpose, *, isolation: str | None) -> None:
        """Begin a database transaction in the driver, now; `isolation` is one of `isolations`, for units only."""

    def started(self, connection: Connection) -> int:
        """Note the instant by the database's own clock, for a `Limit`; soon after `begin`."""

    def commit(self, connection: Connection, limit: Limit | None = None) -> None:
        """Commit in the driver what `begin` began, where SQLAlchemy's own commit does not; raises when it was rolled back.

        With a limit it raises TooLate, for sure, when that is over by the database's own clock. A server gets clock and COMMIT
        in one request, so nothing that happens on the way there makes it commit later.
        """

    def hold(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Get a unit ready for its handlers, behind its claims: until `let_go` the database refuses to commit it, whoever asks.

        It can be rolled back, and has savepoints. Refuses nothing where the database has no way to. A unit `of_messages` can be
        run again later: while a row is locked for long, it does not wait for locks. One that is `isolated` repeats the unit
        before it, and waits no longer.
        """

    def let_go(self, connection: Connection) -> None:
        """Undo `hold`; harmless without one."""

    def roll_back(self, connection: Connection) -> None:
        """Roll back in the driver what `begin` began, where SQLAlchemy's own rollback does not; harmless when it is over."""

    def state(self, connection: Connection) -> State:
        """Read the driver's own transaction state; costs no statement."""

    def insert_absent(
        self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Insert the rows whose `key` columns are not there yet, in the order given; gives the `key` columns of these only.

        One statement for some thousand rows. It waits for another transaction that has inserted one of the keys to end.
        """

    def insert_behind(
        self, connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
    ) -> Sequence[Row[Any]] | None:
        """Do what `insert_absent` does, if `first` is there already: a row without which there are no others.

        None: it was not. Then it is now, and the transaction must be rolled back. All in one statement, and nobody takes
        `first` away before the transaction has ended.

        By default `first` is offered together with the others. That serves a database in which an INSERT locks the table, or
        the row that refuses it, or in which nobody else writes meanwhile.
        """
        inserted = self.insert_absent(connection, table, [first, *rows], key=[key])
        return None if any(getattr(row, key) == first[key] for row in inserted) else inserted

    def insert_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows that are not there yet; one statement for some thousand of them, none for none.

        By default that is INSERT ... VALUES.
        """
        if rows:
            connection.execute(insert(table), [dict(row) for row in rows])

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Do what `insert_all` does, or have `commit` do it, which then raises what became of it; for units only.

        By default it inserts now.
        """
        self.insert_all(connection, table, rows)

    def update_last(self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: str) -> None:
        """Do what `update_all` does with one row, or have `commit` do it, which then raises what became of it; units only.

        The row need not have all columns. By default it is updated now, by `update_all`.
        """
        self.update_all(connection, table, [row], key=key)

    def update_all(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: str) -> None:
        """Give rows that are there, and that this transaction has locked, the values of all their columns; found by `key`."""

    def lock(
        self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
    ) -> Sequence[Row[Any]]:
        """Lock the rows of these keys, in the order of the keys, and no others; gives these columns of those that are there.

        They are given as they are once the lock is had. One statement.
        """

    def consume(self, connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
        """Delete the rows of these keys, locked in the order given; gives the keys of those that were there.

        Waits for another transaction that has deleted or inserted one of them to end.
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
        """Delete the rows of these keys from each table, and lock no others; gives how many were in the last one.

        With `only` just those that have these values. One statement for each table, or for all of them.
        """

    def among(self, column: Column[Any], parameter: str) -> ColumnElement[bool]:
        """Build the condition that `column` is one of a list; the list is passed as `parameter`."""

    def current(self, query: Select[Any]) -> Select[Any]:
        """Make a unit's read see what was committed before it, whatever its transaction has seen."""

    def take(self, table: Table, first: Select[Any], marks: Mapping[str, Any], returning: Sequence[str]) -> "QueueTaking":
        """Build how a queue takes the rows of its table that `first` selects (its primary key alone, in order, limited).

        Rows that another transaction is taking are passed over. `marks` is what they are set to.
        """

    def lock_schema(self, connection: Connection, name: str) -> None:
        """Let one transaction at a time create or upgrade the tables of this name."""

    def said(self, error: DBAPIError) -> DatabaseFailure:
        """Classify a driver's error by allow-list."""


class QueueTaking(Protocol):
    """How a queue takes messages, in a writing transaction."""

    def __call__(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Take, and give the `returning` columns of what was taken, in any order."""


class SingleStatementTaking:
    """Taking by one statement that updates and returns."""

    def __init__(self, statement: Any) -> None:
        """Keep the statement."""
        self.statement = statement

    def __call__(self, connection: Connection, parameters: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Run it."""
        return connection.execute(self.statement, dict(parameters)).all()


def checked_isolation(dialect: Dialect, isolation: str | None) -> str | None:
    """Give an isolation level as SQL writes it. Raises SetupError unless the database has it."""
    if isolation is None:
        return None
    level = " ".join(isolation.upper().replace("_", " ").replace("-", " ").split())
    if level not in dialect.isolations:
        raise SetupError(f"isolation={isolation!r}: {dialect.name} has {', '.join(sorted(dialect.isolations))}")
    return level
