"""Keeping a unit's transaction the unit's: what would end it raises, before anything has happened."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

CONNECTION_METHODS = ("commit", "rollback", "close", "begin", "begin_twophase", "detach")
SESSION_METHODS = ("commit", "rollback", "close", "begin", "reset", "invalidate", "prepare")

_OPTION = "onceonly_guarded"
_ENDING = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/|;)*"
    r"(?:COMMIT|END|ABORT|BEGIN|START\s+TRANSACTION|ROLLBACK(?!\s+(?:(?:TRANSACTION|WORK)\s+)?TO\b))\b",
    re.IGNORECASE | re.DOTALL,
)


def watch(engine: AsyncEngine) -> None:
    """Refuse, on guarded connections of this engine, SQL text that begins or ends a transaction."""
    event.listen(engine.sync_engine, "before_cursor_execute", _refuse_ending)


def guard_connection(connection: Connection) -> None:
    """Make the methods of this one connection that begin or end a transaction raise RuntimeError, and such SQL text too.

    Its async proxies call the same methods. Who owns it ends it with `Connection.close(connection)`.
    """
    connection.execution_options(**{_OPTION: True})
    _guard(connection, CONNECTION_METHODS)


def is_guarded(connection: Connection) -> bool:
    """Tell whether this connection is a unit's, which handlers may reach."""
    return bool(connection.get_execution_options().get(_OPTION))


def guard_session(session: Session) -> None:
    """Make the methods of this one session that begin or end a transaction raise RuntimeError; `begin_nested` works."""
    _guard(session, SESSION_METHODS)


def _guard(target: object, methods: Iterable[str]) -> None:
    for name in methods:
        setattr(target, name, _refusal(name, getattr(target, name)))


def _refusal(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*arguments: Any, nested: bool = False, **options: Any) -> Any:
        if nested:  # `begin_nested` of a session comes through `begin`; savepoints are fine
            return original(*arguments, nested=True, **options)
        raise RuntimeError(_told(f"{name}()"))

    return refuse


def _refuse_ending(connection: Connection, _cursor: object, statement: str, *_: object) -> None:
    if _ENDING.match(statement) and is_guarded(connection):
        raise RuntimeError(_told(f"SQL {statement.strip()[:40]!r}"))


def _told(what: str) -> str:
    return f"{what} is not for handlers: the unit is committed with its claims and records, or not at all; use begin_nested()"
