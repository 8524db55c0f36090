"""Keeping a unit's transaction the unit's: what would end it raises, before anything has happened."""

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache, partial
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from onceonly.sql.statement_events import Look

CONNECTION_METHODS = ("commit", "rollback", "close", "begin", "begin_twophase", "detach")
SESSION_METHODS = ("commit", "rollback", "close", "begin", "reset", "invalidate", "prepare")

CONNECTION_USES = ("begin_nested", "exec_driver_sql", "execute", "scalar", "scalars")
SESSION_USES = (
    "add",
    "add_all",
    "begin_nested",
    "connection",
    "delete",
    "execute",
    "flush",
    "get",
    "get_one",
    "merge",
    "query",
    "refresh",
    "scalar",
    "scalars",
)

LONGEST_KNOWN, STATEMENTS_KNOWN = 2000, 500
"""The longest statement, in characters, whose effect is remembered, and the number of these. Together at most 4 MB of text."""

_GUARDED = "_onceonly_guarded"
_RAISED_BY = "onceonly_raised_by"
_GONE = (
    "the database transaction of this unit has ended (an error or ON CONFLICT ROLLBACK), so a statement would run outside it"
)
_ENDING = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*"
    r"(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:TRANSACTION|WORK)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)
_ROLLBACK_TO = re.compile(r"\s*ROLLBACK\b", re.IGNORECASE)  # what else rolls back is refused; this mends an aborted one


def mark_errors(engine: AsyncEngine) -> None:
    """Have the errors of this engine's guarded connections marked for `is_raised_by`."""
    event.listen(engine.sync_engine, "handle_error", _mark)


class _Effect(Enum):
    """What SQL text does to the transaction that it is executed in."""

    NONE = "nothing"
    ENDS = "begins or ends it"
    ROLLS_BACK = "rolls back to a savepoint"


def guarding(has_ended: Callable[[Connection], bool]) -> Look:
    """Make what refuses, on guarded connections, SQL text that begins or ends a transaction, and any after its end.

    `has_ended` reads the driver's own state.
    """

    def refuse(connection: Connection, statement: str) -> None:
        if _GUARDED in vars(connection):
            effect = _known_effect(statement) if len(statement) <= LONGEST_KNOWN else _effect(statement)
            if effect is _Effect.ENDS:
                raise RuntimeError(_told(f"SQL {statement.strip()[:40]!r}"))
            if effect is _Effect.NONE and has_ended(connection):
                raise RuntimeError(_GONE)

    return refuse


def is_raised_by(error: BaseException, connection: Connection | None) -> bool:
    """Return whether a driver's error came from this guarded connection, and not from another one that a handler has."""
    return connection is not None and getattr(error, _RAISED_BY, None) is connection


def guard_connection(connection: Connection) -> None:
    """Make the methods of this one connection that begin or end a transaction raise RuntimeError, and such SQL text too.

    Its async proxies call the same methods. Who owns it ends it with `Connection.close(connection)`.
    """
    vars(connection).update(_OF_CONNECTIONS)


def is_guarded(connection: Connection) -> bool:
    """Return whether this connection is a unit's, which handlers may reach."""
    return _GUARDED in vars(connection)


def guard_session(session: Session) -> None:
    """Make the methods of this one session that begin or end a transaction raise RuntimeError; `begin_nested` works."""
    vars(session).update(_OF_SESSIONS, begin=partial(_begin, session.begin))


def refuse_uses(connection: Connection | None, session: Session | None, error: Exception) -> None:
    """Make the methods of these two that use the database raise this error."""

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise error

    for each, names in ((connection, CONNECTION_USES), (session, SESSION_USES)):
        if each is not None:
            vars(each).update(dict.fromkeys(names, refuse))


def allow_uses(connection: Connection | None, session: Session | None) -> None:
    """Take `refuse_uses` back."""
    for each, names in ((connection, CONNECTION_USES), (session, SESSION_USES)):
        for name in names if each is not None else ():
            vars(each).pop(name, None)


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise RuntimeError(_told(f"{name}()"))

    return refuse


def _begin(original: Callable[..., Any], *arguments: Any, nested: bool = False, **options: Any) -> Any:
    if nested:  # `begin_nested` of a session comes through `begin`; savepoints are fine
        return original(*arguments, nested=True, **options)
    raise RuntimeError(_told("begin()"))


def _mark(context: ExceptionContext) -> None:
    connection, error = context.connection, context.sqlalchemy_exception
    if connection is not None and error is not None and is_guarded(connection):
        setattr(error, _RAISED_BY, connection)


def _effect(statement: str) -> _Effect:
    if _ENDING.match(statement):
        return _Effect.ENDS
    return _Effect.ROLLS_BACK if _ROLLBACK_TO.match(statement) else _Effect.NONE


_known_effect = lru_cache(maxsize=STATEMENTS_KNOWN)(_effect)


def _told(what: str) -> str:
    return (
        f"{what} is not allowed here: onceonly commits this database transaction together with its records. "
        "Use begin_nested() for savepoints"
    )


_OF_CONNECTIONS = {**{name: _refusal(name) for name in CONNECTION_METHODS}, _GUARDED: True}
_OF_SESSIONS = {name: _refusal(name) for name in SESSION_METHODS if name != "begin"}
