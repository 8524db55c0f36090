"""Translating the errors of SQL drivers into the outcomes of a write, by allow-list, in one place."""

import asyncio
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
    StoreUnavailable,
    WrongEventLoop,
    error_text,
    leaves,
    text_of,
)
from onceonly.sql.dialect import DatabaseFailure, Dialect, TooLate
from onceonly.sql.guard import is_raised_by
from onceonly.sql.urls import USE_POOLED

_OTHER_LOOP = re.compile(r"different (?:event )?loop|Event loop is closed")
"""What asyncio and the drivers say. The loop that runs is not closed, so a closed one is another one too."""
_LOST_STATEMENT = re.compile(r"prepared statement .* (does not exist|already exists)")


NOT_A_HANDLERS = (
    DatabaseFailure.LOCKED,
    DatabaseFailure.HELD,
    DatabaseFailure.SESSION,
    DatabaseFailure.READ_ONLY,
    DatabaseFailure.UNABLE,
    DatabaseFailure.FORBIDDEN,
)
"""Failures of a handler's statement that may have another cause than the handler, the most urgent first."""


class TurnNotHad(SQLAlchemyError):
    """Another database transaction of this process was in the way for too long. Nothing happened."""


class NotConnected(SQLAlchemyError):
    """No connection could be made, whatever the driver made of that. Nothing happened."""


def translated(
    error: Exception,
    dialect: Dialect,
    *,
    locked: type[OnceOnlyError] = CommitFailed,
    refused: type[OnceOnlyError] = CommitFailed,
    unknown: type[OnceOnlyError] = OutcomeUnknown,
    committing: bool = False,
) -> OnceOnlyError:
    """Translate a driver's error by allow-list; gives, never raises.

    * A lock that was not obtained: `locked`, or LockTimeout where that is ConflictError and the wait was too long.
    * A statement or constraint that can never work: `refused`.
    * A transaction that was left aborted: CommitRefused.
    * What the database cannot do at the moment: StoreUnavailable.
    * Everything else: `unknown`. While `committing`, only locks, constraints and aborted transactions are definite.
    """
    text = _first_line(error)
    if isinstance(error, TurnNotHad):
        return locked(text)
    if isinstance(error, TooLate):
        return CommitFailed(text)
    if isinstance(error, NotConnected):
        return CommitFailed(f"cannot connect: {error}")
    if isinstance(error, PoolTimeout):
        return CommitFailed(f"no free connection in the pool: {text}")
    said = (
        dialect.classify(error)
        if isinstance(error, DBAPIError) and not error.connection_invalidated
        else DatabaseFailure.NOTHING
    )
    held = LockTimeout if locked is ConflictError else locked
    definite: dict[DatabaseFailure, type[OnceOnlyError]] = {DatabaseFailure.LOCKED: locked, DatabaseFailure.HELD: held}
    definite |= {DatabaseFailure.CONSTRAINT: refused, DatabaseFailure.ABORTED: CommitRefused}
    if not committing:
        definite |= {DatabaseFailure.STATEMENT: refused, DatabaseFailure.UNABLE: StoreUnavailable}
        definite |= {DatabaseFailure.FORBIDDEN: StoreUnavailable, DatabaseFailure.READ_ONLY: StoreUnavailable}
    return definite.get(said, unknown)(text)


def failure_of_unit(
    error: BaseException,
    dialect: Dialect,
    *,
    connection: Connection | None,
    session: Session | None,
    has_set: bool = False,
) -> OnceOnlyError | None:
    """Return what a handler's error means for its unit; None for a failure of the handler's own.

    Groups are read to their leaves. `connection` and `session` are the unit's. What fails on another one is the handler's.
    `has_set`: the handler has changed settings of the session, so what they can cause is its own failure.
    """
    inside = leaves(error)
    own = [each for each in inside if isinstance(each, DBAPIError) and is_raised_by(each, connection)]
    stale = next((each for each in inside if isinstance(each, StaleDataError) and _is_raised_in(each, session)), None)
    if stale is not None and not any(dialect.classify(each) is DatabaseFailure.LOCKED for each in own):
        return lost_row(stale)
    return worst_failure(own, dialect, has_set=has_set)


def worst_failure(own: Sequence[DBAPIError], dialect: Dialect, *, has_set: bool = False) -> OnceOnlyError | None:
    """Return what the driver's errors of a handler's statements mean for its unit. None: they are failures of its own.

    `has_set` is that of `failure_of_unit`.
    """
    found: dict[DatabaseFailure, DBAPIError] = {}
    for each in own:
        found.setdefault(dialect.classify(each), each)
    first = next((found[each] for each in NOT_A_HANDLERS if each in found and not (has_set and each.can_be_set)), None)
    return None if first is None else translated(first, dialect, locked=ConflictError)


def caused_by_setting(error: OnceOnlyError, dialect: Dialect, statement: str) -> CommitRefused | None:
    """Return what a translated error of this library's own statement means after a handler's `statement` has set something.

    None if no setting can be the cause: then the error counts as it is.
    """
    cause = error.__cause__
    if not isinstance(cause, DBAPIError) or not dialect.classify(cause).can_be_set:
        return None
    return CommitRefused(f"{error}. The handler's {statement!r} may be the cause: undo it before the handler ends")


def lost_row(error: StaleDataError) -> ConflictError:
    """Return what it means that a row was not there as the session had read it. Another transaction changed or deleted it."""
    return ConflictError(f"a row was changed or deleted after it was read: {text_of(error)}")


def _is_raised_in(error: BaseException, session: Session | None) -> bool:
    """Return whether an error was raised by a method of this session. SQLAlchemy's own errors have no other mark of it."""
    trace = error.__traceback__
    while trace is not None and session is not None:
        if trace.tb_frame.f_locals.get("self") is session:
            return True
        trace = trace.tb_next
    return False


_IN_OTHER_LOOP = (
    "the database engine has connections of another event loop, which cannot be used here. Create the engine in the "
    "event loop of the endpoint, call `await engine.dispose()` at the end of the other one, or set store= to a URL"
)


def check_loop(error: Exception) -> None:
    """Raise WrongEventLoop if this error means that a connection was made in another event loop."""
    if isinstance(error, RuntimeError | ValueError) and _OTHER_LOOP.search(text_of(error)):
        raise WrongEventLoop(_IN_OTHER_LOOP) from error


def refuse_other_loop(connection: Connection) -> None:
    """Raise WrongEventLoop if a connection that was just taken from its pool belongs to another event loop.

    Nothing may be executed there before: if that loop runs in another thread, the driver's C code is used by two threads
    at once, which ends the process (seen with asyncpg 0.32). The connection leaves its pool, and its own loop closes it.
    """
    driver: Any = connection.connection.driver_connection
    loop = getattr(driver, "_loop", None)  # asyncpg and asyncmy; those of psycopg and aiosqlite belong to no loop
    if loop is None or loop is asyncio.get_running_loop():
        return
    connection.detach()
    if not loop.is_closed():
        loop.call_soon_threadsafe(getattr(driver, "terminate", driver.close))  # asyncpg, asyncmy
    raise WrongEventLoop(_IN_OTHER_LOOP)


class ErrorTranslator:
    """Encloses driver calls, and raises what `translated` gives. It keeps nothing, so any number may be enclosed at once."""

    __slots__ = ("_committing", "_dialect", "_drivers", "_locked", "_refused", "_unknown")

    def __init__(
        self,
        dialect: Dialect,
        *,
        locked: type[OnceOnlyError],
        refused: type[OnceOnlyError],
        unknown: type[OnceOnlyError],
        committing: bool,
    ) -> None:
        self._dialect, self._committing = dialect, committing
        self._locked, self._refused, self._unknown = locked, refused, unknown
        self._drivers: tuple[type[Exception], ...] = (SQLAlchemyError, OSError, *dialect.errors)

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        """Translate what a driver raised; let pass all else."""
        if isinstance(error, self._drivers):
            asked = {"locked": self._locked, "refused": self._refused, "unknown": self._unknown}
            raise translated(error, self._dialect, **asked, committing=self._committing) from error
        if isinstance(error, Exception):
            check_loop(error)
        return False


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    words = error_text(cause).splitlines()[0]
    return f"{words}. {USE_POOLED}" if _LOST_STATEMENT.search(words) else words
