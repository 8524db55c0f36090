"""Time that passes, in worlds where claims are forgotten: a part of the world, so that every program sees it in its calls only.

In worlds with explicit time, the store's clock moves with the clock of the world. In all others it begins when the slice of
what waits in the queues may not be forgotten yet, and ends when it may. A sender's clock is ahead of it, or behind, by one
slice at most.
"""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any

from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.formats.cloudevents import message_of, take_apart
from onceonly.model.message import Headers, Message
from onceonly.model.ring import Bucketing, Undecidable
from onceonly_verify.driver import CheckerDriver
from onceonly_verify.memory_ports.ring import RingSettings, RingWorld
from onceonly_verify.memory_ports.rings import RingsWorld, place_of
from onceonly_verify.programs import Programs
from onceonly_verify.time_steps import STEP
from onceonly_verify.workload import RingChanges

WIDTH = STEP
FULL = 2
BUCKETING = Bucketing(WIDTH, buckets=4, full=FULL)
RETENTION = FULL * WIDTH
"""How long a claim is kept at least, counted from the instant of its message, or from its commit if it has none."""
START, END = 9 * WIDTH, 10 * WIDTH
"""What the clock shows at the beginning, and after it has moved on by one slice."""
OLD, NEXT = 8 * WIDTH - 1, 11 * WIDTH
"""The last instant of a slice that must be forgotten at END only, by a clock that was behind; and the first instant of the
next slice of the same bucket, which a clock that is ahead shows at END."""


class TimedRing(RingWorld, frozen=True):
    """What a store knows, and what its clock shows."""

    now: int = START


def first_ring(programs: Programs, now: int = START) -> Any:
    """Return what a store knows at the beginning: nothing, with all buckets labelled."""
    return programs.ring.look(TimedRing(now=now), programs.ring.RingSettings(BUCKETING, now))[0]


def bucketing_of(slices: int) -> Bucketing:
    """Return how time is cut in a small ring that keeps claims for this retention."""
    return Bucketing(slices * WIDTH // FULL, buckets=4, full=FULL)


def first_rings(programs: Programs, changes: RingChanges) -> Any:
    """Return what a store knows at the beginning whose retention changes: one ring, with all buckets labelled."""
    bucketing = bucketing_of(changes.before)
    ring = programs.rings.ClosableRing(bucketing, programs.rings.first_labels(bucketing, START))
    return programs.rings.RingsWorld(rings=(ring,), now=START)


def tick(world: TimedRing) -> tuple[TimedRing, None]:
    """Let one slice pass, up to the end."""
    return replace(world, now=min(world.now + WIDTH, END)), None


def goes_on(world: TimedRing) -> tuple[TimedRing, None]:
    return replace(world, now=world.now + WIDTH), None


def ring_ticks(worlds: Mapping[str, Any]) -> tuple[PortOperation, ...]:
    """Return what moves the clocks of the rings in a world, together with the clock of that world."""
    rings = [name for name, world in worlds.items() if isinstance(world, TimedRing)]
    return tuple(PortOperation("tick", WorldPart(name, TimedRing()), goes_on, ()) for name in rings)


class ClockDriver:
    """A driver whose operations see what the world's clock shows when they happen, not when they were called."""

    def __init__(self, driver: CheckerDriver) -> None:
        self._driver = driver

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        if operation.arguments and hasattr(operation.arguments[-1], "bucketing"):
            operation = operation._replace(function=_on_time(operation.function))
        return await self._driver.perform(operation, patience)

    def at_once(self, operation: PortOperation) -> None:
        """Hand it on: no time is in it."""
        self._driver.at_once(operation)

    def token(self) -> Any:
        return self._driver.token()


@cache
def _on_time(function: Callable[..., Any]) -> Callable[..., Any]:
    def at_its_time(world: TimedRing, *arguments: Any) -> Any:
        dial: RingSettings = arguments[-1]
        return function(world, *arguments[:-1], replace(dial, now=world.now))

    return at_its_time


def ring_in(worlds: Mapping[str, Any]) -> TimedRing:
    return next(world for world in worlds.values() if isinstance(world, TimedRing))


def rings_in(worlds: Mapping[str, Any]) -> RingsWorld | None:
    """Return the store whose retention changes, of whichever programs, where there is one."""
    return next((world for world in worlds.values() if hasattr(world, "routes")), None)


@lru_cache(maxsize=10_000)
def _message(headers: Headers, body: bytes) -> Message:
    event = take_apart(headers, body)
    return message_of(event, source=event.attributes["source"], id=event.attributes["id"])


def bar_of(ring: TimedRing, instant: int) -> Undecidable | None:
    """Return what bars a message of this instant now."""
    return BUCKETING.undecidable_reason(instant, ring.buckets[BUCKETING.bucket(instant)].start, ring.now)


def bar_in(world: RingsWorld, instant: int) -> Undecidable | None:
    """Return what bars a message of this instant now, where the retention changes."""
    place = place_of(world, world.routes, instant)
    ring = world.rings[place.ring]
    return ring.bucketing.undecidable_reason(instant, ring.held(place.start), world.now)


def is_to_come(worlds: Mapping[str, Any], broker: Any, batch: tuple[Any, ...]) -> bool:
    """Return whether one of these is not sent yet, or is a copy that waits for its bucket, which would be put off again."""
    rings, due = rings_in(worlds), {entry.number: entry.due for entry in broker.entries}
    now = ring_in(worlds).now if rings is None else rings.now
    for delivery in batch:
        instant = _message(delivery.headers, delivery.body).instant
        if instant > now + WIDTH:
            return True
        if due[delivery.receipt.number] and instant:
            bar = bar_of(ring_in(worlds), instant) if rings is None else bar_in(rings, instant)
            if bar is Undecidable.SLOT_NOT_READY:
                return True
    return False
