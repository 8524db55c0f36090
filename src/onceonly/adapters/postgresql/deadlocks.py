"""Deadlocks on PostgreSQL. The server looks for one only after `deadlock_timeout` (1 s), and all waiting units lose that time.

After a lock time-out of a handler's statement, units of messages wait for `INSTANT` only: see `long_locks`. A lock time-out of
a claim or of an entity does not start this.

After a deadlock an engine is *wary* for its next `WARY_FOR` units: these wait for `MOMENT` at most, so another deadlock ends
soon, whatever its other transactions do. A lock time-out in them is a ConflictError like the deadlock itself, and is not
counted.
"""

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.adapters.postgresql.drivers import PostgreSQLDriver
from onceonly.sql.dialect import BATCH_LOCK_SECONDS
from onceonly.sql.time_limits import LockWait, LongLocks

DEADLOCK, LOCK_TIMEOUT = "40P01", "55P03"
WARY_FOR = 200  # units after a deadlock
MOMENT = "200ms"  # some units' time, and a fifth of a deadlock's
INSTANT = "1ms"  # the least there is: while a row is locked for long, each message that needs it costs its unit this much
_BE_QUICK = (
    "SELECT set_config('lock_timeout', '{0}', true) WHERE current_setting('lock_timeout')::interval NOT BETWEEN '1ms' AND '{0}'"
)
BE_QUICK, BE_QUICKER, BE_BRIEF = (
    _BE_QUICK.format(MOMENT),
    _BE_QUICK.format(INSTANT),
    _BE_QUICK.format(f"{BATCH_LOCK_SECONDS:g}s"),
)
_CAUTIONS = {LockWait.NONE: BE_QUICKER, LockWait.BRIEF: BE_BRIEF, LockWait.FULL: ""}
_WAITED, _ISOLATED = "onceonly_waited_for_locks", "onceonly_isolated"


class Deadlocks:
    """Counts for one engine of this process how many units are still to be wary."""

    def __init__(self, driver: PostgreSQLDriver) -> None:
        self._driver = driver
        self._left = 0
        self._long_locks = LongLocks()

    def watch(self, engine: AsyncEngine) -> None:
        event.listen(engine.sync_engine, "handle_error", self._note)

    def begun(self, connection: Connection) -> None:
        """Note that no handler works on this connection: a transaction has begun."""
        connection.info[_WAITED] = None

    def caution(self, connection: Connection, *, of_messages: bool, isolated: bool) -> str:
        """Return the statement that makes the unit wary whose handlers run now, and count the unit; empty for none."""
        wait = self._long_locks.wait(isolated=isolated) if of_messages else LockWait.FULL
        wary = self._left > 0
        self._left -= wary
        # a unit that is wary, and gives up, may have met another deadlock
        connection.info[_WAITED] = wait is not LockWait.NONE and not wary if of_messages else None
        connection.info[_ISOLATED] = isolated
        return BE_QUICK if wary and wait is not LockWait.NONE else _CAUTIONS[wait]

    def _note(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        state = self._driver.sqlstate(error) if isinstance(error, Exception) else None
        if state == DEADLOCK:
            self._left = WARY_FOR
        elif state == LOCK_TIMEOUT and context.connection is not None:
            info = context.connection.info
            if (waited := info.get(_WAITED)) is not None:
                self._long_locks.met(waited=waited, isolated=info[_ISOLATED])
