"""Transactions of units: an open `atomic()` block of Django's, in the thread that it belongs to."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

from django.db import connections, transaction
from django.db.utils import Error
from sqlalchemy import Connection, Table
from sqlalchemy.exc import SQLAlchemyError

from onceonly.endpoint.other_writes import IN_UNIT
from onceonly.formats.log_events import EventLogger
from onceonly.integrations.django.borrowed import NO_AUTOCOMMIT, borrowed, driver_error
from onceonly.integrations.django.unit_threads import UnitThread, UnitThreads
from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    OnceOnlyError,
    OutcomeUnknown,
    SetupError,
    error_text,
    text_of,
)
from onceonly.sql.dialect import Dialect, Limit, State
from onceonly.sql.statement_effects import Effect
from onceonly.sql.store.enlistment import shared_dialect
from onceonly.sql.translation import translated
from onceonly.sql.urls import DatabaseAddress

ABORTED = (
    "the handler has swallowed an error of the database, or called set_rollback, so the transaction of its message can only be "
    "rolled back: enclose statements that may fail in `with transaction.atomic():`, and raise an error to undo all"
)
_LASTING = Effect.LEAVES | Effect.SETS_SESSION
_SETTLED = "_onceonly_settled"
_KILL = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = {} AND datname = current_database()"
    " AND usename = session_user AND xact_start IS NOT NULL",
    "mysql": "KILL {}",
}
"""Statements that end the session of another connection of the same user, in the same database."""
_LOCK_TIMEOUT = (
    "SELECT set_config('lock_timeout', %s, %s) FROM pg_settings WHERE name = 'lock_timeout'"
    " AND (setting = '0' OR CAST(setting AS bigint) > %s)"
)
_CUTTING: set[asyncio.Task[None]] = set()
_Result = TypeVar("_Result")
_log = EventLogger(logging.getLogger("onceonly"))


class UnitHome(NamedTuple):
    """The endpoint, the alias of its database, where its tables are, and the threads of its units."""

    endpoint: str
    alias: str
    place: DatabaseAddress
    threads: UnitThreads


class DjangoTransaction:
    """An `atomic()` block that is open in a thread. It is a `UnitTransaction`."""

    def __init__(self, home: UnitHome, thread: UnitThread) -> None:
        self.home = home
        self.thread = thread
        self.alias = home.alias
        self.dialect: Dialect = shared_dialect(home.place.url)
        self.effects = Effect(0)
        """What statements of the handler did beyond reading and writing rows."""
        self.is_spoilt = False
        """Whether the database has rolled back what the handler believes to be open."""
        self.search_path = ""
        """Where the tables were found before the handler changed that; on PostgreSQL."""
        self.stuck: Callable[[], bool] = _no
        """Whether a handler has not returned to the thread although its time is over."""
        self._atomic: Any = None
        self._hooks: list[Any] = []
        self._session = 0
        self._has_said_commit = False
        self._is_over = False

    @property
    def has_said_commit(self) -> bool:
        return self._has_said_commit

    async def run_sync(self, function: Callable[[Connection], _Result]) -> _Result:
        """Call a function with SQLAlchemy's connection on that of Django, in the thread. Raises CommitFailed, ConflictError."""

        def run() -> _Result:
            if self._atomic is None:
                self._begin()
            with self.translating():
                return function(self.connection())

        return await self.thread.call(run)

    def connection(self) -> Connection:
        """Return SQLAlchemy's connection on that of Django; in the thread."""
        return borrowed(self.alias, self.home.place)

    def block_commit(self, connection: Connection, *, of_messages: bool = False, isolated: bool = False) -> None:
        """Do nothing: Django refuses a commit of the handler, and its statements are looked at."""

    def insert_last(self, connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows at once: it is Django that commits."""
        self.dialect.insert_all(connection, table, rows)

    async def commit(self, last: Callable[[Connection], None], *, limit: Limit | None = None) -> None:
        """Call `last`, and have Django commit. Then call what waits for `on_commit`: nothing here waits for that."""
        is_clean = await self.thread.call(lambda: self._commit(last))
        self._is_over = True
        if is_clean:
            self.home.threads.give_back(self.thread)
            return
        self.thread.post(self._after_commit)
        self._release()

    def drop(self) -> None:
        """Roll back, after all that was begun in the thread."""
        if self._is_over:
            return
        self._is_over = True
        if self.stuck() and self._session:
            task = asyncio.get_running_loop().create_task(self._cut_off())
            _CUTTING.add(task)
            task.add_done_callback(_CUTTING.discard)
        self.thread.post(self._roll_back)
        self._release()

    def state(self) -> State:
        """Return the state of the transaction, as Django and the driver know it; in the thread. Sends no statement."""
        django = connections[self.alias]
        if django.connection is None or django.closed_in_transaction:
            return State.ENDED if django.closed_in_transaction else State.LOST
        if not django.in_atomic_block:
            return State.ENDED
        found = _driver_state(django)
        if found is State.OPEN and (self.is_spoilt or django.needs_rollback):
            return State.ABORTED
        return found

    @contextmanager
    def translating(
        self,
        *,
        refused: type[OnceOnlyError] = CommitFailed,
        unknown: type[OnceOnlyError] = CommitFailed,
        committing: bool = False,
    ) -> Iterator[None]:
        """Translate errors of Django, SQLAlchemy and the driver; see `translated`."""
        try:
            yield
        except (Error, SQLAlchemyError, OSError) as error:
            found = driver_error(error)
            raise translated(
                error if found is None else found,
                self.dialect,
                locked=ConflictError,
                refused=refused,
                unknown=unknown,
                committing=committing,
            ) from error

    def _begin(self) -> None:
        self.thread.refresh()
        django = connections[self.alias]
        with self.translating():
            django.ensure_connection()
            if not django.get_autocommit():
                raise SetupError(NO_AUTOCOMMIT.format(alias=self.alias))
            timeout, is_pooled = self.home.place.timeout, _is_pooled(django, self.home.place)
            if not is_pooled:
                _settle_session(django, timeout)
                self._session = _session_number(django)
            atomic = transaction.atomic(using=self.alias)
            atomic.__enter__()
            if is_pooled:
                _limit_locks(django, timeout, is_local=True)
        self._atomic = atomic
        setattr(django, IN_UNIT, True)

    def _commit(self, last: Callable[[Connection], None]) -> bool:
        """Commit. Return whether nothing is left to do in the thread."""
        with self.translating(refused=CommitRefused):
            last(self.connection())
        django = connections[self.alias]
        if django.needs_rollback:
            raise CommitRefused(ABORTED)
        # Django would call them within the commit, and what they raise would look like a failed one.
        self._hooks, django.run_on_commit = django.run_on_commit, []
        atomic, self._atomic = self._atomic, None
        self._has_said_commit = True
        with self.translating(refused=CommitRefused, unknown=OutcomeUnknown, committing=True):
            atomic.__exit__(None, None, None)
        setattr(django, IN_UNIT, False)
        return not (self._hooks or self.effects & _LASTING)

    def _after_commit(self) -> None:
        """Call the functions of `on_commit`, as Django does: after one that fails, the others are not called."""
        django = connections[self.alias]
        django.run_on_commit, self._hooks = self._hooks, []
        try:
            django.run_and_clear_commit_hooks()
        except Exception as error:  # noqa: BLE001 - the commit cannot be taken back
            fields = {"endpoint": self.home.endpoint, "error": text_of(error)}
            _log.warning("function of on_commit failed", extra=fields, exc_info=True)
        self._clean(django)

    def _roll_back(self) -> None:
        atomic, self._atomic = self._atomic, None
        django = connections[self.alias]
        if atomic is not None:
            try:
                atomic.__exit__(UndoneBlock, UndoneBlock(), None)
            except Exception:  # noqa: BLE001 - whatever it is, no other message may use this connection
                _close(django)
        elif self._has_said_commit:
            _close(django)
        self._clean(django)

    def _clean(self, django: Any) -> None:
        """Close a connection in which the handler has left something, or changed what outlives the transaction."""
        setattr(django, IN_UNIT, False)
        if self.effects & _LASTING or django.in_atomic_block:
            _close(django)

    def _release(self) -> None:
        loop, threads, thread = asyncio.get_running_loop(), self.home.threads, self.thread

        def give_back() -> None:
            try:
                loop.call_soon_threadsafe(threads.give_back, thread)
            except RuntimeError:  # the event loop is closed
                thread.end()

        thread.post(give_back)

    async def _cut_off(self) -> None:
        """Have the server end the session, which rolls back: the thread may never come to that."""
        statement = _KILL[connections[self.alias].vendor].format(self._session)
        other = UnitThread()
        try:
            await other.call(lambda: _execute(self.alias, statement))
        except (Error, OSError) as error:
            fields = {"endpoint": self.home.endpoint, "error": error_text(error)}
            _log.warning("transaction of a handler that does not return is still open", extra=fields)
        finally:
            other.end()


class UndoneBlock(Exception):
    """Has `atomic()` roll back."""


def _driver_state(django: Any) -> State:
    driver = django.connection
    if django.vendor == "postgresql":
        names = {"IDLE": State.ENDED, "INERROR": State.ABORTED, "UNKNOWN": State.LOST}
        return names.get(driver.info.transaction_status.name, State.OPEN)
    if django.vendor == "sqlite":
        return State.OPEN if driver.in_transaction else State.ENDED
    return State.OPEN


def _session_number(django: Any) -> int:
    """Return the number of a connection's session on the server. 0 for SQLite."""
    if django.vendor == "postgresql":
        return int(django.connection.info.backend_pid)
    return int(django.connection.thread_id()) if django.vendor == "mysql" else 0


def _is_pooled(django: Any, place: DatabaseAddress) -> bool:
    """Return whether a pooler gives each transaction another session of PostgreSQL, as the project's settings say."""
    return django.vendor == "postgresql" and bool(place.pgbouncer or django.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))


def _settle_session(django: Any, timeout: float) -> None:
    """Have a new connection wait for locks no longer than the store does, unless the project has set something shorter."""
    if getattr(django, _SETTLED, None) is django.connection:
        return
    if django.vendor == "postgresql":
        _limit_locks(django, timeout, is_local=False)
    elif django.vendor == "mysql":
        with django.cursor() as cursor:
            cursor.execute(
                "SET SESSION innodb_lock_wait_timeout = LEAST(@@innodb_lock_wait_timeout, %s)", [max(1, round(timeout))]
            )
    setattr(django, _SETTLED, django.connection)


def _limit_locks(django: Any, timeout: float, *, is_local: bool) -> None:
    milliseconds = round(timeout * 1000)
    with django.cursor() as cursor:
        cursor.execute(_LOCK_TIMEOUT, [f"{milliseconds}ms", is_local, milliseconds])


def _execute(alias: str, statement: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement)


def _close(django: Any) -> None:
    """Close a connection, whatever state it is in. Also one of a pool, which would keep what a handler has set."""
    django.in_atomic_block = django.needs_rollback = django.closed_in_transaction = False
    django.savepoint_ids, django.atomic_blocks, django.run_on_commit = [], [], []
    with suppress(Exception):  # it is of no use any more
        django.connection.close()
    with suppress(Exception):
        django.close()
    django.connection = None


def _no() -> bool:
    return False
