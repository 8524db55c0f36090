"""Which types of messages the other live processes of an endpoint handle. Read only while a message waits for one of them."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from onceonly.model.presence import ProcessState
from onceonly.runtime.environment import Timer

FRESH_SECONDS = 5.0
"""Seconds for which what was read is used. Afterwards it is read again, if a message needs it."""
NO_REPORTS = "its store has no reports of processes"


class LiveTypes(NamedTuple):
    """What is known of the other live processes of an endpoint. `problem` is why nothing is, else it is empty."""

    processes: Sequence[ProcessState] = ()
    problem: str = ""

    def takers(self, type_: str) -> tuple[str, ...]:
        """Return the names of the processes that handle a type."""
        return tuple(each.report.process for each in self.processes if type_ in each.report.types)


class TypesElsewhere:
    """The types that other live processes handle, as handlers of this process look them up: at once, without any I/O.

    What reads them runs in the background, in the event loop of the handlers.
    """

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._wanted = asyncio.Event()
        self._known: tuple[float, LiveTypes] | None = None

    def look(self) -> LiveTypes | None:
        """Return what is known, or None while it is being read. Asks for it to be read."""
        if self._timer is None:
            return LiveTypes(problem=NO_REPORTS)
        if self._known is not None and self._timer.seconds() - self._known[0] < FRESH_SECONDS:
            return self._known[1]
        self._wanted.set()
        return None

    def begin(self, timer: Timer) -> None:
        """Have messages wait for what is read from now on. Called by what reads, in its event loop."""
        self._timer, self._wanted, self._known = timer, asyncio.Event(), None

    def end(self) -> None:
        """Stop: nothing is read any more."""
        self._timer = None

    async def wanted(self) -> None:
        """Return when it has to be read."""
        await self._wanted.wait()
        self._wanted.clear()

    def learn(self, processes: Sequence[ProcessState], problem: str = "") -> None:
        """Store what was read, or why it could not be."""
        if self._timer is not None:
            live = tuple(each for each in processes if not each.is_stale)
            self._known = self._timer.seconds(), LiveTypes(live, problem)
