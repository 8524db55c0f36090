"""Deadlocks on PostgreSQL: the server looks for one only after `deadlock_timeout`, a second, and all who wait lose that time.

Who has met one is *wary* for a while: no lock is waited for longer than a moment, so that a deadlock ends soon, whoever else is
in it. A lock that is not had in time is a Conflict like the deadlock itself, uncounted.
"""

from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine

from onceonly.drivers.postgresql_drivers import Driver

DEADLOCK = "40P01"
WARY_FOR = 200  # units after a deadlock
MOMENT = "200ms"  # some units' time, and a fifth of a deadlock's
BE_QUICK = (
    f"SELECT set_config('lock_timeout', '{MOMENT}', true)"
    f" WHERE current_setting('lock_timeout')::interval NOT BETWEEN '1ms' AND '{MOMENT}'"
)


class Deadlocks:
    """Counts for one engine of this process how many units are still to be wary."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._left = 0

    def watch(self, engine: AsyncEngine) -> None:
        """Notice every deadlock on this engine."""
        event.listen(engine.sync_engine, "handle_error", self._note)

    def is_wary(self) -> bool:
        """Tell whether the unit that begins now is to be wary, and count it."""
        wary = self._left > 0
        self._left -= wary
        return wary

    def _note(self, context: ExceptionContext) -> None:
        error = context.sqlalchemy_exception or context.original_exception
        if isinstance(error, Exception) and self._driver.sqlstate(error) == DEADLOCK:
            self._left = WARY_FOR
