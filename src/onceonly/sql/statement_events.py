"""Looking at each statement of an engine, before it is executed and after.

Through its events of connections SQLAlchemy tells its listeners of every connection, BEGIN, COMMIT and statement, also where
none listens to that. So an engine of this library's own is listened to through its dialect, which nothing else uses: that
costs a call for each statement and nothing else. A user's engine shares its dialect with whatever else the user does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncEngine

Look = Callable[[Connection, str], None]
"""A function that is called with a connection and the text of a statement."""
Execute = Callable[[Any, str], None]
"""A function that executes a statement on a connection of SQLAlchemy's driver adapter."""
_SAVEPOINTS = ("SAVEPOINT sa_", "RELEASE SAVEPOINT sa_", "ROLLBACK TO SAVEPOINT sa_")
"""How SQLAlchemy's own statements about savepoints begin. They have no parameters and no result."""


class StatementListener(NamedTuple):
    """Functions to call before each statement, and after each that succeeded.

    An error of one in `before` is raised instead of executing the statement. `savepoints` executes SQLAlchemy's statements
    about savepoints, in engines of this library's own; without it they are executed like all others.
    """

    before: tuple[Look, ...] = ()
    after: tuple[Look, ...] = ()
    savepoints: Execute | None = None


def look_at_statements(engine: AsyncEngine, looks: StatementListener, *, own: bool) -> None:
    """Have these called for each statement of an engine, which is this library's `own` or a user's; once for an engine.

    What SQLAlchemy asks a server itself, when it first connects an engine of this library's own, is left out.
    """

    def listen(*_: object) -> None:
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            event.listen(engine.sync_engine, name, _executing(name, looks))

    if own:
        event.listen(engine.sync_engine, "connect", listen, once=True)
        return
    for look in looks.before:
        event.listen(engine.sync_engine, "before_cursor_execute", _listening(look))
    for look in looks.after:
        event.listen(engine.sync_engine, "after_cursor_execute", _listening(look))


def _listening(look: Look) -> Callable[..., None]:
    return lambda connection, _cursor, statement, *_: look(connection, statement)


def _executing(name: str, looks: StatementListener) -> Callable[..., bool]:
    """Make what executes a statement in the dialect's stead, and says that it did."""

    def execute(cursor: object, statement: str, *rest: Any) -> bool:
        context = rest[-1]
        connection = context.root_connection
        for look in looks.before:
            look(connection, statement)
        if looks.savepoints is not None and statement.startswith(_SAVEPOINTS):
            looks.savepoints(connection.connection.dbapi_connection, statement)
        else:
            getattr(context.dialect, name)(cursor, statement, *rest)
        for look in looks.after:
            look(connection, statement)
        return True

    return execute
