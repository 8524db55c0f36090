"""Maintenance in a process that a host runs: a step after a call, when something is due, and never for long."""

from onceonly.runtime.environment import LIVE, Environment
from onceonly.runtime.maintenance.loop import MaintenanceLoop

MOST_SECONDS = 3.0
"""Seconds that a step may take."""
LEAST_SECONDS = 0.2
"""A step is not begun with less time."""


class MaintenanceStep:
    """Does what is due for one endpoint, one step at a time in a process. Between two steps it rests as a janitor does.

    With `janitor=False` a step only looks whether another process does it.
    """

    def __init__(self, janitor: MaintenanceLoop, environment: Environment = LIVE) -> None:
        self._janitor = janitor
        self._timer = environment.timer
        self._due = self._timer.seconds()
        self._is_running = False

    @property
    def troubles(self) -> tuple[str, ...]:
        """What is wrong with the maintenance of the endpoint, in words, as of the last step."""
        return self._janitor.troubles

    def ask(self) -> None:
        """Ask for a step after this call: a message waits for a bucket."""
        self._janitor.ask()
        self._due = self._timer.seconds()

    async def run(self, seconds: float | None = None) -> None:
        """Do a step if one is due, for at most this number of seconds. Raises WrongEventLoop; outages are logged."""
        most = MOST_SECONDS if seconds is None else min(MOST_SECONDS, seconds)
        if self._is_running or most < LEAST_SECONDS or self._timer.seconds() < self._due:
            return
        self._is_running = True
        try:
            rest = await self._janitor.run_due(most)
        finally:
            self._is_running = False
        self._due = self._timer.seconds() + rest
