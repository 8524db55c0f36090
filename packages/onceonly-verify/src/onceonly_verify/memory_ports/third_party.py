"""A service that is not ours, in memory: it executes each idempotency key once, until it forgets the key."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from onceonly.adapters.memory.world import PortOperation, Step, WorldDriver, WorldPart
from onceonly.model.errors import OnceOnlyError, PeerAway, RetryableError
from onceonly.model.remote import Response
from onceonly.model.third_party import ApiCall, outcome_unknown

URL = "http://third.party"


class ThirdPartyWorld(Struct, frozen=True):
    """The keys that the service knows, each with the instant at which it forgets it (0: never), and all that it executed."""

    keys: frozenset[tuple[str, int]] = frozenset()
    executed: tuple[bytes, ...] = ()


def execute(world: ThirdPartyWorld, calls: tuple[ApiCall, ...], now: int, kept: int) -> Step:
    """Execute what has no key that is known now; each key is known for `kept` milliseconds, or for good."""
    for call in calls:
        known = {key for key, until in world.keys if not until or now < until}
        if call.key not in known:
            keys = frozenset(each for each in world.keys if each[0] in known)
            world = ThirdPartyWorld(keys | {(call.key, now + kept if kept else 0)}, (*world.executed, call.body))
    return world, tuple(call.body for call in calls)


def find(world: ThirdPartyWorld, body: bytes) -> Step:
    """Return whether something was executed."""
    return world, body in world.executed


class MemoryThirdParty:
    """The one service of all who share a driver. With `is_searchable`, it can be asked what it has executed."""

    def __init__(self, driver: WorldDriver, *, now: Callable[[], int], kept: int, is_searchable: bool) -> None:
        """Use the part of the driver's world that is the service."""
        self.place = WorldPart("a third party", ThirdPartyWorld())
        self.driver = driver
        self._now = now
        self._kept = kept
        self._is_searchable = is_searchable

    async def execute(self, calls: Sequence[ApiCall]) -> tuple[Response | OnceOnlyError, ...]:
        arguments = (tuple(calls), self._now(), self._kept)
        operation = PortOperation("third-party-call", self.place, execute, arguments, many=True)
        try:
            bodies: tuple[bytes, ...] = await self.driver.perform(operation)
        except RetryableError as error:
            return tuple(PeerAway(str(error), URL) for _ in calls)
        return tuple(Response(body=body) for body in bodies)

    async def find(self, call: ApiCall) -> Response | OnceOnlyError | None:
        if not self._is_searchable:
            return outcome_unknown(call, "")
        try:
            was_executed: bool = await self.driver.perform(PortOperation("third-party-find", self.place, find, (call.body,)))
        except RetryableError as error:
            return PeerAway(str(error), URL)
        return Response(body=call.body) if was_executed else None
