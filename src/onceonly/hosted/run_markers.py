"""Run markers where no retry copy can carry the count of deaths: it is in the marker itself.

A marker's attempts are how many runs of the message died before. The host's count proves no death: it also grows in outages.
"""

from collections.abc import Callable, Sequence

from onceonly.model.identity import Identity
from onceonly.ports.run_markers import DeadRuns, RunMarkers, StartResult

GivesUp = Callable[[Identity, int], bool]
"""Whether a message is given up when one more of its runs died, after this number of deaths."""


class HostedRunMarkers:
    """Run markers that run a message again at once after a death, with one more death in its marker, until it is given up."""

    def __init__(self, run_markers: RunMarkers, gives_up: GivesUp) -> None:
        self._run_markers = run_markers
        self._gives_up = gives_up

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        return await self._run_markers.find_dead(identities)

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        """Begin a run. Returns a death only if the message is given up for it."""
        deaths = 0
        while True:
            started = await self._run_markers.begin(identity, deaths)
            if started.died is None or self._gives_up(identity, started.died):
                return started
            # Crash here: 1 the marker is removed, 2 the process died, 3 the deaths count from 0: it is given up later.
            deaths = started.died + 1

    async def finish(self, identity: Identity) -> None:
        await self._run_markers.finish(identity)

    async def forget(self, identity: Identity, attempts: int) -> None:
        await self._run_markers.forget(identity, attempts)
