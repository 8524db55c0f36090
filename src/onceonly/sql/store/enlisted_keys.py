"""A client's key in a database transaction that the caller owns: in the caller's commit, with its rows and records.

The key is inserted at once, so that a second attempt waits for the first one. The answer is written before the commit, by the
statement that also checks the deadline by the server's clock. Whatever undoes the row of the key ends the `SessionKey`.
"""

from collections.abc import Awaitable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Table, Update, bindparam, insert, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from onceonly.model.errors import CommitFailed, ConflictError, KeyReused, LockTimeout, OutcomeUnknown, SetupError
from onceonly.model.record import Record
from onceonly.model.transaction import (
    MOST_RECORDS,
    IdempotencyEntry,
    TransactionAttempt,
    attempt_with_records,
    key_of,
)
from onceonly.sql.database_clock import StatementNow
from onceonly.sql.dialect import Dialect
from onceonly.sql.store.enlistment import (
    Committed,
    EnlistedSession,
    RecordStore,
    check_bind,
    check_connection,
    listeners_of,
    mapped,
    session_of,
)
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import Tables, tables
from onceonly.sql.store.transactions import read_entry
from onceonly.sql.translation import translated

SyncSessions = Session | scoped_session[Any]
"""Synchronous sessions of SQLAlchemy: their key is taken before `enlist` returns."""

AsyncSessions = AsyncSession | async_scoped_session[Any]
"""Asynchronous sessions of SQLAlchemy: what `enlist` returns is awaited."""


class KeyToTake(NamedTuple):
    """The attempt whose key is taken, and the time in milliseconds since 1970 from which the key is kept."""

    opening: TransactionAttempt
    now: int


class HeldRecord(NamedTuple):
    """A record that the statement of the commit inserts, with the transactions in which it was written, and its time."""

    within: tuple[SessionTransaction, ...]
    record: Record
    now: int


class SessionKey(EnlistedSession):
    """A key, and the records and the answer that are committed with it. `entry` is that of a key that is known already.

    `first` is the one that has taken it, where it is known because of this very transaction: it is not committed yet.
    """

    def __init__(self, session: Session, home: RecordStore, committed: Committed, opening: TransactionAttempt) -> None:
        super().__init__(session, home, committed)
        self.entry: IdempotencyEntry | None = None
        self.first: SessionKey | None = None
        self.is_committed = False
        self._opening = opening
        self._stored_attempt = attempt_with_records(opening.attempt, 0)
        self._tables = tables(home.place.prefix, home.place.schema)
        self._taken_in: tuple[SessionTransaction, ...] = ()
        self._answers: list[tuple[tuple[SessionTransaction, ...], bytes | None]] = []
        self._deadline = 0
        self._holds = self._are_rows = False
        self._held: list[HeldRecord] = []
        self._inserted: tuple[Record, ...] = ()
        self._connection: Connection | None = None

    @property
    def attempt(self) -> str:
        return self._opening.attempt

    @property
    def is_own(self) -> bool:
        """Whether the key is known because this very transaction has taken it."""
        return self.first is not None

    @property
    def is_lost(self) -> bool:
        """Whether what has taken the key was rolled back."""
        if self.first is not None:
            return self.first.is_lost
        return self.is_over and self.entry is None and not self.is_committed

    @property
    def answer(self) -> bytes | None:
        """The answer as it would be committed now, or the stored one. One that was set in a savepoint goes with it."""
        if self.first is not None:
            return self.first.answer
        if self.entry is not None:
            return self.entry.answer
        return self._answers[-1][1] if self._answers else None

    def set_answer(self, answer: bytes | None) -> None:
        self._answers.append((_open_transactions(self._session), answer))

    def hold_records(self) -> None:
        """Insert the records by the statement that stores the answer, instead of with the session's next flush.

        For those who commit by the session alone: a commit of its connection would have the key without the records.
        """
        self._holds = True

    def take(self, connection: Connection, dialect: Dialect, now: int) -> None:
        """Insert the key, or read what is kept. Raises ConflictError, KeyReused, PermanentFailure, UpgradeRequired."""
        found = take_key(KeyTables(connection, dialect, self._tables), self._opening, now)
        if isinstance(found, IdempotencyEntry):
            self.entry = found
        else:
            self._taken_in = _open_transactions(self._session)
            self._deadline = found + self._opening.max_commit

    def write(self, record: Record, now: int) -> None:
        """Add a record to the session. Raises OverflowError for more than `MOST_RECORDS`."""
        if len(self._written) >= MOST_RECORDS:
            raise OverflowError(f"a transaction with a key can send {MOST_RECORDS} messages. Send the others without the key")
        if self._connection is None and self._holds:
            self._held.append(HeldRecord(_open_transactions(self._session), record, now))
            self._written.append(record.identity)
        else:
            self._are_rows = True
            super().write(record, now)

    def rolled_back(self, ended: SessionTransaction) -> None:
        """Drop what went with a savepoint, and end with the one in which the key was taken."""
        super().rolled_back(ended)
        self._answers = [(within, answer) for within, answer in self._answers if ended not in within]
        self._held = [each for each in self._held if ended not in each.within]
        if ended in self._taken_in:
            self.is_over = True

    def check(self) -> None:
        """Write answer and records, and refuse a commit that is too late. Raises CommitFailed, InvalidEffect."""
        super().check()
        session = self._session
        if self.is_over or self.entry is not None or session.in_nested_transaction():
            return
        session.flush()
        endpoint, held = self._opening.endpoint, self._held
        attempt = attempt_with_records(self._opening.attempt, len(self._written))
        rows = [row_of(endpoint, each.record, each.now) for each in held]
        connection = connection_of(session, self._home)
        where = KeyTables(connection, self.dialect, self._tables)
        change = StoredAnswer(self._stored_attempt, attempt, self.answer, self._deadline)
        store_answer(where, self._opening, change, rows)
        self._stored_attempt = attempt
        self._connection, self._held = connection, []
        self._inserted += tuple(each.record for each in held)

    def tell(self) -> None:
        """Report the records of a commit: whole, if no outer transaction can undo them."""
        if self.is_over or self.entry is not None:
            return
        self.is_committed = True
        is_alone = self._connection is not None and not self._connection.in_transaction()
        if self._are_rows or not is_alone:
            super().tell()
        elif self._inserted:
            self._committed(self._inserted)


def enlist_key(
    session: object, home: RecordStore, committed: Committed, asked: KeyToTake
) -> SessionKey | Awaitable[SessionKey]:
    """Take a key in the open transaction of a session; with an asynchronous one, when the result is awaited.

    Raises SetupError as `enlist`, and for a two-phase session. Raises ConflictError when nothing was done, which leaves the
    caller's transaction to be rolled back, and what the driver raises for all else.
    """
    own = session_of(session)
    check_bind(own, home)
    if own.twophase:
        raise SetupError(
            "enlist: a two-phase session can be committed at any time after its prepare, so the deadline of a key could not be "
            "kept: use a session without twophase=True"
        )
    if isinstance(session, AsyncSession | async_scoped_session):
        opened = session() if isinstance(session, async_scoped_session) else session
        return opened.run_sync(lambda _: _take(own, home, committed, asked))
    return _take(own, home, committed, asked)


def _take(session: Session, home: RecordStore, committed: Committed, asked: KeyToTake) -> SessionKey:
    taken = SessionKey(session, home, committed, asked.opening)
    dialect = taken.dialect
    try:
        connection = connection_of(session, home)
        # a single writer waits for its lock as soon as it begins to write
        with dialect.waiting(connection, asked.opening.wait if dialect.single_writer else None):
            check_connection(connection, home.place, dialect)
        taken.take(connection, dialect, asked.now)
    except DBAPIError as error:
        failure = translated(error, dialect, locked=ConflictError, unknown=OutcomeUnknown)
        if isinstance(failure, LockTimeout):
            raise LockTimeout(f"another transaction has this idempotency key: roll back and try again. {failure}") from error
        if isinstance(failure, ConflictError):
            raise ConflictError(f"another transaction has this idempotency key: roll back and try again. {failure}") from error
        raise
    listeners = listeners_of(session)
    if taken.entry is not None:
        own = (each for each in listeners.open if isinstance(each, SessionKey) and taken.entry.attempt.startswith(each.attempt))
        taken.first = next(own, None)
    listeners.open.append(taken)
    return taken


def connection_of(session: Session, home: RecordStore) -> Connection:
    """Return the connection on which a session writes the tables of a store. It begins the transaction if need be."""
    place = home.place
    bind = {"mapper": mapped(place.prefix, place.schema), "clause": insert(tables(place.prefix, place.schema).records)}
    return session.connection(bind_arguments=bind)


class KeyTables(NamedTuple):
    """A connection with an open transaction, and the tables of a store on it."""

    connection: Connection
    dialect: Dialect
    tables: Tables


class StoredAnswer(NamedTuple):
    """What is stored with a key at its commit: a new `attempt` and the answer.

    `own_attempt` is the attempt that the row has, and `deadline` the latest time, in milliseconds since 1970.
    """

    own_attempt: str
    attempt: str
    answer: bytes | None
    deadline: int


def take_key(where: KeyTables, opening: TransactionAttempt, now: int) -> int | IdempotencyEntry:
    """Insert a key, and return the time of the database in milliseconds since 1970; or return what is kept under it.

    Raises ConflictError, KeyReused, PermanentFailure, UpgradeRequired.
    """
    key = key_of(opening.endpoint, opening.key)
    attempt = attempt_with_records(opening.attempt, 0)
    row = {"key": key, "fingerprint": opening.fingerprint, "attempt": attempt, "stored_at": now}
    taken_at = where.dialect.insert_at(where.connection, where.tables.keys, row, key=["key"], wait=opening.wait)
    if taken_at is not None:
        return taken_at
    entry = read_entry(where.connection, where.tables, opening.endpoint, key)
    if entry is None:  # it was removed since, or this transaction's snapshot is older than it
        raise ConflictError("another transaction has just stored or deleted this idempotency key: roll back and try again")
    if entry.fingerprint != opening.fingerprint:
        raise KeyReused("this idempotency key was used for another request: use a new key for each new request")
    return entry


def store_answer(
    where: KeyTables, opening: TransactionAttempt, change: StoredAnswer, records: Sequence[Mapping[str, Any]]
) -> None:
    """Store an answer, and insert rows of records with it. Raises CommitFailed if it is too late, or the key is gone."""
    statement = _answer_statement(where.tables.keys)
    values = {"own_key": key_of(opening.endpoint, opening.key), **change._asdict()}
    if where.dialect.insert_and_update(where.connection, where.tables.records, records, statement, values=values) != 1:
        raise CommitFailed(
            f"the idempotency key was taken more than {opening.max_commit} ms ago, or a statement has rolled it back, so "
            "nothing may be committed: roll back and try again"
        )


@cache
def _answer_statement(keys: Table) -> Update:
    """Return the statement of `store_answer`, which takes longer to build than to execute."""
    own = keys.c.key == bindparam("own_key", type_=keys.c.key.type)
    is_taken = keys.c.attempt == bindparam("own_attempt", type_=keys.c.attempt.type)
    statement = update(keys).where(own, is_taken, StatementNow() <= bindparam("deadline", type_=BigInteger))
    answer = bindparam("answer", type_=keys.c.answer.type)
    return statement.values(answer=answer, attempt=bindparam("attempt", type_=keys.c.attempt.type))


def _open_transactions(session: Session) -> tuple[SessionTransaction, ...]:
    """Return the innermost open transaction of a session, and those around it."""
    found: list[SessionTransaction] = []
    innermost = session.get_nested_transaction() or session.get_transaction()
    while innermost is not None:
        found.append(innermost)
        innermost = innermost.parent
    return tuple(found)
