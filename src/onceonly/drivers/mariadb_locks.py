"""How long the sessions of this library's own connections to MariaDB wait for a row lock, in whole seconds.

A unit of several messages waits briefly. After a lock time-out of a handler's statement, the next units of messages do not wait
at all behind their claims: a row is locked for long, and the messages that do not need it must not wait. Sessions of a user's
engine keep their own setting.
"""

from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.drivers.dialect import BRIEF, Purpose

LOCK_TIMEOUT = 1205
WARY_FOR = 200  # units of messages after a lock time-out
_WAITS, _IN_HANDLERS = "onceonly_waits", "onceonly_in_handlers"


class Locks:
    """Sets the lock wait time-out of one engine's sessions; `waits` is that of a new session, None leaves all as they are."""

    def __init__(self, waits: int | None = None) -> None:
        self._waits = waits
        self._held_left = 0

    def watch(self, engine: AsyncEngine) -> None:
        """Count the lock time-outs on this engine."""
        event.listen(engine.sync_engine, "handle_error", self._note)

    def begun(self, connection: Connection, purpose: Purpose) -> str:
        """Return what is sent behind START TRANSACTION; empty when the session has this time-out already."""
        if self._waits is None:
            return ""
        connection.info[_IN_HANDLERS] = False
        words = self._set(connection, min(self._waits, int(BRIEF)) if purpose is Purpose.BATCH else self._waits)
        return words and f"; {words}"

    def caution(self, connection: Connection) -> str:
        """Return the statement that is sent before the handlers run; empty for none."""
        connection.info[_IN_HANDLERS] = True
        if not self._held_left:
            return ""
        self._held_left -= 1
        return self._set(connection, 0)

    def _set(self, connection: Connection, seconds: int) -> str:
        if connection.info.get(_WAITS, self._waits) == seconds:
            return ""
        connection.info[_WAITS] = seconds
        return f"SET SESSION innodb_lock_wait_timeout = {seconds}"

    def _note(self, context: ExceptionContext) -> None:
        error: Any = context.original_exception
        if context.connection is not None and error.args[:1] == (LOCK_TIMEOUT,) and context.connection.info.get(_IN_HANDLERS):
            self._held_left = WARY_FOR
