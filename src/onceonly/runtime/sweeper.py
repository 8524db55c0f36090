"""The sweeper's runner: when to look for what attempts left behind that were never committed. It decides nothing about it.

An attempt that is under way looks like one that was left behind, but for its age: so nothing young is looked at.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from onceonly.algorithms.sweeper import sweep
from onceonly.model.errors import OnceOnlyError
from onceonly.ports.bundle import Ports
from onceonly.runtime.pace import Pace
from onceonly.runtime.surroundings import LIVE, Surroundings, pause

PAGE = 1000
"""How much is swept at once; where a whole page was, there is more."""

_log = logging.getLogger("onceonly.sweeper")


class Sweeper:
    """Removes the tokens and things of one endpoint that nobody can commit any more, and marks that have expired.

    It looks twice in the time after which something is old. Correct alone or beside any number of others, in this process or
    elsewhere. An outage of any port makes it wait and try again, for ever.
    """

    def __init__(self, ports: Ports, *, grace: float, surroundings: Surroundings = LIVE) -> None:
        """Prepare to run; `grace` is how long, in seconds, a stop waits for what is in work."""
        self._ports = ports
        self._after = ports.upkeep.after
        self._grace = grace
        self._surroundings = surroundings
        self._pace = Pace(PAGE, surroundings.chance)
        self._trouble = False

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then finish what is in work within the grace time."""
        turning = asyncio.create_task(self._turn_until(stop))
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({turning, stopped}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({turning}, timeout=self._grace)
        finally:  # ends tasks; calls no port
            for task in (turning, stopped):
                task.cancel()
            await asyncio.gather(turning, stopped, return_exceptions=True)
        if not turning.cancelled():
            turning.result()

    async def _turn_until(self, stop: asyncio.Event) -> None:
        fraction = self._surroundings.chance.fraction
        await pause(self._after / 2 * fraction(), self._surroundings.timer, stop)  # not all processes at once
        while not stop.is_set():
            seconds = await self._turn()
            await asyncio.sleep(0)  # adapters in memory never wait; signals need their turn all the same
            await pause(seconds, self._surroundings.timer, stop)

    async def _turn(self) -> float:
        """Sweep all that is old; gives how long to rest."""
        older_than = self._surroundings.clock.now() - round(self._after * 1000)
        upkeep = self._ports.upkeep
        tokens, things, marks = upkeep.tokens, upkeep.things, upkeep.marks
        try:
            if tokens is not None:
                await self._sweep("tokens that were never committed", lambda: sweep(tokens, older_than, PAGE, self._ports))
            if things is not None:
                await self._sweep("attempts that were never committed", lambda: things.sweep(older_than, PAGE))
            if marks is not None:
                await self._sweep("expired marks", lambda: marks.remove_expired(PAGE))
        except Exception as error:  # noqa: BLE001 - an outage, however a driver words it, kills no sweeper
            self._went_bad(error)
            return self._pace.after_outage()
        self._recovered()
        return self._after / 2 * (1 + self._surroundings.chance.fraction() / 2)

    async def _sweep(self, what: str, once: Callable[[], Awaitable[int]]) -> None:
        swept = count = await once()
        while count >= PAGE:
            count = await once()
            swept += count
        if swept:
            _log.info("sweeper removed %s", what, extra={"endpoint": self._endpoint, "count": swept})

    @property
    def _endpoint(self) -> str:
        return self._ports.endpoint

    def _went_bad(self, error: Exception) -> None:
        bug = not isinstance(error, OnceOnlyError)
        if self._trouble and not bug:
            return  # said once for each change of state, but a bug is said every time
        self._trouble = True
        _log.log(
            logging.ERROR if bug else logging.WARNING,
            "sweeper cannot look; trying again with growing delays",
            exc_info=error if bug else None,
            extra={"endpoint": self._endpoint, "reason": f"{type(error).__name__}: {error}"},
        )

    def _recovered(self) -> None:
        self._pace.after_receiving()
        if self._trouble:
            self._trouble = False
            _log.info("sweeper recovered", extra={"endpoint": self._endpoint})
