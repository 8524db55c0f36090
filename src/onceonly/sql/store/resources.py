"""What a SQL unit gives its handlers: one session and one connection, in the unit's database transaction, and its entities."""

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, cast

from sqlalchemy import Connection, NestedTransaction
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.exc import StaleDataError

from onceonly.model.entities import Changes, Entities
from onceonly.model.errors import (
    USERS_ERRORS,
    CommitFailed,
    CommitRefused,
    ConflictError,
    HandlerExpired,
    HandlerFailed,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
)
from onceonly.model.exceptions import text_of
from onceonly.model.message import Failure, FailureKind
from onceonly.ports.store import SyncThread
from onceonly.sql.database import Database
from onceonly.sql.dialect import DatabaseFailure, State
from onceonly.sql.guard import allow_uses, guard_connection, guard_session, refuse_uses
from onceonly.sql.handler_threads import in_greenlet, is_supported, keep_in_threads
from onceonly.sql.transaction import DatabaseTransaction
from onceonly.sql.translation import failure_of_unit, lost_row, translated

ENDED = (
    "something other than onceonly ended the database transaction of this unit: the database (an error "
    "or ON CONFLICT ROLLBACK), or a call of the driver. Do not swallow database errors, and do not "
    "end the transaction in a handler"
)
ABORTED = (
    "it swallowed a database error, so the database aborted the transaction. Use begin_nested() around statements that may fail"
)
SPOILT = "the changes of a failed handler could not be rolled back separately"
LOST = "the database connection of this unit was lost before its commit"
HELD = "this unit holds the write lock of its database, so other connections cannot write: use the session of the handler"


class SqlResources:
    """The resources of one unit. The session is opened when it is first asked for."""

    def __init__(
        self, database: Database, transaction: DatabaseTransaction, entities: Entities, *, isolated: bool, several: bool = False
    ) -> None:
        self._database = database
        self._transaction = transaction
        self._entities = entities
        self._mark: Changes = {}
        self._isolated = isolated
        self._is_mixed = several and not isolated  # a flush may write what another message's handler left
        self._session: AsyncSession | None = None
        self._is_guarded = False
        self._is_spoilt = False
        self._is_sure = True  # it has just begun
        self._got: dict[type, object] = {}
        self._thread: SyncThread | None = None
        self._savepoint_name = ""
        self._used: tuple[Connection | None, Session | None] = (None, None)
        transaction.closing = self._close

    def get(self, kind: type) -> object:
        """Give the unit's AsyncSession (also by the factory's own class), AsyncConnection, Entities, or its driver's own.

        Raises LookupError for any other type.
        """
        found = self._got.get(kind)
        if found is None:
            found = self._got[kind] = self._find(kind)
        return found

    def _find(self, kind: type) -> object:
        if _is_kind(kind, AsyncSession) and issubclass(self._database.sessions.class_, kind):
            return self._opened()
        if kind is AsyncConnection:
            self._guard()
            return self._transaction.connection
        if kind is Entities:
            return self._entities
        if _is_kind(kind, object) and kind is not object and isinstance(driver := self._transaction.driver, kind):
            return driver
        raise LookupError(f"a SQL unit provides AsyncSession and AsyncConnection, not {kind!r}")

    def is_busy(self) -> bool:
        """Return whether the unit's connection waits for the database; see the port."""
        connection = self._transaction.connection.sync_connection
        if connection is None or connection.closed or connection.invalidated:
            return False
        return self._database.dialect.is_busy(connection)

    async def run_sync(self, function: Callable[[Callable[[type], object]], Any], thread: SyncThread | None = None) -> object:
        """Run a synchronous handler; its `get` finds the unit's Session and Connection. SQL in it yields to the loop."""
        if thread is None or not is_supported():
            return await self._transaction.connection.run_sync(lambda _: function(self._get_sync))
        keep_in_threads(self._database.engine)
        self._thread = thread
        self._transaction.is_shared = self._is_shared
        work, lost = partial(function, self._get_sync), threading.Event()
        thread.on_expiry(self._refuse_uses)
        try:
            return await thread.run(lambda: in_greenlet(work, thread.wait_for, lost.set))
        finally:
            if thread.is_out:
                allow_uses(*self._used)
                if lost.is_set():
                    await self._transaction.connection.invalidate()

    def _refuse_uses(self, error: HandlerExpired) -> None:
        """Refuse the thread, whose time is over, what it has of the unit. Its SQL is refused where it would be awaited."""
        session = None if self._session is None else self._session.sync_session
        self._used = (self._transaction.connection.sync_connection, session)
        refuse_uses(*self._used, error)

    def attempt(self) -> "HandlerAttempt":
        """Enclose one handler's work; see the port. Costs a statement in an isolated unit only."""
        return HandlerAttempt(self)

    async def begin_attempt(self) -> SessionTransaction | None:
        """Make sure that a handler may begin; gives its savepoint, in an isolated unit."""
        if not self._is_sure:
            self.check()
        self._is_sure = False
        if not self._isolated:
            return None
        self._mark = self._entities.mark()
        return await self._begin_savepoint()

    async def end_attempt(self, savepoint: SessionTransaction | None) -> None:
        """Make sure of what a handler left, and keep its work."""
        self._check_left()
        if savepoint is not None:
            await self._release(savepoint)
        self._is_sure = True  # the state as just read is that which the next handler finds

    async def fail_attempt(self, savepoint: SessionTransaction | None, error: BaseException) -> None:
        """Undo a handler's work where that is possible. Raises what counts instead of its own error."""
        if self._is_shared():  # its thread may be anywhere in the session: nothing is done with that, or with the unit
            self._is_spoilt = True
            return
        if savepoint is not None:
            self._entities.undo(self._mark)
            await self._undo(savepoint)
        graver = self._graver(error)
        if graver is not None and savepoint is not None and self._is_whole():
            kind = FailureKind.LOCKED if isinstance(graver, LockTimeout) else FailureKind.UNKNOWN
            raise HandlerFailed(Failure(kind=kind, reason=f"{type(graver).__name__}: {graver}")) from error
        if graver is not None:
            raise graver from error
        self._explain(error)

    def check(self) -> None:
        """Make sure that the unit can still be committed. Raises CommitRefused when its handlers saw to it that not."""
        state = self._transaction.state
        if state is State.LOST and not self._is_spoilt:
            raise CommitFailed(LOST)
        if self._is_spoilt or state is not State.OPEN:  # a statement that was cut off may have cost the connection: SPOILT
            raise CommitRefused({State.ENDED: ENDED, State.ABORTED: f"a handler failed: {ABORTED}"}.get(state, SPOILT))

    def flush(self) -> None:
        """Write what the handlers left in the session; in the greenlet.

        Raises ConflictError, CommitRefused, CommitFailed, OutcomeUnknown.
        """
        if self._session is None:
            return
        try:
            self._session.sync_session.flush()
        except DBAPIError as error:
            raise translated(error, self._database.dialect, locked=ConflictError, refused=CommitRefused) from error
        except self._database.dialect.errors as error:
            raise OutcomeUnknown(f"{type(error).__name__}: {error}") from error
        except StaleDataError as error:
            raise CommitRefused(str(lost_row(error))) if self._is_mixed else lost_row(error) from error
        except USERS_ERRORS as error:  # whatever a mapper, a type or a listener of the user's raises: nothing is committed yet
            raise CommitRefused(f"the added objects cannot be written: {type(error).__name__}: {text_of(error)}") from error

    def _is_shared(self) -> bool:
        """Return whether a handler is still in its thread."""
        return self._thread is not None and not self._thread.is_out

    def _get_sync(self, kind: type) -> object:
        if _is_kind(kind, Session) and isinstance(self._opened().sync_session, kind):
            return self._opened().sync_session
        if kind is Connection:
            self._guard()
            return self._transaction.connection.sync_connection
        raise LookupError(f"a SQL unit provides Session and Connection to a `def` handler, not {kind!r}")

    def _opened(self) -> AsyncSession:
        if self._session is None:
            self._guard()
            factory = self._database.sessions
            own = {"bind": self._transaction.connection, "autoflush": True, "autobegin": True}
            self._session = factory.class_(**{**factory.kw, **own, "join_transaction_mode": "rollback_only"})
            guard_session(self._session.sync_session)
        return self._session

    def _guard(self) -> None:
        if not self._is_guarded and self._transaction.connection.sync_connection is not None:
            guard_connection(self._transaction.connection.sync_connection)
            self._is_guarded = True

    async def _begin_savepoint(self) -> SessionTransaction:
        def begin(session: Session) -> SessionTransaction:
            savepoint = session.begin_nested()
            nested = session.connection().get_nested_transaction()  # only now is SAVEPOINT said, for what goes around as well
            self._savepoint_name = cast("NestedTransaction", nested)._savepoint  # noqa: SLF001 - there is no public name
            return savepoint

        with self._database.translate(locked=ConflictError):
            return await self._opened().run_sync(begin)

    async def _release(self, savepoint: SessionTransaction) -> None:
        if not savepoint.is_active:
            raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason=ABORTED))
        await self._opened().run_sync(lambda _: savepoint.commit())

    async def _undo(self, savepoint: SessionTransaction) -> None:
        """Undo one handler's work, in the database and in the session; when that fails nothing of the unit is committed."""
        spoilt_before, self._is_spoilt = self._is_spoilt, True  # a second cancellation may end this half-way
        if self._transaction.state in (State.ENDED, State.LOST):
            return
        # SQLAlchemy regards a savepoint as rolled back as soon as it asks for that: 1 a flush inserts rows, 2 it fails and
        # asks for the rollback, 3 the handler's time ends before the database does it. So the statement is said again.
        is_repeated = not savepoint.is_active

        def undo(session: Session) -> None:
            savepoint.rollback()
            if is_repeated:
                connection = session.connection()
                connection.dialect.do_rollback_to_savepoint(connection, self._savepoint_name)

        try:
            await self._opened().run_sync(undo)
        except SQLAlchemyError:  # it is closed already: the handler reached for it
            return
        self._is_spoilt = spoilt_before

    def _check_left(self) -> None:
        state = self._transaction.state
        if state is State.ABORTED:
            raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason=ABORTED))
        if state is State.ENDED:
            raise CommitRefused(ENDED)
        if state is State.LOST:
            raise CommitFailed(LOST)

    def _graver(self, error: BaseException) -> OnceOnlyError | None:
        """Return what is to be raised instead of a handler's own error: what concerns the whole unit, or is not its fault."""
        if not isinstance(error, Exception | BaseExceptionGroup) or isinstance(error, CommitRefused | OutcomeUnknown):
            return None
        if self._transaction.state is State.ENDED:
            return CommitRefused(ENDED)
        if self._transaction.state is State.LOST:
            return CommitFailed(LOST)
        session = None if self._session is None or self._is_mixed else self._session.sync_session
        connection = self._transaction.connection.sync_connection
        return failure_of_unit(error, self._database.dialect, connection=connection, session=session)

    def _is_whole(self) -> bool:
        """Return whether the unit can go on after a handler's work was undone."""
        return not self._is_spoilt and self._transaction.state is State.OPEN

    def _explain(self, error: BaseException) -> None:
        """Add to the traceback of a lock that another connection of the handler's own did not get."""
        dialect = self._database.dialect
        if isinstance(error, DBAPIError) and dialect.single_writer and dialect.classify(error) is DatabaseFailure.LOCKED:
            error.add_note(HELD)

    def _close(self) -> None:
        if self._session is not None:
            Session.close(self._session.sync_session)  # its own `close` refuses, now and later


class HandlerAttempt:
    """What encloses one handler's work in a unit."""

    __slots__ = ("_resources", "_savepoint")

    def __init__(self, resources: SqlResources) -> None:
        self._resources = resources
        self._savepoint: SessionTransaction | None = None

    async def __aenter__(self) -> None:
        self._savepoint = await self._resources.begin_attempt()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._resources.fail_attempt(self._savepoint, error)
            return
        try:
            await self._resources.end_attempt(self._savepoint)
        except BaseException as left:
            await self._resources.fail_attempt(self._savepoint, left)
            raise


def _is_kind(kind: object, of: type) -> bool:
    return isinstance(kind, type) and issubclass(kind, of)
