"""Looking at each statement of an engine, before it is executed and after.

Through its events of connections SQLAlchemy tells its listeners of every connection, BEGIN, COMMIT and statement, also where
none listens to that. So an engine of this library's own is listened to through its dialect, which nothing else uses: that
costs a call for each statement and nothing else. A user's engine shares its dialect with whatever else the user does.
"""

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import ref

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

Look = Callable[[Connection, str], None]
"""A function that is called with a connection and the text of a statement."""
Execute = Callable[[Any, str], None]
"""A function that executes a statement on a connection of SQLAlchemy's driver adapter."""
Rewrite = Callable[[str], str]
"""A function that returns the text to execute in place of a statement."""
OF_HANDLER = "onceonly_handler"
"""The name of the savepoint of the handler that runs in an isolated unit."""
_SAVEPOINTS = tuple(f"{words}SAVEPOINT {name}" for words in ("", "RELEASE ", "ROLLBACK TO ") for name in ("sa_", OF_HANDLER))
"""How statements about SQLAlchemy's own savepoints, and these, begin. They have no parameters and no result."""


class StatementListener(NamedTuple):
    """Functions to call before each statement, and after each that succeeded.

    An error of one in `before` is raised instead of executing the statement. `savepoints` executes the statements about
    `_SAVEPOINTS`, in engines of this library's own; without it they are executed like all others. `rewrite` returns the text to
    execute in place of a statement.
    """

    before: tuple[Look, ...] = ()
    after: tuple[Look, ...] = ()
    savepoints: Execute | None = None
    rewrite: Rewrite | None = None


def look_at_statements(engine: AsyncEngine, looks: StatementListener, *, own: bool) -> None:
    """Call these for each statement of an engine, which is this library's `own` or a user's; once for an engine.

    What SQLAlchemy asks a server itself, when it first connects an engine of this library's own, is left out.
    """

    def listen(*_: object) -> None:
        for name in ("do_execute", "do_executemany", "do_execute_no_params"):
            event.listen(engine.sync_engine, name, _executing(getattr(engine.dialect, name), looks))

    if own:
        event.listen(engine.sync_engine, "connect", listen, once=True)
        return
    for look in looks.before:
        event.listen(engine.sync_engine, "before_cursor_execute", _listening(look))
    if looks.rewrite is not None:
        event.listen(engine.sync_engine, "before_cursor_execute", _rewriting(looks.rewrite), retval=True)
    for look in looks.after:
        event.listen(engine.sync_engine, "after_cursor_execute", _listening(look))


def _listening(look: Look) -> Callable[..., None]:
    return lambda connection, _cursor, statement, *_: look(connection, statement)


def _rewriting(rewrite: Rewrite) -> Callable[..., tuple[str, Any]]:
    return lambda _connection, _cursor, statement, parameters, *_: (rewrite(statement), parameters)


def _executing(dialect_execute: Callable[..., object], looks: StatementListener) -> Callable[..., bool]:
    """Make what calls this method of the dialect between the functions, and tells SQLAlchemy that the statement is executed."""
    before, after, savepoints, rewrite = looks

    def execute(cursor: object, statement: str, *rest: Any) -> bool:
        connection = rest[-1].root_connection
        for look in before:
            look(connection, statement)
        if savepoints is not None and statement.startswith(_SAVEPOINTS):
            owner = getattr(connection, "unit", connection)  # of a handler's connection, its unit's
            savepoints(owner.connection.dbapi_connection, statement)
        else:
            dialect_execute(cursor, statement if rewrite is None else rewrite(statement), *rest)
        for look in after:
            look(connection, statement)
        return True

    return execute


def keep_when_cancelled(engine: AsyncEngine) -> None:
    """Keep connections whose statement was cancelled: SQLAlchemy would drop them. For drivers that end the statement first."""
    watched = ref(engine.sync_engine)  # SQLAlchemy caches dialects, which have the listener, for longer than engines live

    def keep(context: ExceptionContext) -> None:
        own = context.engine is not None and context.engine is watched()
        if own and isinstance(context.original_exception, asyncio.CancelledError):
            context.is_disconnect = False

    event.listen(engine.sync_engine, "handle_error", keep)
