"""What a SQL unit gives its handlers: a session and connections for each, in one database transaction, and its entities."""

import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session
from sqlalchemy.orm.exc import StaleDataError

from onceonly.formats.log_events import EventLogger
from onceonly.model.entities import Changes, Entities
from onceonly.model.errors import (
    USERS_ERRORS,
    CommitFailed,
    CommitRefused,
    ConflictError,
    HandlerFailed,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
    error_text,
    text_of,
)
from onceonly.model.message import Failure, FailureKind
from onceonly.ports.store import SyncThread
from onceonly.sql.database import Database
from onceonly.sql.dialect import DatabaseFailure, State
from onceonly.sql.handler_threads import in_greenlet, is_supported, keep_in_threads
from onceonly.sql.statement_effects import Effect
from onceonly.sql.statement_events import OF_HANDLER
from onceonly.sql.store.handler_scope import HandlerScope
from onceonly.sql.store.late_rows import LateRows, RecentLateRows, complete
from onceonly.sql.transaction import DatabaseTransaction
from onceonly.sql.translation import caused_by_setting, failure_of_unit, lost_row, translated

ENDED = (
    "something other than onceonly ended the database transaction of this unit: the database (an error "
    "or ON CONFLICT ROLLBACK), or a call of the driver. Do not swallow database errors, and do not "
    "end the transaction in a handler"
)
ABORTED = (
    "it swallowed a database error, so the database aborted the transaction. Use begin_nested() around statements that may fail"
)
_log = EventLogger(logging.getLogger("onceonly"))
WRITE_FAILED = "objects that an earlier message of this unit left could not be inserted: the unit runs again"
SPOILT = "the changes of a failed handler could not be rolled back separately"
LOST = "the database connection of this unit was lost before its commit"
HELD = "this unit holds the write lock of its database, so other connections cannot write: use the session of the handler"


class SqlResources:
    """The resources of one unit. Each handler has a scope of its own, which is made when the handler begins."""

    def __init__(
        self,
        database: Database,
        transaction: DatabaseTransaction,
        entities: Entities,
        *,
        isolated: bool,
        messages: int,
        late_rows: RecentLateRows,
    ) -> None:
        """Serve the handlers of a unit with so many messages; with none, the block of a transaction."""
        self.is_shared = messages > 1
        self._late_rows = late_rows
        self._may_be_late = messages > 1 and late_rows.may_wait(messages, isolated=isolated) and not database.has_listeners
        self._is_block = not messages
        self._database = database
        self._transaction = transaction
        self._entities = entities
        self._mark: Changes = {}
        self._isolated = isolated
        self._has_savepoint = self._is_rolled_back = False  # of the handler that runs now, once it has executed a statement
        self._has_left = False  # the last one still exists, and the next savepoint or the commit ends it
        self._scope: HandlerScope | None = None
        self._is_begun = False
        self._only_adds = False  # what handlers do, so that a session may serve the next one
        self._late = LateRows(at_once=database.dialect.inserts_at_once)
        self._is_spoilt = False
        self._is_sure = True  # it has just begun
        self._write_error: BaseException | None = None
        self._said = ""
        self._listening: list[Session] = []
        self._thread: SyncThread | None = None
        transaction.closing = self._close

    @property
    def connection(self) -> Connection:
        return cast("Connection", self._transaction.connection.sync_connection)

    @property
    def driver(self) -> object:
        return self._transaction.driver

    @property
    def scope(self) -> HandlerScope:
        """What the handler that runs now has of the unit."""
        if self._scope is None or self._scope.is_over:
            self._scope, self._is_begun = HandlerScope(self._database, self), False
        return self._scope

    def get(self, kind: type) -> object:
        """Return the handler's AsyncSession (also by the factory's own class), AsyncConnection, Entities, or the driver's own.

        Raises LookupError for any other type.
        """
        kinds = self._database.kinds
        way = kinds.get(kind)
        if way is None:
            way = kinds[kind] = self._find_getter(kind)
        return way(self)

    def _find_getter(self, kind: type) -> Callable[[Any], object]:
        if _is_kind(kind, AsyncSession) and issubclass(self._database.sessions.class_, kind):
            return lambda self: self.scope.session
        if kind is AsyncConnection:
            return lambda self: self.scope.connection
        if kind is Entities:
            return lambda self: self._entities
        if _is_kind(kind, object) and kind is not object and isinstance(self._transaction.driver, kind):
            return lambda self: self.scope.driver
        raise LookupError(f"a SQL unit provides AsyncSession and AsyncConnection, not {kind!r}")

    def is_busy(self) -> bool:
        """Return whether the unit's connection waits for the database; see the port."""
        connection = self._transaction.connection.sync_connection
        if connection is None or connection.closed or connection.invalidated:
            return False
        return self._database.dialect.is_busy(connection)

    def begin_statements(self) -> None:
        """Insert what earlier handlers left, and make the savepoint of this one in an isolated unit; in the greenlet.

        An error of the first is that of an earlier message, whatever the present handler makes of it: nothing of the unit is
        committed. A handler that executes no statement costs no savepoint.
        """
        if self._late:
            try:
                self._write_late()
            except BaseException as error:
                self._write_error = error
                raise RuntimeError(WRITE_FAILED) from error
        if self._needs_savepoint():
            again, self._has_savepoint, self._has_left = self._has_left, True, True
            self._database.dialect.set_savepoint(self.connection, OF_HANDLER, again=again)

    def begin_first(self) -> Coroutine[Any, Any, Any] | None:
        """Return what does the same outside of the greenlet; None if there is nothing to do."""
        if self._late or self._needs_savepoint():
            return self._transaction.connection.run_sync(lambda _: self.begin_statements())
        return None

    def _write_late(self) -> None:
        try:
            self._late.write(self.connection)
        except BaseException:
            self._late_rows.note_failure()
            raise

    def _needs_savepoint(self) -> bool:
        return self._isolated and not self._has_savepoint

    def roll_back(self) -> None:
        """Roll back what this handler did, if its unit is isolated; otherwise all of the unit. In the greenlet."""
        if self._isolated:
            self._is_rolled_back = True
            if self._has_savepoint:
                self.connection.dialect.do_rollback_to_savepoint(self.connection, OF_HANDLER)
        elif (root := self.connection.get_transaction()) is not None:
            root.rollback()

    def leave(self, *, is_last: bool = False) -> Awaitable[Any] | None:
        """Take what a handler left; see the port."""
        scope = self._scope
        if scope is None or self._is_block or (session := scope.sync_session) is None:
            return None
        if self._leave(scope, session, is_last=is_last):
            return None
        return scope.session.run_sync(lambda _: scope.flush(is_last=is_last))

    def _leave(self, scope: HandlerScope, session: Session, *, is_last: bool) -> bool:
        """Take what a handler left, if its rows may wait; in its context. False: the session must be flushed now.

        What runs after the handler, such as middleware, may still use the objects; `is_last` means that nothing does.
        """
        if session.get_nested_transaction() is not None:
            return not is_last and scope.is_clean(is_last=False)
        if not self._may_be_late:
            return scope.is_clean(is_last=is_last)
        if is_last:
            scope.is_taken = scope.has_no_options and self._late.take(session)
            return scope.is_taken
        complete(session)
        return scope.is_clean(is_last=False)

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Run a synchronous handler; its `get` finds the handler's Session and Connection. SQL in it yields to the loop."""
        scope = self.scope

        def work() -> Any:
            left = function(self._get_sync)
            session = scope.sync_session
            if session is None or self._is_block or inspect.isawaitable(left):
                return left
            if not self._leave(scope, session, is_last=is_last):
                scope.flush(is_last=is_last)
            return left

        if thread is None or not is_supported():
            return await self._transaction.connection.run_sync(lambda _: work())
        keep_in_threads(self._database.engine)
        self._thread = thread
        self._transaction.is_shared = self._is_in_thread
        lost = threading.Event()
        thread.on_expiry(scope.refuse)
        try:
            return await thread.run(lambda: in_greenlet(work, thread.wait_for, lost.set))
        finally:
            if thread.is_out and lost.is_set():
                await self._transaction.connection.invalidate()

    def attempt(self, handler: str = "") -> "HandlerAttempt":
        """Enclose one handler's work; see the port. Costs statements in an isolated unit only, and if the handler has some."""
        return HandlerAttempt(self, handler)

    def begin_attempt(self, handler: str) -> None:
        """Check that a handler may begin."""
        if not self._is_sure:
            self.check()
        self._is_sure = False
        if self._scope is None or self._is_begun:
            self._scope = HandlerScope(self._database, self)
        self._scope.name, self._scope.may_serve_again = handler, self._only_adds
        self._is_begun = True
        if self._isolated:
            self._has_savepoint = self._is_rolled_back = False
            self._mark = self._entities.mark()

    async def end_attempt(self) -> None:
        """Check what a handler left, and keep its work."""
        scope = cast("HandlerScope", self._scope)
        if not (scope.is_taken or scope.own is not None) and (writing := self.leave(is_last=True)) is not None:
            await writing
        self._check_left(scope)
        if self._is_rolled_back:
            raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason=ABORTED))
        if not self._is_block:  # what is left in its session is written at the commit
            self._listen(scope.sync_session)
            if scope.serves_again():
                self._is_begun = False
            else:
                self._only_adds = scope.only_adds and not self._only_adds
                self._end(scope)
        self._is_sure = True  # the state as just read is that which the next handler finds

    def _listen(self, session: Session | None) -> None:
        """Keep a session whose listeners are called after the commit."""
        if session is not None and session.dispatch.after_commit:
            self._listening.append(session)

    async def fail_attempt(self, error: BaseException) -> None:
        """Undo a handler's work where that is possible. Raises what counts instead of its own error."""
        if self._is_in_thread():  # its thread may be anywhere in the session: nothing is done with that, or with the unit
            self._is_spoilt = True
            return
        scope = cast("HandlerScope", self._scope)
        session = scope.sync_session
        scope.is_over = True  # whatever it left running is refused while its work is undone
        if self._isolated:
            self._entities.undo(self._mark)
            if self._has_savepoint:
                await self._undo()
        self._end(scope)
        if scope.own is not None:
            raise HandlerFailed(Failure(kind=FailureKind.ALONE, reason=str(scope.own))) from error
        if self._write_error is not None:
            raise CommitRefused(WRITE_FAILED) from self._write_error
        graver = self._more_severe(error, scope, session)
        if graver is not None and self._isolated and self._is_whole():
            kind = FailureKind.LOCKED if isinstance(graver, LockTimeout) else FailureKind.UNKNOWN
            raise HandlerFailed(Failure(kind=kind, reason=f"{type(graver).__name__}: {graver}")) from error
        if graver is not None:
            raise graver from error
        self._explain(error)

    def _end(self, scope: HandlerScope) -> None:
        """End what a handler was given. What it left in the database session ends with the connection."""
        scope.end()
        if scope.effects is not None:
            self._transaction.note(scope.effects)
            self._said = self._said or scope.said

    def check(self) -> None:
        """Check that the unit can still be committed. Raises CommitRefused if its handlers made that impossible."""
        state = self._transaction.state
        if state is State.LOST and not self._is_spoilt:
            raise CommitFailed(LOST)
        if self._is_spoilt or state is not State.OPEN:  # a statement that was cut off may have cost the connection: SPOILT
            raise CommitRefused({State.ENDED: ENDED, State.ABORTED: f"a handler failed: {ABORTED}"}.get(state, SPOILT))

    def flush(self) -> None:
        """Insert the rows that still wait; in the greenlet. Called once, before the commit.

        Raises ConflictError, CommitRefused, CommitFailed, OutcomeUnknown.
        """
        try:
            if self._scope is not None and not self._scope.is_over:
                self._scope.flush()
                self._listen(self._scope.sync_session)
                self._end(self._scope)
            self._write_late()
        except DBAPIError as error:
            raise translated(error, self._database.dialect, locked=ConflictError, refused=CommitRefused) from error
        except self._database.dialect.errors as error:
            raise OutcomeUnknown(error_text(error)) from error
        except StaleDataError as error:
            raise lost_row(error) from error
        except USERS_ERRORS as error:  # whatever a mapper, a type or a listener of the user's raises: nothing is committed yet
            raise CommitRefused(f"the added objects cannot be written: {error_text(error)}") from error

    @contextmanager
    def own_settings(self, connection: Connection) -> Iterator[None]:
        """Enclose the library's own statements; in the greenlet. What a handler's settings cause is its failure.

        Raises CommitRefused for that.
        """
        if not self._transaction.effects & Effect.SETS:
            yield
            return
        dialect = self._database.dialect
        try:
            with self._database.translate(locked=ConflictError), dialect.own_settings(connection):
                yield
        except OnceOnlyError as error:
            raise caused_by_setting(error, dialect, self._said) or error from error.__cause__

    def tell_committed(self) -> None:
        """Call the listeners that wait for the commit of a handler's session. What they raise is logged."""
        for session in self._listening:
            try:
                session.dispatch.after_commit(session)
            except Exception as error:  # noqa: BLE001 - the commit cannot be taken back
                _log.warning("listener for after_commit failed", extra={"error": text_of(error)}, exc_info=True)

    def _is_in_thread(self) -> bool:
        """Return whether a handler is still in its thread."""
        return self._thread is not None and not self._thread.is_out

    def _get_sync(self, kind: type) -> object:
        if kind is Connection:
            return self.scope.sync_connection
        if _is_kind(kind, Session):
            session = self.scope.session.sync_session
            if isinstance(session, kind):
                return session
        raise LookupError(f"a SQL unit provides Session and Connection to a `def` handler, not {kind!r}")

    async def _undo(self) -> None:
        """Undo one handler's work; when that fails nothing of the unit is committed.

        The statements are said on the unit's own connection. SQLAlchemy regards a savepoint as rolled back as soon as it asks
        for that: 1 a flush inserts rows, 2 it fails and asks for the rollback, 3 the handler's time ends before the database
        does it.
        """
        spoilt_before, self._is_spoilt = self._is_spoilt, True  # a second cancellation may end this half-way
        if self._transaction.state in (State.ENDED, State.LOST):
            return
        try:
            await self._transaction.connection.run_sync(lambda it: it.dialect.do_rollback_to_savepoint(it, OF_HANDLER))
        except SQLAlchemyError:  # it is closed already: the handler reached for it
            return
        self._is_spoilt = spoilt_before

    def _check_left(self, scope: HandlerScope) -> None:
        if scope.own is not None:
            raise scope.own
        if self._write_error is not None:
            raise CommitRefused(WRITE_FAILED) from self._write_error
        state = self._transaction.state
        if state is State.ABORTED:
            raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason=ABORTED))
        if state is State.ENDED:
            raise CommitRefused(ENDED)
        if state is State.LOST:
            raise CommitFailed(LOST)

    def _more_severe(self, error: BaseException, scope: HandlerScope, session: Session | None) -> OnceOnlyError | None:
        """Return what is to be raised instead of a handler's own error: what concerns the whole unit, or is not its fault."""
        if not isinstance(error, Exception | BaseExceptionGroup) or isinstance(error, CommitRefused | OutcomeUnknown):
            return None
        if self._transaction.state is State.ENDED:
            return CommitRefused(ENDED)
        if self._transaction.state is State.LOST:
            return CommitFailed(LOST)
        dialect = self._database.dialect
        has_set = scope.effects is not None
        return failure_of_unit(error, dialect, connection=self.connection, session=session, has_set=has_set)

    def _is_whole(self) -> bool:
        """Return whether the unit can go on after a handler's work was undone."""
        return not self._is_spoilt and self._transaction.state is State.OPEN

    def _explain(self, error: BaseException) -> None:
        """Add to the traceback of a lock that another connection of the handler's own did not get."""
        dialect = self._database.dialect
        if isinstance(error, DBAPIError) and dialect.single_writer and dialect.classify(error) is DatabaseFailure.LOCKED:
            error.add_note(HELD)

    def _close(self) -> None:
        if self._scope is not None and not self._is_in_thread():
            self._scope.end()


class HandlerAttempt:
    """What encloses one handler's work in a unit."""

    __slots__ = ("_handler", "_resources")

    def __init__(self, resources: SqlResources, handler: str) -> None:
        self._resources = resources
        self._handler = handler

    async def __aenter__(self) -> None:
        self._resources.begin_attempt(self._handler)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._resources.fail_attempt(error)
            return
        try:
            await self._resources.end_attempt()
        except BaseException as left:
            await self._resources.fail_attempt(left)
            raise


def _is_kind(kind: object, of: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)
