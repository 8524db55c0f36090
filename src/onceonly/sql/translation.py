"""Translating the errors of SQL drivers into the outcomes of a write, by allow-list, in one place."""

import re
from types import TracebackType
from typing import Literal

from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from onceonly.model.errors import CommitFailed, CommitRefused, ConflictError, LockTimeout, OnceOnlyError, OutcomeUnknown, Unable
from onceonly.sql.dialect import DatabaseFailure, Dialect, TooLate
from onceonly.sql.urls import USE_POOLED

_LOST_STATEMENT = re.compile(r"prepared statement .* (does not exist|already exists)")


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
    * What the database cannot do at the moment: Unable.
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
        definite |= {DatabaseFailure.STATEMENT: refused, DatabaseFailure.UNABLE: Unable, DatabaseFailure.FORBIDDEN: Unable}
    return definite.get(said, unknown)(text)


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
        """Translate as `translated` does with these arguments."""
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
        return False


def _first_line(error: Exception) -> str:
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    words = f"{type(cause).__name__}: {cause}".splitlines()[0]
    return f"{words}. {USE_POOLED}" if _LOST_STATEMENT.search(words) else words
