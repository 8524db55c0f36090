"""Keeping a unit's transaction the unit's: what would end it raises, before anything has happened.

Each handler has a connection object of its own, a `HandlerConnection`, in the unit's database transaction. It ends with its
handler, and so do the listeners, options and savepoints on it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, Protocol, cast

from sqlalchemy import Connection, Engine, RootTransaction, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import Session, SessionTransaction

from onceonly.sql.statement_effects import Effect, StatementEffects
from onceonly.sql.statement_events import Look

CONNECTION_USES = ("begin_nested", "exec_driver_sql", "execute", "execution_options", "scalar", "scalars")
SESSION_USES = (
    "add",
    "add_all",
    "begin_nested",
    "bulk_insert_mappings",
    "bulk_save_objects",
    "bulk_update_mappings",
    "connection",
    "delete",
    "delete_all",
    "execute",
    "expire",
    "expire_all",
    "expunge",
    "expunge_all",
    "flush",
    "get",
    "get_one",
    "merge",
    "merge_all",
    "query",
    "refresh",
    "scalar",
    "scalars",
)

_RAISED_BY = "onceonly_raised_by"
OTHER_BIND = (
    "the session of a handler executes statements on its own connection only, and this one is for {}: onceonly does not commit "
    "there. Use a session of your own for another database"
)
GONE = "the database transaction of this unit has ended (an error or ON CONFLICT ROLLBACK), so a statement would run outside it"


class GuardedScope(Protocol):
    """What one handler's run has of its unit."""

    def before(self, statement: str, effect: Effect | None) -> None:
        """Prepare for a statement of the handler. Raises RuntimeError if it must not be executed here."""

    def check_use(self) -> None:
        """Raise RuntimeError if the handler has ended."""

    def roll_back(self) -> None:
        """Undo what the handler did, or roll back its unit where that cannot be undone. Raises RuntimeError after its end."""

    @property
    def connection(self) -> AsyncConnection:
        """The handler's connection object. Raises RuntimeError."""

    @property
    def driver(self) -> object:
        """What the handler may use of the driver's own connection. Raises RuntimeError."""

    def reach_adapted(self) -> Any:
        """Return SQLAlchemy's adapter of it. Raises RuntimeError."""


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(*_arguments: Any, **_options: Any) -> NoReturn:
        raise _refusal(f"{name}()")

    return refuse


class HandlerTransaction(RootTransaction):
    """The unit's transaction as a handler sees it. A flush that fails rolls it back, as far as it is the handler's."""

    __slots__ = ("_root",)

    def __init__(self, connection: "HandlerConnection", root: RootTransaction) -> None:
        self.connection = connection
        self._root = root

    @property
    def is_active(self) -> bool:  # type: ignore[override]  # it is an attribute there
        return self._root.is_active

    commit: Any = _refusing("commit")

    def rollback(self) -> None:
        """Undo what the handler did; see `GuardedScope`. Raises RuntimeError after the handler's end."""
        cast("HandlerConnection", self.connection).scope.roll_back()

    def close(self) -> None:
        self.rollback()


class HandlerConnection(Connection):
    """A connection object of one handler, on the driver's connection and in the database transaction of its unit."""

    def __init__(self, unit: Connection, scope: GuardedScope) -> None:
        super().__init__(unit.engine, connection=unit.connection, _has_events=False)
        if unit.engine._has_events:  # noqa: SLF001 - as in SQLAlchemy's own; it has told its listeners of the unit's connection
            self.dispatch = self.dispatch._join(unit.engine.dispatch)  # noqa: SLF001 - the same
        self.unit = unit
        self.scope = scope
        root = unit.get_transaction()
        self._transaction = None if root is None else HandlerTransaction(self, root)

    @property
    def is_changed(self) -> bool:
        """Whether it has listeners or options that the unit's connection does not have."""
        return self._has_events or self.get_execution_options() != self.unit.get_execution_options()

    @property
    def connection(self) -> Any:
        """The pool's connection, without a way past the guard."""
        return _PooledConnection(super().connection, self.scope)

    def get_isolation_level(self) -> Any:
        return self.unit.get_isolation_level()

    def execution_options(self, **options: Any) -> Connection:
        """Change options of this object. Raises RuntimeError for the isolation level."""
        if "isolation_level" in options:
            raise RuntimeError(
                "execution_options(isolation_level=...) is not allowed here: the transaction has begun already. "
                "Set isolation= where the handler is registered"
            )
        return super().execution_options(**options)

    def invalidate(self, exception: BaseException | None = None) -> None:
        """Close the unit's connection. Raises RuntimeError after the handler's end."""
        self.scope.check_use()
        self.unit.invalidate(exception)
        self._dbapi_connection = None

    commit: Any = _refusing("commit")
    rollback: Any = _refusing("rollback")
    close: Any = _refusing("close")
    begin: Any = _refusing("begin")
    begin_twophase: Any = _refusing("begin_twophase")
    detach: Any = _refusing("detach")


class HandlerSession(Session):
    """What the session of a handler does otherwise than the user's class, which is the next one in its derived class.

    What begins or ends a transaction raises RuntimeError; `begin_nested` works. It asks its scope for a connection when it
    first needs one.
    """

    scope: GuardedScope | None = None
    _bind: Any = None

    @property
    def bind(self) -> Any:
        if self._bind is None and self.scope is not None:
            return self.scope.connection.sync_connection
        return self._bind

    @bind.setter
    def bind(self, bind: Any) -> None:
        self._bind = bind

    def get_bind(self, *arguments: Any, **options: Any) -> Engine | Connection:
        """Return the connection of the handler. Raises RuntimeError if the user's class, or a caller, chooses another."""
        found = super().get_bind(*arguments, **options)
        if isinstance(found, HandlerConnection) and found.scope is self.scope:
            return found
        raise RuntimeError(OTHER_BIND.format(found.engine.url.render_as_string()))

    def connection(self, bind_arguments: Any = None, execution_options: Any = None) -> Connection:
        """Return the connection of the handler. Raises RuntimeError for any other."""
        if bind_arguments and "bind" in bind_arguments:  # which SQLAlchemy takes without asking `get_bind`
            self.get_bind(**bind_arguments)
        return super().connection(bind_arguments=bind_arguments, execution_options=execution_options)

    bind_mapper: Any = _refusing("bind_mapper")
    bind_table: Any = _refusing("bind_table")

    def begin(self, nested: bool = False) -> SessionTransaction:  # noqa: FBT001, FBT002 - as in SQLAlchemy's own
        """Begin a savepoint. Raises RuntimeError for a transaction."""
        if not nested:
            raise _refusal("begin()")
        return super().begin(nested=True)

    commit: Any = _refusing("commit")
    rollback: Any = _refusing("rollback")
    close: Any = _refusing("close")
    reset: Any = _refusing("reset")
    invalidate: Any = _refusing("invalidate")
    prepare: Any = _refusing("prepare")


_POOLED_USES = frozenset({"close", "commit", "detach", "invalidate", "reset", "rollback"})
"""What would end the transaction, or take the connection from the unit."""


class _PooledConnection:
    """The pool's connection as a handler sees it. What SQLAlchemy itself needs of it passes."""

    def __init__(self, pooled: Any, scope: GuardedScope) -> None:
        self._pooled = pooled
        self._scope = scope

    @property
    def driver_connection(self) -> object:
        return self._scope.driver

    @property
    def dbapi_connection(self) -> object:
        return self._scope.reach_adapted()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        return self._scope.reach_adapted().cursor(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name in _POOLED_USES:
            raise _refusal(f"{name}() of the pool's connection")
        return getattr(self._pooled, name)


def unit_connection(connection: Connection) -> Connection:
    """Return the unit's own connection for that of one of its handlers, and any other one itself."""
    return connection.unit if isinstance(connection, HandlerConnection) else connection


def mark_errors(engine: AsyncEngine) -> None:
    """Mark the errors of handlers' connections of this engine for `is_raised_by`."""
    event.listen(engine.sync_engine, "handle_error", _mark)


def guarding(has_ended: Callable[[Connection], bool], effects: StatementEffects) -> Look:
    """Make what looks at each statement of a handler: refuses what ends the transaction, and any statement after its end.

    `has_ended` reads the driver's own state.
    """

    def look(connection: Connection, statement: str) -> None:
        if isinstance(connection, HandlerConnection):
            effect = effects(statement)
            connection.scope.before(statement, effect)
            if (effect is None or Effect.ROLLS_BACK not in effect) and has_ended(connection.unit):
                raise RuntimeError(GONE)

    return look


def check_statement(statement: str, effect: Effect, effects: StatementEffects) -> None:
    """Raise RuntimeError for a statement that no handler may execute."""
    if Effect.ENDS in effect:
        raise _refusal(f"SQL {shortened(statement)}")
    if Effect.REFUSED in effect:
        raise RuntimeError(f"SQL {shortened(statement)} is not allowed in a handler. {effects.advice(statement)}")


def shortened(statement: str) -> str:
    """Return the beginning of a statement, quoted, for messages."""
    return repr(statement.strip()[:40])


def is_raised_by(error: BaseException, connection: Connection | None) -> bool:
    """Return whether a driver's error came from a handler on this unit's connection, and not from another connection."""
    return connection is not None and getattr(error, _RAISED_BY, None) is connection


def is_guarded(connection: Connection) -> bool:
    """Return whether this connection is a handler's."""
    return isinstance(connection, HandlerConnection)


@cache
def handler_session(kind: type[Session]) -> type[Session]:
    """Return the class of handlers' sessions that is derived from the user's; see `HandlerSession`."""
    return type(kind.__name__, (HandlerSession, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def users_class(kind: type[Session]) -> type[Session]:
    """Return the class that a class of handlers' sessions is derived from, and any other one itself."""
    return kind.__mro__[2] if kind.__mro__[1] is HandlerSession else kind


def refuse_uses(connection: Connection | None, session: Session | None, make_error: Callable[[], Exception]) -> None:
    """Make the methods of these two that use the database raise an error."""

    def refuse(*_arguments: Any, **_options: Any) -> Any:
        raise make_error()

    for each, names in ((connection, CONNECTION_USES), (session, SESSION_USES)):
        if each is not None:
            vars(each).update(dict.fromkeys(names, refuse))


def allow_uses(session: Session) -> None:
    """Take `refuse_uses` back, to close a session."""
    for name in SESSION_USES:
        vars(session).pop(name, None)


def _refusal(what: str) -> RuntimeError:
    return RuntimeError(
        f"{what} is not allowed here: onceonly commits this database transaction together with its records. "
        "Use begin_nested() for savepoints"
    )


def _mark(context: ExceptionContext) -> None:
    connection, error = context.connection, context.sqlalchemy_exception
    if isinstance(connection, HandlerConnection) and error is not None:
        setattr(error, _RAISED_BY, connection.unit)
