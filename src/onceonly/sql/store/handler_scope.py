"""What one run of a handler has of its unit: a session, connections and savepoints of its own, which end with the run.

All runs of a unit use one driver connection and one database transaction. A scope separates them. What a handler leaves is
written before the next one's first statement. Its objects are detached as after a commit, and nothing that it was given works
any more. A statement whose effect would reach a later run ends the sharing: see `sql.statement_effects`.
"""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Protocol, cast
from weakref import ref

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import FlushError

from onceonly.formats.log_events import EventLogger, task_name
from onceonly.sql.database import Database
from onceonly.sql.guard import GONE, HandlerConnection, allow_uses, check_statement, handler_session, refuse_uses, shortened
from onceonly.sql.statement_effects import LEFT, Effect
from onceonly.sql.store.spare_session import SpareSession

SHARED = (
    "it lasts until the end of the database transaction, which this message shares with others. "
    "The message runs again, in a transaction of its own"
)
DRIVER = "the driver's own connection"
FLUSHES = 100  # as in a commit of SQLAlchemy's
ENDLESS = f"the session has objects to write after {FLUSHES} flushes. A listener for after_flush must not add some each time"
POOLED = (
    "it changes a session, and behind a connection pooler the next transaction may be another's. Use SET LOCAL, "
    "set_config(..., true) or pg_advisory_xact_lock"
)
_log = EventLogger(logging.getLogger("onceonly"))


class SharedUnit(Protocol):
    """What a scope needs of its unit."""

    @property
    def connection(self) -> Connection:
        """The unit's own connection object."""

    @property
    def driver(self) -> object:
        """The driver's connection."""

    @property
    def is_shared(self) -> bool:
        """Whether handlers of other messages run in this unit."""

    def begin_statements(self) -> None:
        """Insert what earlier handlers left, and make the savepoint of this one; in the greenlet.

        Raises RuntimeError when the first fails.
        """

    def begin_first(self) -> Coroutine[Any, Any, Any] | None:
        """Return what does the same outside of the greenlet; None if there is nothing to do."""

    def roll_back(self) -> None:
        """Roll back what this handler did, if its unit is isolated; otherwise all of the unit. In the greenlet."""


class OwnTransactionNeeded(RuntimeError):
    """A handler needs a database transaction of its own, for a statement or the driver's connection."""


class HandlerScope:
    """What one run of a handler has of its unit, until it ends."""

    # Class attributes are the state at the beginning: most handlers change few of them.
    is_over = False
    own: OwnTransactionNeeded | None = None
    """Why this run needs a transaction of its own, and has none."""
    effects: Effect | None = None
    """What its statements did beyond reading and writing."""
    said = ""
    """The first of these statements."""
    is_taken = False
    """Whether nothing is left to write in the session, because the rows of its new objects wait elsewhere."""
    may_serve_again = False
    """Whether it is worth looking whether the session can serve the next handler, too."""
    _connection: HandlerConnection | None = None
    _async: AsyncConnection | None = None
    _session: AsyncSession | None = None
    _spare: SpareSession | None = None
    _driver: object = None
    _error: Exception | None = None
    _is_reported = False
    _has_told_commit = False

    def __init__(self, database: Database, unit: SharedUnit, name: str = "") -> None:
        self.database = database
        self.name = name
        self._unit = unit

    @property
    def sync_session(self) -> Session | None:
        """The session, if the handler asked for it."""
        return None if self._session is None else self._session.sync_session

    @property
    def sync_connection(self) -> HandlerConnection:
        if self._connection is None:
            if self.is_over:
                raise self._ended_error("connection")
            self._connection = HandlerConnection(self._unit.connection, self)
        return self._connection

    @property
    def connection(self) -> AsyncConnection:
        """The same for an `async def` handler."""
        if self._async is None:
            self._async = AsyncConnection(self.database.engine, self.sync_connection)
            if self._session is not None:
                self._session.bind = self._async
        return self._async

    @property
    def session(self) -> AsyncSession:
        if self._session is None:
            self._open()
        return cast("AsyncSession", self._session)

    @property
    def driver(self) -> object:
        """The driver's connection, as far as the handler may use it. Raises OwnTransactionNeeded."""
        if self._driver is None:
            if self.is_over:
                raise self._ended_error("connection")
            self._driver = self.database.dialect.enclose_driver(self._unit.driver, self)
            if self._driver is None:
                self._note(DRIVER, LEFT)
                self._driver = self._unit.driver
        return self._driver

    def before(self, statement: str, effect: Effect | None) -> None:
        """Prepare for a statement of the handler; in the greenlet. Raises RuntimeError if it must not be executed here."""
        self.check(statement, effect)
        self._unit.begin_statements()

    def check(self, statement: str, effect: Effect | None) -> None:
        if self.is_over:
            raise self._ended_error("connection")
        if effect is not None:
            check_statement(statement, effect, self.database.dialect.effects)
            if effect & Effect.SETS_SESSION and self.database.dialect.is_pooled:
                raise RuntimeError(f"SQL {shortened(statement)} is not allowed in a handler: {POOLED}")
            self._note(f"SQL {shortened(statement)}", effect)

    def reach_adapted(self) -> Any:
        """Return SQLAlchemy's adapter of the driver's connection. Raises OwnTransactionNeeded."""
        if self.is_over:
            raise self._ended_error("connection")
        self._note(DRIVER, LEFT)
        return self._unit.connection.connection.dbapi_connection

    def leave(self, what: str) -> None:
        """Note a use of the driver's connection that may outlive the transaction. Raises OwnTransactionNeeded."""
        if self.is_over:
            raise self._ended_error("connection")
        self._note(what, LEFT)

    def before_driver(self, statement: str) -> Coroutine[Any, Any, Any] | None:
        """Look at a statement that the driver's connection is to execute; see `DriverScope`."""
        effect = self.database.dialect.effects(statement)
        if effect is not None or self.is_over:
            self.check(statement, effect)
        return self._unit.begin_first()

    def check_use(self) -> None:
        """Raise RuntimeError if the handler has ended; see `DriverScope`."""
        if self.is_over:
            raise self._ended_error("connection")

    def roll_back(self) -> None:
        self.check_use()
        self._unit.roll_back()

    def check_transaction(self) -> None:
        if self.database.dialect.has_ended(self._unit.connection):
            raise RuntimeError(GONE)

    def before_use(self) -> Coroutine[Any, Any, Any] | None:
        """Look at a use of the driver's connection without a text; see `DriverScope`."""
        self.check_use()
        return self._unit.begin_first()

    @property
    def only_adds(self) -> bool:
        """Whether the handler has only added objects to its session, and their rows wait elsewhere."""
        return self.is_taken and self._connection is None

    def serves_again(self) -> bool:
        """Return whether the next handler can have this scope as well: its handler kept nothing of it, and it is as new."""
        if self._connection is not None or self._driver is not None or self.own is not None or self.effects is not None:
            return False
        if self._session is None:
            return True
        if not self.is_taken or self._spare is None or not self._spare.is_as_new():
            return False
        self.is_taken = False
        return True

    @property
    def has_no_options(self) -> bool:
        """Whether another connection object executes a flush just as the handler's own does."""
        session, connection = self.sync_session, self._connection
        if session is not None and session.execution_options:
            return False
        return connection is None or not connection.is_changed

    def is_clean(self, *, is_last: bool) -> bool:
        """Return whether the session has nothing to write and, if this `is_last`, no listener that waits for the commit."""
        session = cast("Session", self.sync_session)
        if session.new or session.dirty or session.deleted:
            return False
        return self._has_told_commit or not (is_last and session.dispatch.before_commit)

    def flush(self, *, is_last: bool = True) -> None:
        """Write what the handler has left in its session, as the commit of a session does; in the greenlet.

        Listeners for `before_commit` are called once, if this `is_last`.
        """
        session = self.sync_session
        if session is None:
            return
        if is_last and not self._has_told_commit:
            self._has_told_commit = True
            session.dispatch.before_commit(session)
        while (nested := session.get_nested_transaction()) is not None:
            nested.commit()
        for _ in range(FLUSHES):  # a listener may add objects after a flush
            session.flush()
            if self.is_clean(is_last=False):
                return
        raise FlushError(ENDLESS)

    def end(self) -> None:
        """End it: detach the objects as after a commit, and refuse every use from now on. Harmless when repeated."""
        self.is_over = True
        connection: HandlerConnection | None = self._connection
        if connection is not None and (nested := connection.get_nested_transaction()) is not None:
            nested._cancel()  # noqa: SLF001 - so that closing sends nothing: the unit has released or undone its savepoint
        session: Session | None = None
        if self._session is not None:
            session = self._session.sync_session
            if self._error is not None:
                allow_uses(session)
            with suppress(SQLAlchemyError):  # its thread was cut off in the middle of something
                if session.expire_on_commit and session.identity_map:
                    session.expire_all()
                Session.close(session)  # its own `close` refuses
        elif connection is None:
            return
        kept_connection = None if connection is None else ref(connection)
        kept_session = None if session is None else ref(session)
        self._session = self._spare = self._async = self._connection = self._driver = connection = session = None
        connection = None if kept_connection is None else kept_connection()
        session = None if kept_session is None else kept_session()
        if connection is not None or session is not None:  # something else refers to it
            refuse_uses(connection, session, self._make_error)

    def refuse(self, error: Exception) -> None:
        """Refuse every use from now on, with this error."""
        self.is_over, self._error = True, error
        refuse_uses(self._connection, self.sync_session, self._make_error)

    def _open(self) -> None:
        """Make the session. Its transaction begins at once, so that it is the same for each handler."""
        if self.is_over:
            raise self._ended_error("session")
        factory = self.database.sessions
        chosen: Any = factory.kw.get("sync_session_class") or factory.class_.sync_session_class
        kind = handler_session(chosen)
        own = {"bind": self._async, "autobegin": True, "join_transaction_mode": "rollback_only", "sync_session_class": kind}
        self._session = factory.class_(**{**factory.kw, **own})
        vars(self._session.sync_session)["scope"] = self
        Session.begin(self._session.sync_session)  # its own `begin` refuses
        if self.may_serve_again and self._connection is None:
            self._spare = SpareSession(self._session)
            self._spare.look()

    def _note(self, what: str, effect: Effect) -> None:
        if not effect & ~Effect.ROLLS_BACK:
            return
        if self._unit.is_shared:
            self.own = OwnTransactionNeeded(f"{what}: {SHARED}")
            raise self.own
        self.effects = effect if self.effects is None else self.effects | effect
        self.said = self.said or what

    def _make_error(self) -> Exception:
        return self._error or self._ended_error("session or connection")

    def _ended_error(self, what: str) -> RuntimeError:
        if not self._is_reported:
            self._is_reported = True
            _log.warning("unit used after its handler ended", extra={"handler": self.name, "task": _task_name()})
        whose = f" ({self.name})" if self.name else ""
        return RuntimeError(
            f"{what} used after its handler ended{whose}: it belongs to one run of the handler. "
            "Await what the handler starts, and do not keep what it is given"
        )


def _task_name() -> str:
    """Name the task that runs now. An empty text in a thread without one."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return ""
    return "" if task is None else task_name(task)
