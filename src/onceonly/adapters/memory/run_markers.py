"""Run markers in memory: which runs have begun and not ended, and which a supervisor saw die."""

from collections.abc import Hashable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, Step, WallClock, WorldDriver, WorldPart
from onceonly.model.identity import Identity, claim_key
from onceonly.ports.environment import Clock
from onceonly.ports.run_markers import BEGUN, DeadRuns, StartResult

NO_WAIT_SECONDS = 0.001
"""Seconds that `begin` waits for another run to end: none, but a time-out needs some."""
BUSY_SECONDS = 1.0
"""Seconds after which a message whose other run may still be in progress is tried again."""


class MemoryRun(Struct, frozen=True):
    """A run that has not ended. It counts as dead at `until`, in milliseconds since 1970."""

    key: bytes
    attempts: int
    token: Hashable
    until: int


class RunMarkersWorld(Struct, frozen=True):
    """Runs that have not ended, runs that a supervisor saw die, and (for the checker) how often each message's run died.

    `explained`: a supervisor sees all deaths.
    """

    runs: tuple[MemoryRun, ...] = ()
    seen: tuple[tuple[bytes, int], ...] = ()
    deaths: tuple[tuple[bytes, int], ...] = ()
    explained: bool = False


class RunSpan(Struct, frozen=True):
    """A run's own name, the instant it is, and the instant at which a run that begins now counts as dead."""

    token: Hashable
    now: int
    until: int


PLACE = WorldPart("starts", RunMarkersWorld())


def begin(world: RunMarkersWorld, key: bytes, attempts: int, span: RunSpan) -> Step | None:
    """Record a run; waits while another one that began with at least as many attempts may be in progress."""
    world, seen = _take(world, (key,))
    mine = [run for run in world.runs if run.key == key]
    if any(run.attempts >= attempts and run.until > span.now for run in mine) and max(seen.values(), default=-1) < attempts:
        return None
    others = tuple(run for run in world.runs if run.key != key)
    died = max([*seen.values(), *(run.attempts for run in mine)], default=-1)
    if died >= attempts:
        return replace(world, runs=others), died
    return replace(world, runs=_sorted((*others, MemoryRun(key, attempts, span.token, span.until)))), None


def end(world: RunMarkersWorld, key: bytes, token: Hashable) -> Step:
    """Remove a run, unless another one of the same message has begun since."""
    return replace(world, runs=tuple(run for run in world.runs if (run.key, run.token) != (key, token))), None


def forget(world: RunMarkersWorld, key: bytes, attempts: int) -> Step:
    """Remove a run whose death was counted by other evidence."""
    return replace(world, runs=tuple(run for run in world.runs if run.key != key or run.attempts > attempts)), None


def take(world: RunMarkersWorld, keys: tuple[bytes, ...]) -> Step:
    """Return what a supervisor saw of these, and remove it."""
    world, found = _take(world, keys)
    return world, (tuple(sorted(found.items())), world.explained)


def _take(world: RunMarkersWorld, keys: tuple[bytes, ...]) -> tuple[RunMarkersWorld, dict[bytes, int]]:
    found: dict[bytes, int] = {}
    for key, attempts in world.seen:
        if key in keys:
            found[key] = max(attempts, found.get(key, 0))
    return replace(world, seen=tuple(each for each in world.seen if each[0] not in keys)), found


def _sorted(runs: tuple[MemoryRun, ...]) -> tuple[MemoryRun, ...]:
    return tuple(sorted(runs, key=lambda run: run.key))


class MemoryRunMarkers:
    """The run markers of one endpoint. A run that has not ended after `lasts` seconds counts as dead."""

    place = PLACE

    def __init__(self, driver: WorldDriver, endpoint: str, *, lasts: float = 60.0, clock: Clock | None = None) -> None:
        """Use the part of the driver's world that holds the runs."""
        self._driver = driver
        self._endpoint = endpoint
        self._lasts = lasts
        self._clock = clock or WallClock()
        self._tokens: dict[bytes, Hashable] = {}

    async def find_dead(self, identities: Sequence[Identity]) -> DeadRuns:
        """Return the runs that a supervisor saw die; see the port."""
        keys = {claim_key(self._endpoint, identity): identity for identity in identities}
        found: tuple[tuple[bytes, int], ...]
        found, explained = await self._driver.perform(PortOperation("start-died", PLACE, take, (tuple(keys),)))
        return DeadRuns(counted={keys[key]: attempts for key, attempts in found}, explained=explained)

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        key, now = claim_key(self._endpoint, identity), self._clock.now()
        token = self._tokens[key] = self._driver.token()
        span = RunSpan(token, now, now + int(self._lasts * 1000))
        operation = PortOperation("start-begin", PLACE, begin, (key, attempts, span))
        try:
            died: int | None = await self._driver.perform(operation, NO_WAIT_SECONDS)
        except TimeoutError:
            return StartResult(wait=BUSY_SECONDS)
        return BEGUN if died is None else StartResult(died=died)

    async def finish(self, identity: Identity) -> None:
        key = claim_key(self._endpoint, identity)
        await self._driver.perform(PortOperation("start-ended", PLACE, end, (key, self._tokens.get(key))))
        self._tokens.pop(key, None)  # not before: a call that was interrupted is repeated

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the run of which a death was counted; see the port."""
        key = claim_key(self._endpoint, identity)
        await self._driver.perform(PortOperation("start-forget", PLACE, forget, (key, attempts)))
