"""What a unit knows about its handler, whose statements go through Django's connections."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from django.db import transaction
from django.db.utils import Error
from sqlalchemy import Connection, text

from onceonly.integrations.django.borrowed import driver_error, is_lost
from onceonly.integrations.django.unit_transactions import ABORTED, DjangoTransaction, UndoneBlock
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    HandlerExpired,
    HandlerFailed,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
    TransactionMisused,
    leaves,
)
from onceonly.model.message import Failure, FailureKind
from onceonly.ports.store import SyncThread
from onceonly.sql.dialect import DatabaseFailure, State
from onceonly.sql.guard import check_statement
from onceonly.sql.statement_effects import Effect, does_write
from onceonly.sql.translation import worst_failure

ENDED = (
    "the handler has ended the database transaction of its message, or closed its connection: leave both to onceonly, and let "
    "errors of the database pass"
)
LOST = "the database connection of this message was lost before its commit"
OTHER_ALIAS = (
    "a handler of endpoint {endpoint!r} writes to database {other!r}, which is not committed with its message: the rows would "
    "stay when the message is handled again. Move them to database {alias!r}, or send a message to an endpoint whose database "
    "is {other!r}. For rows that may be written twice, write them in a function of `transaction.on_commit`"
)
NO_RESOURCE = "handlers of this endpoint use Django's ORM, whose statements belong to the transaction of their message"
_PATH = "SELECT current_setting('search_path')"


class DjangoResources:
    """What a unit knows about its handler, which has Django's connections. It is a `UnitResources` and a `Guard`."""

    def __init__(self, transaction: DjangoTransaction, *, isolated: bool) -> None:
        self._transaction = transaction
        self._isolated = isolated
        self._thread: SyncThread | None = None
        self._expired: HandlerExpired | None = None
        self.left: State | None = None
        """The state in which the handler has left the transaction. None if it has not returned."""
        transaction.stuck = self.is_stuck

    def get(self, kind: type) -> object:
        """Raise LookupError: there is nothing to ask for."""
        raise LookupError(f"{NO_RESOURCE}, not {kind!r}")

    def attempt(self, handler: str = "") -> "HandlerBlock":
        self.left = None
        return HandlerBlock(self._transaction, self, isolated=self._isolated)

    def leave(self, *, is_last: bool = False) -> None:
        """Return None: Django's ORM writes at once."""

    def is_busy(self) -> bool:
        return self._transaction.thread.in_statement

    async def run_sync(
        self,
        function: Callable[[Callable[[type], object]], Any],
        thread: SyncThread | None = None,
        *,
        is_last: bool = False,
    ) -> object:
        """Run a handler in the thread of the unit, also where `def` handlers run in the event loop otherwise."""
        own = self._transaction.thread

        def work() -> Any:
            with own.guarded(self):
                result = function(self.get)
            self.left = self._transaction.state()
            return result

        if thread is None:
            return await own.call(work)
        self._thread = thread
        thread.on_expiry(self._expire)
        return await thread.run(work, own.start)

    def before(self, statement: str, django: Any) -> None:
        """Look at a statement of the handler; see `Guard`."""
        if self._expired is not None:
            raise self._expired
        own = self._transaction
        if django.alias != own.alias:
            if does_write(statement):
                raise TransactionMisused(OTHER_ALIAS.format(endpoint=own.home.endpoint, other=django.alias, alias=own.alias))
            return
        effect = own.dialect.effects(statement)
        if effect is None:
            return
        check_statement(statement, effect, own.dialect.effects)
        if effect & Effect.SETS and not own.search_path and django.vendor == "postgresql":
            own.search_path = own.connection().exec_driver_sql(_PATH).scalar_one()
        own.effects |= effect

    def failed(self, error: Exception, django: Any) -> None:
        """Note an error after which the database may have rolled back all, and begun anew; see `Guard`."""
        own = self._transaction
        found = driver_error(error)
        if django.alias != own.alias or found is None or django.vendor != "mysql":
            return
        if own.dialect.classify(found) in {DatabaseFailure.LOCKED, DatabaseFailure.HELD}:
            own.is_spoilt = True

    def flush(self) -> None:
        """Do nothing: Django's ORM writes at once."""

    def check(self) -> None:
        """Check the transaction; in the thread. Raises CommitRefused, CommitFailed."""
        state = self._transaction.state()
        if state is not State.OPEN:
            raise _gone(state) or CommitRefused(ABORTED)

    @contextmanager
    def own_settings(self, connection: Connection) -> Iterator[None]:
        """Have the tables found where they were before the handler. What it has set otherwise is its own failure."""
        own = self._transaction
        if own.search_path:
            connection.execute(text("SELECT set_config('search_path', :path, true)"), {"path": own.search_path})
        with own.translating(refused=CommitRefused, unknown=CommitRefused if own.effects & Effect.SETS else CommitFailed):
            yield

    def tell_committed(self) -> None:
        """Do nothing: the thread calls what waits for `on_commit`."""

    def _expire(self, error: HandlerExpired) -> None:
        self._expired = error

    def is_stuck(self) -> bool:
        """Return whether the handler is still in its thread."""
        return self._thread is not None and not self._thread.is_out


class HandlerBlock:
    """What encloses one handler's work in a unit."""

    def __init__(self, transaction: DjangoTransaction, resources: DjangoResources, *, isolated: bool) -> None:
        self._transaction = transaction
        self._resources = resources
        self._isolated = isolated
        self._savepoint: Any = None

    async def __aenter__(self) -> None:
        if self._isolated:
            await self._transaction.thread.call(self._enter)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            if self._savepoint is not None or self._resources.left is not State.OPEN:
                await self._transaction.thread.call(self._end)
        elif not self._resources.is_stuck():  # its thread may be anywhere in the transaction
            await self._transaction.thread.call(lambda: self._fail(error))

    def _enter(self) -> None:
        with self._transaction.translating():
            savepoint = transaction.atomic(using=self._transaction.alias)
            savepoint.__enter__()
        self._savepoint = savepoint

    def _end(self) -> None:
        """Check what the handler has left. Raises HandlerFailed, CommitRefused, CommitFailed."""
        state = self._transaction.state()
        if state is State.OPEN:
            if self._savepoint is not None:
                with self._transaction.translating():
                    self._savepoint.__exit__(None, None, None)
            return
        if (gone := _gone(state)) is not None:
            raise gone
        self._undo()
        raise HandlerFailed(Failure(kind=FailureKind.EXCEPTION, reason=ABORTED))

    def _fail(self, error: BaseException) -> None:
        """Undo what can be undone. Raises what counts instead of the handler's error."""
        is_whole = self._undo()
        graver = self._more_severe(error)
        if graver is None:
            return
        if is_whole:
            kind = FailureKind.LOCKED if isinstance(graver, LockTimeout) else FailureKind.UNKNOWN
            raise HandlerFailed(Failure(kind=kind, reason=f"{type(graver).__name__}: {graver}")) from error
        raise graver from error

    def _undo(self) -> bool:
        """Roll back to the savepoint of an isolated unit. Return whether the unit can go on."""
        if self._savepoint is None:
            return False
        savepoint, self._savepoint = self._savepoint, None
        try:
            savepoint.__exit__(UndoneBlock, UndoneBlock(), None)
        except Error:
            return False
        return self._transaction.state() is State.OPEN

    def _more_severe(self, error: BaseException) -> OnceOnlyError | None:
        own = self._transaction
        if not isinstance(error, Exception | BaseExceptionGroup) or isinstance(error, CommitRefused | OutcomeUnknown):
            return None
        if (gone := _gone(own.state())) is not None:
            return gone
        found = [each for each in map(driver_error, leaves(error)) if each is not None]
        if any(is_lost(own.alias, each) for each in found):
            return CommitFailed(LOST)
        return worst_failure(found, own.dialect, has_set=bool(own.effects & Effect.SETS))


def _gone(state: State) -> CommitFailed | None:
    """Return what it means that a transaction is not there any more. None if it is."""
    return {State.LOST: CommitFailed(LOST), State.ENDED: CommitRefused(ENDED)}.get(state)
