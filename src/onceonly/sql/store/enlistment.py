"""Records written inside a database transaction that the caller owns: rows in the caller's own session.

SQLAlchemy's unit of work does the rest: it flushes them with the business data, in bulk, and drops them with a transaction or
a savepoint that is rolled back. Nothing is awaited here, so it is the same for an AsyncSession and a Session.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from operator import methodcaller
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, ref

from sqlalchemy import URL, Connection, Engine, Pool, delete, event, false, insert, inspect
from sqlalchemy.exc import OperationalError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, registry, scoped_session, sessionmaker

from onceonly.model.errors import InvalidEffect, SchemaMissing, SetupError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.sql.database import dialect_of
from onceonly.sql.dialect import Dialect
from onceonly.sql.guard import is_guarded
from onceonly.sql.schema import check_within
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import SCHEMA, tables
from onceonly.sql.urls import DatabaseAddress, whereabouts, written

Committed = Callable[[Sequence[Identity | Record]], None]
"""Told which records the caller has committed, or the names of those that may be, from whatever thread did it.

Must not raise, and must not wait.
"""

CommitGuard = Callable[[], None]
"""Called before each commit of a session, but not before the release of a savepoint. It raises to refuse the commit."""

LISTENERS = "onceonly_listeners"
_CLASSES: "WeakSet[type[Session]]" = WeakSet()
"""The classes to all of whose sessions `listen_to` listens."""
_SEEN: "WeakKeyDictionary[Pool, set[tuple[str, str | None]]]" = WeakKeyDictionary()


class RecordStore(NamedTuple):
    """The endpoint's store: where records must lie to be found. `pool` is that of a user's own engine."""

    endpoint: str
    place: DatabaseAddress
    pool: Pool | None


class EnlistedSession:
    """The open transaction of one session. `is_over` once it was committed, rolled back or closed, whoever did it."""

    def __init__(self, session: Session, home: RecordStore, committed: Committed) -> None:
        self.is_over = False
        self._session = session
        self._home = home
        self._committed = committed
        self.dialect = shared_dialect(home.place.url)
        self._written: list[Identity] = []
        self._unflushed: list[Any] = []

    def write(self, record: Record, now: int) -> None:
        """Add a record to the session; it is flushed when everything else is. `now` is in milliseconds since 1970."""
        row = mapped(self._home.place.prefix, self._home.place.schema)()
        row.dialect = self.dialect
        for column, value in row_of(self._home.endpoint, record, now).items():
            setattr(row, column, value)
        self._session.add(row)
        self._unflushed.append(row)
        self._written.append(record.identity)

    def flushed(self) -> None:
        """Drop the rows that were written; an expunged one is not."""
        self._unflushed = [row for row in self._unflushed if not inspect(row).persistent]

    def rolled_back(self, _ended: SessionTransaction) -> None:
        """Drop the rows that went with a savepoint."""
        self._unflushed = [row for row in self._unflushed if inspect(row).pending]

    def check(self) -> None:
        """Refuse a commit that would lose a message. Raises InvalidEffect."""
        if any(inspect(row).transient for row in self._unflushed):
            raise InvalidEffect(
                "a message of this transaction was expunged before it was flushed, so it would be lost: "
                "flush before expunge_all()"
            )

    def tell(self) -> None:
        """Report what may be committed: some may have gone with a savepoint, all may wait for an outer transaction."""
        if self._written:
            self._committed(tuple(self._written))


@lru_cache(64)
def shared_dialect(url: URL) -> Dialect:
    """Return the dialect of a store. It has no state that belongs to a session of the caller, and is made slowly."""
    return dialect_of(url)


def enlist(session: object, home: RecordStore, committed: Committed) -> EnlistedSession:
    """Write records through this session from now on, until its transaction ends; `committed` is called after its commit.

    Raises SetupError when this is not a session, or one whose tables no relay reads.
    """
    own = session_of(session)
    check_bind(own, home)
    enlisted = EnlistedSession(own, home, committed)
    listeners_of(own).open.append(enlisted)
    return enlisted


def listeners_of(session: Session) -> "SessionListeners":
    """Return what listens to a session."""
    found = _found(session)
    return found if found is not None else SessionListeners(session)


class SessionListeners:
    """Listens to one session for as long as it lives: listeners must not be removed while they are called."""

    def __init__(self, session: Session) -> None:
        self.open: list[EnlistedSession] = []
        self.guard: CommitGuard | None = None
        self.session = ref(session)
        session.info[LISTENERS] = self
        if not isinstance(session, tuple(_CLASSES)):
            _listen(session)

    def each(self, act: Callable[[EnlistedSession], None]) -> None:
        for enlisted in self.open:
            act(enlisted)


def listen_to(sessions: object) -> None:
    """Listen to all sessions of a `sessionmaker`, once: for a single session it takes as long as a statement.

    Called when an application is imported, since no event may be under way. Anything else is ignored.
    """
    if isinstance(sessions, sessionmaker) and not issubclass(sessions.class_, tuple(_CLASSES)):
        _CLASSES.add(sessions.class_)  # it has a class of its own
        _listen(sessions.class_)


def _listen(target: Session | type[Session]) -> None:
    event.listen(target, "after_flush_postexec", _after_flush)
    event.listen(target, "after_soft_rollback", _after_rollback)
    event.listen(target, "before_commit", _before_commit)
    event.listen(target, "after_commit", _after_commit)
    event.listen(target, "after_transaction_end", _after_end)


def _found(session: Session) -> SessionListeners | None:
    found: SessionListeners | None = session.info.get(LISTENERS)  # it may be a copy of another session's
    return found if found is not None and found.session() is session else None


def _after_flush(session: Session, _context: object) -> None:
    if (found := _found(session)) is not None:
        found.each(methodcaller("flushed"))


def _after_rollback(session: Session, ended: SessionTransaction) -> None:
    if (found := _found(session)) is not None:
        found.each(methodcaller("rolled_back", ended))


def _before_commit(session: Session) -> None:
    if (found := _found(session)) is not None:
        if found.guard is not None and not session.in_nested_transaction():
            found.guard()
        found.each(methodcaller("check"))


def _after_commit(session: Session) -> None:
    if (found := _found(session)) is not None and not session.in_nested_transaction():  # a savepoint's release is no commit
        found.each(methodcaller("tell"))


def _after_end(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is None and (found := _found(session)) is not None:
        ended, found.open = found.open, []
        for enlisted in ended:
            enlisted.is_over = True


@cache
def mapped(prefix: str, schema: str | None) -> type[Any]:
    """Return a class mapped to the records under a prefix, in a registry of its own: the user's metadata stays as it is."""
    kind = type("WaitingRecord", (), {"dialect": None})
    registry().map_imperatively(kind, tables(prefix, schema).records)

    def look(_mapper: object, connection: Connection, row: Any) -> None:
        check_connection(connection, DatabaseAddress(url=connection.engine.url, prefix=prefix, schema=schema), row.dialect)

    event.listen(kind, "before_insert", look)
    return kind


def _check_tables(connection: Connection, place: DatabaseAddress) -> None:
    """Look once for each pool whether the tables are there, before a failed INSERT says it in the database's words."""
    seen = _SEEN.setdefault(connection.engine.pool, set())
    if (place.prefix, place.schema) in seen:
        return
    if connection.dialect.name == "sqlite":
        with suppress(OperationalError):  # left to what follows
            _begin_writing(connection, place)
    try:
        check_within(connection, place, SCHEMA)
    except SchemaMissing as error:
        raise SchemaMissing(f"enlist: {error}; in a SQLite file the endpoint creates them at its first start") from error
    seen.add((place.prefix, place.schema))


def check_connection(connection: Connection, place: DatabaseAddress, dialect: Dialect) -> None:
    """Refuse a session's connection if its rollback would undo nothing, or if the tables are not there. Raises SetupError.

    What a session has set for its connection alone shows only here, and so does a driver that commits each statement.
    """
    options = connection.get_execution_options()
    if options.get("isolation_level") == "AUTOCOMMIT":
        raise SetupError("enlist: the connection of this session is in AUTOCOMMIT, so no rollback would undo what it writes")
    _check_schema(options, place)
    _check_tables(connection, place)
    if not dialect.commits_each_statement(connection):
        return
    if connection.dialect.name == "sqlite":
        _begin_writing(connection, place)
    if dialect.commits_each_statement(connection):
        raise SetupError(
            "enlist: the connection of this session has no open transaction, because its driver is in autocommit mode: each "
            'statement would be committed at once. Turn it off, or let the engine execute "BEGIN" when SQLAlchemy begins'
        )


def _check_schema(options: Mapping[str, Any], place: DatabaseAddress) -> None:
    if place.schema in (options.get("schema_translate_map") or {}):
        raise SetupError(
            "enlist: schema_translate_map would move the record to another schema: name the schema of the tables with ?schema="
        )


def _begin_writing(connection: Connection, place: DatabaseAddress) -> None:
    """Begin SQLite's transaction, with its write lock, by a statement that deletes nothing.

    A transaction that reads first cannot write any more once another one was committed: SQLite says at once that the database
    is locked. One that writes first waits.
    """
    connection.execute(delete(tables(place.prefix, place.schema).records).where(false()))


def session_of(session: object) -> Session:
    """Return the synchronous session of any kind of session. Raises SetupError."""
    if isinstance(session, async_scoped_session | scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    if not isinstance(session, Session):
        raise SetupError(f"enlist needs a SQLAlchemy AsyncSession or Session, not {type(session).__name__}")
    return session


def _bind_of(session: Session, home: RecordStore) -> Engine | Connection:
    table = tables(home.place.prefix, home.place.schema).records
    try:
        return session.get_bind(mapped(home.place.prefix, home.place.schema), clause=insert(table))
    except UnboundExecutionError as error:
        raise SetupError("enlist: this session has no default database: set bind= in addition to binds=") from error


def check_bind(session: Session, home: RecordStore) -> None:
    """Refuse a session that writes elsewhere, or whose rollback would not undo what is written. Raises SetupError."""
    bind = _bind_of(session, home)
    if isinstance(bind, Connection) and is_guarded(bind):
        raise SetupError("enlist cannot use the session of a handler: send messages with its Context instead")
    here, there = whereabouts(bind.engine.url), whereabouts(home.place.url)
    if bind.engine.pool is not home.pool and (here is None or here != there):
        place = "a SQLite database in memory" if here is None else written(bind.engine.url)
        raise SetupError(
            f"enlist: the session writes to {place}, and the store of endpoint {home.endpoint!r} is "
            f"{written(home.place.url)}: its relay would not find the message. Use the same database, with the "
            "same name in both"
        )
    options = bind.get_execution_options()
    _check_schema(options, home.place)
    # private, but there is no other way to tell without a query: such a session commits each statement on its own
    level = options.get("isolation_level") or getattr(bind.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        raise SetupError(
            "enlist: the engine of this session is in AUTOCOMMIT, so a rollback would not undo the messages: use a transaction"
        )
