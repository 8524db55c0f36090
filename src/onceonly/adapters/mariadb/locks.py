"""How long the sessions of this library's own connections to MariaDB wait for a row lock, in whole seconds.

A unit of several messages waits briefly. After a lock time-out of a handler's statement, the next units of messages do not wait
at all behind their claims: see `long_locks`. Sessions of a user's engine keep their own setting.
"""

from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.sql.dialect import BATCH_LOCK_SECONDS, Purpose
from onceonly.sql.long_locks import LockWait, LongLocks

LOCK_TIMEOUT = 1205
_WAITS, _WAITED, _ISOLATED = "onceonly_waits", "onceonly_waited_for_locks", "onceonly_isolated"


class Locks:
    """Sets the lock wait time-out of one engine's sessions; `waits` is that of a new session, None leaves all as they are."""

    def __init__(self, waits: int | None = None) -> None:
        self._waits = waits
        self._long_locks = LongLocks()

    def watch(self, engine: AsyncEngine) -> None:
        """Count the lock time-outs on this engine."""
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
        if context.connection is None or error.args[:1] != (LOCK_TIMEOUT,):
            return
        info = context.connection.info
        if (waited := info.get(_WAITED)) is not None:
            self._long_locks.met(waited=waited, isolated=info[_ISOLATED])
