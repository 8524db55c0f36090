"""What is special about a connection to MariaDB: TLS, lock time-outs, what ends its transaction, how statements are cancelled.

After a deadlock the server has rolled the transaction back. In autocommit mode it would commit each later statement on its own.
An error has no status flag, so the errors that do this are noted, and nothing more is sent until the next `begin`.
A lock time-out rolls back its statement only, unless the server has `innodb_rollback_on_timeout`. So ROLLBACK TO SAVEPOINT is
sent after one: when it succeeds, the savepoint and its transaction are still there, and the unit goes on.

Sessions of this library wait for a row lock in whole seconds, and a unit of several messages waits briefly. After a lock
time-out of a handler's statement, the next units of messages do not wait at all behind their claims: see `long_locks`. Sessions
of a user's engine keep their own setting.
"""

import asyncio
import re
from collections.abc import Mapping
from ssl import CERT_NONE, SSLContext, SSLError, create_default_context
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.model.errors import ConflictError, SetupError
from onceonly.sql.dialect import BATCH_LOCK_SECONDS, Purpose
from onceonly.sql.guard import is_guarded, unit_connection
from onceonly.sql.options import TLS_OPTIONS, check_files
from onceonly.sql.statement_effects import ISOLATION, LEFT, TEMPORARY, Effect, StatementEffects, begins, contains
from onceonly.sql.time_limits import LockWait, LongLocks, read_limit

_ROLLED_BACK, _MENDABLE = "onceonly_rolled_back", "onceonly_mendable"
_LOCK_TIMEOUT = 1205
_WAITS, _WAITED, _ISOLATED = "onceonly_waits", "onceonly_waited_for_locks", "onceonly_isolated"
_, _CA, _CERTIFICATE, _KEY = TLS_OPTIONS["mariadb"]
_READS = ("SELECT", "WITH", "(SELECT")
QUIET = "onceonly_quiet"
"""The execution option of statements whose duplicates are expected."""
_ROLLBACK_TO = re.compile(r"\s*ROLLBACK\s+(?:WORK\s+)?TO\b", re.IGNORECASE)
_ENDING = frozenset({1020, _LOCK_TIMEOUT, 1213, 3572})

_EXECUTED_COMMENTS = r"(?:\s|;|--[^\n]*+|\#[^\n]*+|(?>/\*(?!M?!).*?\*/)|/\*M?!\d*+)*+"
# https://mariadb.com/kb/en/sql-statements-that-cause-an-implicit-commit/, and those of MySQL.
# `/*! ... */` and `/*M! ... */` are executed.
_COMMITTING = re.compile(
    rf"{_EXECUTED_COMMENTS}(?:COMMIT|BEGIN(?!\s+NOT\s+ATOMIC)|START|STOP|ROLLBACK(?!\s+(?:WORK\s+)?TO\b)|XA|ALTER|ANALYZE\s+(?:LOCAL\s+|NO_WRITE_TO_BINLOG\s+)?TABLE"
    r"|CACHE|CHANGE|CHECK|(?:CREATE(?:\s+OR\s+REPLACE)?|DROP)(?!\s+(?:OR\s+REPLACE\s+)?TEMPORARY\b)|FLUSH|GRANT|INSTALL|UNINSTALL"
    r"|CLONE|IMPORT|RESTART|LOAD\s+INDEX|LOCK|UNLOCK|OPTIMIZE|RENAME|REPAIR|RESET|REVOKE|SET\s+PASSWORD|SHUTDOWN|TRUNCATE"
    r"|SET\s+(?:(?:SESSION|LOCAL)\s+|@@(?:(?:SESSION|LOCAL)\.)?)?AUTOCOMMIT)\b",
    re.IGNORECASE | re.DOTALL,
)
_SET = r"SET\s+(?!STATEMENT\b|TRANSACTION\b|PASSWORD\b)"
_FOREIGN_CHARSET = (
    r"SET\s+(?:[^;]*,\s*)?(?:(?:NAMES|CHARACTER\s+SET|CHARSET)\s+(?!['\"]?utf8mb4\b)|[^;]*\bcharacter_set_client\b)"
)
CHARSET_ADVICE = "The driver writes UTF-8: in another character set a quote inside of a text could end it"
EFFECTS = StatementEffects(
    begins(rf"{_SET}", LEFT | Effect.SETS, comments=_EXECUTED_COMMENTS),
    begins(r"SET\s+(?:(?:SESSION|LOCAL)\s+)TRANSACTION\b", Effect.REFUSED, ISOLATION, comments=_EXECUTED_COMMENTS),
    begins(_FOREIGN_CHARSET, Effect.REFUSED, CHARSET_ADVICE, comments=_EXECUTED_COMMENTS),
    begins(rf"{TEMPORARY}|PREPARE\b|EXECUTE\b|DEALLOCATE\b|USE\b|HANDLER\b", LEFT, comments=_EXECUTED_COMMENTS),
    contains("@", r"(?<![\w@'\"`.])@[\w$'\"`]", LEFT),
    contains("last_insert_id", r"\bLAST_INSERT_ID\s*\(\s*[^)\s]", LEFT),
    contains("lock", r"\b(?:GET_LOCK|RELEASE_LOCK|RELEASE_ALL_LOCKS)`?\s*\(", LEFT),
    begins(r"(?:IF|CASE|FOR|WHILE|LOOP|REPEAT)\b", LEFT | Effect.SETS, comments=_EXECUTED_COMMENTS),
)
"""What the text of a statement does: https://mariadb.com/kb/en/sql-statements/."""


def listen(engine: AsyncEngine) -> None:
    def note(context: ExceptionContext) -> None:
        if context.engine is engine.sync_engine and context.connection is not None:
            _note(context, unit_connection(context.connection))

    event.listen(engine.sync_engine, "handle_error", note)


def start_over(connection: Connection) -> None:
    connection.info.pop(_ROLLED_BACK, None)
    connection.info.pop(_MENDABLE, None)


def note_savepoint(connection: Connection, statement: str) -> None:
    """Note that a savepoint was still there after a lock time-out."""
    if connection.info.get(_MENDABLE) and _ROLLBACK_TO.match(statement):
        start_over(connection)


def rolled_back_by(connection: Connection) -> str | None:
    """Return the error with which the server ended this transaction, or None."""
    return connection.info.get(_ROLLED_BACK)


def code_of(error: DBAPIError) -> int | None:
    code = error.orig.args[0] if error.orig is not None and error.orig.args else None
    return code if isinstance(code, int) else None


def reset(connection: Any, _record: object, state: Any) -> None:
    """Roll back, before it goes back to the pool, a connection whose transaction is open; most have none."""
    if not state.terminate_only and state.asyncio_safe and connection._connection.get_transaction_status():  # noqa: SLF001 - SQLAlchemy's own name for it
        connection.rollback()


def _note(context: ExceptionContext, connection: Connection) -> None:
    if connection.closed or connection.invalidated:
        return
    if isinstance(context.original_exception, asyncio.CancelledError):
        driver = connection.connection.driver_connection
        if driver is not None and driver.connected:  # its statement was interrupted, and its answer read
            context.is_disconnect = False
        return
    error = context.sqlalchemy_exception
    if isinstance(error, DBAPIError) and code_of(error) in _ENDING:
        connection.info[_MENDABLE] = code_of(error) == _LOCK_TIMEOUT and _ROLLED_BACK not in connection.info
        connection.info[_ROLLED_BACK] = f"{type(error.orig).__name__}: {error.orig}".splitlines()[0]


def skip_warnings(_: Connection, cursor: Any, _statement: str, _parameters: object, context: Any, *_more: object) -> None:
    """Skip the warnings of a `QUIET` statement on a user's engine.

    asyncmy would ask for them in a round trip, and log each duplicate. A handler's statements keep theirs.
    """
    if context is not None and context.execution_options.get(QUIET):
        from onceonly.adapters.mariadb.cursor import QuietCursor  # noqa: PLC0415 - the driver is imported when an engine uses it

        cursor._cursor = QuietCursor(cursor._cursor.connection)  # noqa: SLF001 - SQLAlchemy has no other way


def limit_read(statement: str) -> str:
    """Make the server end a SELECT after the limit of its task: https://mariadb.com/kb/en/set-statement/.

    On MySQL a hint to the optimizer does it, and an error tells. The session does not change, so this is right on a connection
    of an application's own engine.
    """
    seconds = read_limit()
    if seconds is None or not statement.startswith(_READS):
        return statement
    hint = f"SELECT /*+ MAX_EXECUTION_TIME({max(1, round(seconds * 1000))}) */"
    return f"/*M!100300 SET STATEMENT max_statement_time = {seconds:g} FOR */ {statement.replace('SELECT', hint, 1)}"


def refuse(connection: Connection, statement: str) -> None:
    """Refuse a statement in a transaction that has ended, and on a guarded connection one that commits."""
    cause = rolled_back_by(connection)
    if cause is not None and not (connection.info[_MENDABLE] and _ROLLBACK_TO.match(statement)):
        raise ConflictError(f"the database rolled this transaction back, so it cannot be used any more: {cause}")
    if is_guarded(connection) and _COMMITTING.match(statement):
        raise RuntimeError(
            f"SQL {statement.strip()[:40]!r} is not allowed in a handler: it commits the transaction without its records. "
            "Run it outside handlers"
        )


def tls_context(options: Mapping[str, str]) -> SSLContext | None:
    """Return what `connect` takes as `ssl`, for the options in a URL; None for a connection without TLS.

    Without `ssl-mode`, any other option means VERIFY_IDENTITY. Without `ssl-ca`, certificates are verified with the authorities
    of the system. Raises SetupError for a file that cannot be used.
    """
    mode = options.get("ssl-mode", "VERIFY_IDENTITY" if options else "DISABLED")
    if mode == "DISABLED":
        return None
    check_files(options)
    try:
        context = create_default_context(cafile=options.get(_CA))
        if _CERTIFICATE in options:
            context.load_cert_chain(options[_CERTIFICATE], options[_KEY])
    except SSLError as error:
        files = ", ".join(name for name in (_CA, _CERTIFICATE, _KEY) if name in options)
        raise SetupError(f"the files of {files} cannot be used for TLS ({error.reason or error})") from error
    context.check_hostname = mode == "VERIFY_IDENTITY"
    if mode == "REQUIRED":
        context.verify_mode = CERT_NONE
    return context


class Locks:
    """Sets the lock wait time-out of one engine's sessions; `waits` is that of a new session, None leaves all as they are."""

    def __init__(self, waits: int | None = None) -> None:
        self._waits = waits
        self._long_locks = LongLocks()

    def watch(self, engine: AsyncEngine) -> None:
        event.listen(engine.sync_engine, "handle_error", self._note)

    def begun(self, connection: Connection, purpose: Purpose) -> str:
        """Return what is sent behind START TRANSACTION; empty when the session has this time-out already."""
        if self._waits is None:
            return ""
        connection.info[_WAITED] = None
        words = self._set(connection, min(self._waits, int(BATCH_LOCK_SECONDS)) if purpose is Purpose.BATCH else self._waits)
        return words and f"; {words}"

    def caution(self, connection: Connection, *, isolated: bool) -> str:
        """Return the statement that is sent before the handlers run; empty for none."""
        wait = self._long_locks.wait(isolated=isolated)
        connection.info[_WAITED], connection.info[_ISOLATED] = wait is not LockWait.NONE, isolated
        if self._waits is None or wait is LockWait.FULL:
            return ""
        return self._set(connection, min(self._waits, int(BATCH_LOCK_SECONDS)) if wait is LockWait.BRIEF else 0)

    def _set(self, connection: Connection, seconds: int) -> str:
        if connection.info.get(_WAITS, self._waits) == seconds:
            return ""
        connection.info[_WAITS] = seconds
        return f"SET SESSION innodb_lock_wait_timeout = {seconds}"

    def _note(self, context: ExceptionContext) -> None:
        error: Any = context.original_exception
        if context.connection is None or error.args[:1] != (_LOCK_TIMEOUT,):
            return
        info = context.connection.info
        if (waited := info.get(_WAITED)) is not None:
            self._long_locks.met(waited=waited, isolated=info[_ISOLATED])
