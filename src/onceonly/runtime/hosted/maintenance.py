"""Maintenance in a process that a host runs: a step after a call, when something is due, and never for long."""

import asyncio

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
        self._step: asyncio.Task[float] | None = None

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
        if self._step is not None or most < LEAST_SECONDS or self._timer.seconds() < self._due:
            return
        self._step = step = asyncio.create_task(self._janitor.run_due(most), name="onceonly hosted maintenance")
        try:
            await asyncio.wait({step})
        finally:
            await self.close()
        if not step.cancelled():
            self._due = self._timer.seconds() + step.result()

    async def close(self) -> None:
        """End a step that is running. It stays due."""
        step, self._step = self._step, None
        if step is not None and not step.done():
            step.cancel()
            await asyncio.wait({step})
