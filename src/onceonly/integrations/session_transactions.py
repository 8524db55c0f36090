"""The transaction of one request in a synchronous SQLAlchemy session: opened, protected, and committed once.

Nothing is opened when the application is imported, so a server may fork afterwards. What the database says is translated into
outcomes: before COMMIT is sent nothing has happened, and an error of COMMIT itself leaves the outcome unknown.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, PendingRollbackError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.orm.exc import StaleDataError

from onceonly.endpoint import Endpoint, EnlistedKey
from onceonly.endpoint.message_builder import SendOptions
from onceonly.endpoint.sender import Outgoing, OutsideSender
from onceonly.model.destination import Destination
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    OnceOnlyError,
    OutcomeUnknown,
    SetupError,
    TransactionMisused,
    error_text,
    leaves,
)
from onceonly.sql.database import dialect_of, place_of
from onceonly.sql.dialect import DatabaseFailure, Dialect
from onceonly.sql.store.enlistment import listen_to, listeners_of
from onceonly.sql.translation import lost_row, translated

Sessions = Callable[[], Session] | scoped_session[Any]
"""Gives the session of a request: a `sessionmaker`, a `scoped_session`, or a function that returns a session."""

_IN_USE = "onceonly_request"
_OUTAGES = frozenset(
    {DatabaseFailure.LOCKED, DatabaseFailure.HELD, DatabaseFailure.UNABLE, DatabaseFailure.READ_ONLY, DatabaseFailure.SESSION}
)
"""Failures of a statement that the application has not caused: a repetition may succeed."""
_MUST_BE_PATCHED = ("threading", "socket", "select")


class RequestTransaction(OutsideSender):
    """The transaction of one request, which its function receives. Valid until the function returns.

    Rows of the session, messages, key and response are committed together after it has returned, or not at all.
    """

    def __init__(self, session: Session, outgoing: Outgoing) -> None:
        self._session = session
        self._outgoing = outgoing

    @property
    def sql(self) -> Session:
        """The request's SQLAlchemy `Session`. Its `commit` raises TransactionMisused. Savepoints are possible."""
        return self._session

    def _capture(self, body: object, to: str | Destination, options: SendOptions) -> None:
        self._outgoing._capture(body, to, options)  # noqa: SLF001 - of the same base class


class RequestKey(NamedTuple):
    """The key of a request, its scope, what was asked under it, and how many seconds another holder is waited for.

    None: as long as for any lock.
    """

    key: str
    scope: str | None
    asked: object
    wait: float | None


class SessionRequest:
    """One request in one session: `open`, the application's work inside `work`, then `commit`."""

    def __init__(self, endpoint: Endpoint, session: Session, max_commit: timedelta | None, *, what: str = "request") -> None:
        self._endpoint = endpoint
        self._what = what
        self._session = session
        self._max_commit = max_commit or endpoint.settings.max_commit
        self._entry: EnlistedKey | None = None
        self.entry: EnlistedKey | None = None
        """The key, new or known, whose messages can be dispatched after the session's transaction. None without a key."""
        self._begun: object = None
        self._is_misused = False
        self._until = 0.0

    def open(self, asked: RequestKey | None) -> RequestTransaction | bytes:
        """Begin, and take the key if there is one. Returns the stored answer of a known key.

        Raises KeyReused, InvalidKey, ConflictError, CommitFailed, SetupError.
        """
        session = self._session
        if session.in_nested_transaction():
            raise TransactionMisused(
                f"the session of this {self._what} is in a savepoint: end it before, so that a commit commits"
            )
        self._until = monotonic() + self._max_commit.total_seconds()
        if asked is None:
            outgoing = self._endpoint.enlist(session)
            with self._translated():
                session.connection()
            self._begun = session.get_transaction()
            return RequestTransaction(session, outgoing)
        with self._translated():
            entry = self._endpoint.enlist(
                session,
                key=asked.key,
                request=asked.asked,
                scope=asked.scope,
                wait=asked.wait,
                max_commit=self._max_commit,
            )
        self.entry = entry
        if entry.is_known:
            return entry.answer if isinstance(entry.answer, bytes) else b""
        entry._hold_records()  # noqa: SLF001 - `commit` is the only one, and commits the session
        self._entry, self._begun = entry, session.get_transaction()
        return RequestTransaction(session, entry)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Enclose the application's work. Raises ConflictError and CommitFailed for what the database could not do now."""
        listeners = listeners_of(self._session)
        listeners.guard = self._refuse_commit
        try:
            yield
        except Exception as error:
            if (failure := self._outage(error)) is not None:
                raise failure from error
            raise
        finally:
            listeners.guard = None

    def commit(self, answer: bytes) -> None:
        """Commit rows, messages, key and answer. Raises CommitRefused, CommitFailed, ConflictError, OutcomeUnknown."""
        session = self._session
        if self._is_misused or session.get_transaction() is not self._begun or session.in_nested_transaction():
            raise TransactionMisused(
                f"the function of this {self._what} has ended its transaction, or left a savepoint open, so nothing was "
                "stored. Let it return or raise an exception, without commit(), rollback() or close() of the session"
            )
        with self._translated():
            if self._entry is not None:
                self._entry.answer = answer
            session.flush()
            if self._entry is None:  # with a key, the statement that stores the answer fails in an aborted transaction
                session.connection().execute(select(1))
        if monotonic() > self._until:
            raise CommitFailed(f"the transaction of this {self._what} took longer than its max_commit")
        # Crash here, "before-commit": 1 nothing happened, 2 the client repeats its request, 3 it is handled anew.
        with self._translated(committing=True):
            session.commit()
        # Crash here, "after-commit": 1 committed, 2 no byte was sent, 3 the repeated request gets the stored response.

    def _refuse_commit(self) -> None:
        self._is_misused = True
        raise TransactionMisused(
            f"the session of a {self._what} is committed after its function has returned, with all else: remove commit(), and "
            "use flush() if a statement needs the rows"
        )

    def _dialect(self) -> Dialect:
        """Return that of the store: the session's own driver may be any of its database."""
        store: Any = self._endpoint.settings.store  # a SQL one, because `enlist` has not refused it
        return dialect_of(place_of(store).url)

    @contextmanager
    def _translated(self, *, committing: bool = False) -> Iterator[None]:
        """Translate the driver's errors. While `committing`, one of COMMIT itself, which has no statement, is unknown."""
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            is_commit = committing and getattr(error, "statement", None) is None
            unknown = OutcomeUnknown if is_commit else CommitFailed
            asked = {"locked": ConflictError, "refused": CommitRefused, "unknown": unknown}
            raise translated(error, self._dialect(), **asked, committing=is_commit) from error
        except OSError as error:
            raise (OutcomeUnknown if committing else CommitFailed)(error_text(error)) from error
        except StaleDataError as error:
            raise lost_row(error) from error
        except PendingRollbackError as error:
            raise CommitRefused(
                "the transaction cannot be committed, because it was undone by an error of the database that was caught: "
                "enclose what may fail in `with session.begin_nested():`"
            ) from error

    def _outage(self, error: Exception) -> OnceOnlyError | None:
        """Return what an exception means if the database could not do something now; None for the application's own."""
        dialect = self._dialect()
        for each in leaves(error):
            if isinstance(each, StaleDataError):
                return lost_row(each)
            if isinstance(each, DBAPIError) and (each.connection_invalidated or dialect.classify(each) in _OUTAGES):
                return translated(each, dialect, locked=ConflictError, unknown=CommitFailed)
            if isinstance(each, PoolTimeout):
                return translated(each, dialect)
        return None


@contextmanager
def session_of_request(sessions: Sessions) -> Iterator[Session]:
    """Return the session of a request, and roll back what was not committed. Raises SetupError.

    A session of a `sessionmaker` is closed at the end. Any other is the application's.
    """
    _check_greenlets()
    session = sessions()
    if not isinstance(session, Session):
        raise SetupError(
            "sessions= must be a sessionmaker or a scoped_session of synchronous sessions, or a function that returns a "
            f"Session, but it has given {type(session).__name__}"
        )
    if _IN_USE in session.info:
        raise TransactionMisused(
            "the session of this request is used by another request at the same time: give each request a session of its own. "
            "With gevent, let it patch the process before SQLAlchemy is imported"
        )
    session.info[_IN_USE] = True
    try:
        yield session
    finally:
        del session.info[_IN_USE]
        try:
            _undo(session)
        finally:
            if isinstance(sessions, sessionmaker):
                session.close()


def _undo(session: Session) -> None:
    """Roll back what was not committed. Where that is not possible the connection is closed, so that its server does it.

    A signal that has interrupted a statement or COMMIT leaves such a connection. Its exception must not be hidden.
    """
    try:
        if session.in_transaction():
            session.rollback()
    except SQLAlchemyError:
        with suppress(SQLAlchemyError):
            session.invalidate()


def check_sessions(sessions: object) -> None:
    """Check the option when the application is imported, and prepare for it. Opens nothing. Raises SetupError."""
    if isinstance(sessions, Session) or not callable(sessions):
        raise SetupError(
            "sessions= must be a sessionmaker, a scoped_session, or a function that returns the session of a request, not "
            f"{type(sessions).__name__}"
        )
    listen_to(sessions)


def _is_patched() -> bool:
    """Return whether gevent has made this process safe for its greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and all(monkey.is_module_patched(name) for name in _MUST_BE_PATCHED)


_WAS_PATCHED_BEFORE = _is_patched()
"""Whether that was so when this module was imported. Locks and pools that are older block the whole process."""


def _check_greenlets() -> None:
    """Refuse to run in greenlets that share what belongs to a thread: locks, pools and sessions. Raises SetupError."""
    gevent = sys.modules.get("gevent")
    if gevent is None or not isinstance(gevent.getcurrent(), gevent.Greenlet) or (_is_patched() and _WAS_PATCHED_BEFORE):
        return
    when = "after the application was imported" if _is_patched() else "only in part or not at all"
    raise SetupError(
        f"this request runs in a greenlet of gevent, which has patched the process {when}: requests would share connections "
        "or block each other. Patch everything first, for gunicorn without --preload, or use its worker classes sync or gthread"
    )
