"""Deadlocks on PostgreSQL: the server looks for one only after `deadlock_timeout`, a second, and all who wait lose that time.

After a lock time-out of a handler's statement, units wait for an instant only: a row is locked for long, and messages that do
not need it must not wait. A claim that waits too long for its owner, or an entity for its own, changes nothing.

Who has met one is *wary* for a while: no lock is waited for longer than a moment, so that a deadlock ends soon, whoever else is
in it. A lock that is not had in time is a Conflict like the deadlock itself, uncounted.
"""

from sqlalchemy import Connection, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.drivers.dialect import BRIEF
from onceonly.drivers.postgresql_drivers import Driver

DEADLOCK, LOCK_TIMEOUT = "40P01", "55P03"
WARY_FOR = 200  # units after a deadlock or a lock time-out
MOMENT = "200ms"  # some units' time, and a fifth of a deadlock's
INSTANT = "20ms"  # while a row is locked for long: each message that needs it costs its unit this much
_BE_QUICK = (
    "SELECT set_config('lock_timeout', '{0}', true) WHERE current_setting('lock_timeout')::interval NOT BETWEEN '1ms' AND '{0}'"
)
BE_QUICK, BE_QUICKER, BE_BRIEF = _BE_QUICK.format(MOMENT), _BE_QUICK.format(INSTANT), _BE_QUICK.format(f"{BRIEF:g}s")
_IN_HANDLERS = "onceonly_in_handlers"


class Deadlocks:
    """Counts for one engine of this process how many units are still to be wary."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._left = 0
        self._held_left = 0

    def watch(self, engine: AsyncEngine) -> None:
        """Notice every deadlock on this engine."""
        event.listen(engine.sync_engine, "handle_error", self._note)

    def begun(self, connection: Connection) -> None:
        """Note that no handler works on this connection: a transaction has begun."""
        connection.info[_IN_HANDLERS] = False

    def caution(self, connection: Connection, *, of_messages: bool) -> str:
        """Give the statement that makes the unit wary whose handlers run now, and count the unit; empty for none."""
        connection.info[_IN_HANDLERS] = of_messages
        held, wary = self._held_left > 0, self._left > 0
        self._held_left -= held
        self._left -= wary
        return BE_QUICKER if held else BE_QUICK if wary else ""

    def _note(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        state = self._driver.sqlstate(error) if isinstance(error, Exception) else None
        if state == DEADLOCK:
            self._left = WARY_FOR
        elif state == LOCK_TIMEOUT and _is_handlers(context.connection) and (self._held_left or not self._left):
            self._held_left = WARY_FOR  # a unit that is wary after a deadlock, and gives up, perhaps met another deadlock


def _is_handlers(connection: Connection | None) -> bool:
    return connection is not None and bool(connection.info.get(_IN_HANDLERS))
