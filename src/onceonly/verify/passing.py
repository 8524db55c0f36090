"""Time that passes, in worlds where claims are forgotten: a part of the world, so that every program sees it in its calls only.

The clock is the store's. It begins when the slice of what waits in the queues may not be forgotten yet, and ends when it may.
A sender's clock is ahead of it, or behind, by one slice at most.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace

from onceonly.drivers.memory import Operation
from onceonly.model.ring import INSTANT, Bar, Slicing, read_instant
from onceonly.stores.memory_ring import Dial, RingWorld
from onceonly.verify.asking import Asking
from onceonly.verify.programs import Programs

WIDTH = 10
SLICING = Slicing(WIDTH, slots=4, full=2)
START, END = 9 * WIDTH, 10 * WIDTH
"""What the clock shows at the beginning, and after it has moved on by one slice."""
OLD, NEXT = 8 * WIDTH - 1, 11 * WIDTH
"""The last instant of a slice that must be forgotten at END only, by a clock that was behind; and the first instant of the
next slice of the same slot, which a clock that is ahead shows at END."""


class TimedRing(RingWorld, frozen=True):
    """What a store knows, and what its clock shows."""

    now: int = START


def first_ring(programs: Programs) -> Any:
    """Give what a store knows at the beginning: nothing, with all slots labelled."""
    return programs.ring.look(TimedRing(), programs.ring.Dial(SLICING, START))[0]


def tick(world: TimedRing) -> tuple[TimedRing, None]:
    """Let one slice pass, up to the end."""
    return replace(world, now=min(world.now + WIDTH, END)), None


class OnTime:
    """A driver whose operations see what the world's clock shows when they happen, not when they were called."""

    def __init__(self, driver: Asking) -> None:
        """Hand everything on to this one."""
        self._driver = driver

    async def perform(self, operation: Operation, patience: float | None = None) -> Any:
        """Hand a call on."""
        if operation.arguments and hasattr(operation.arguments[-1], "slicing"):
            operation = operation._replace(function=_on_time(operation.function))
        return await self._driver.perform(operation, patience)

    def at_once(self, operation: Operation) -> None:
        """Hand it on: no time is in it."""
        self._driver.at_once(operation)

    def token(self) -> Any:
        """Give the next name."""
        return self._driver.token()


@cache
def _on_time(function: Callable[..., Any]) -> Callable[..., Any]:
    def at_its_time(world: TimedRing, *arguments: Any) -> Any:
        dial: Dial = arguments[-1]
        return function(world, *arguments[:-1], replace(dial, now=world.now))

    return at_its_time


def ring_in(worlds: Mapping[str, Any]) -> TimedRing:
    """Find the store that forgets."""
    return next(world for world in worlds.values() if isinstance(world, TimedRing))


def bar_of(ring: TimedRing, instant: int) -> Bar | None:
    """Say what bars a message of this instant now."""
    return SLICING.judge(instant, ring.slots[SLICING.slot(instant)].start, ring.now)


def is_to_come(worlds: Mapping[str, Any], broker: Any, batch: tuple[Any, ...]) -> bool:
    """Tell whether one of these is not sent yet, or is a copy that waits for its slot, which would only be put off again."""
    ring, due = ring_in(worlds), {entry.number: entry.due for entry in broker.entries}
    for delivery in batch:
        instant = read_instant(dict(delivery.headers).get(f"ce-{INSTANT}", ""))
        if instant > ring.now + WIDTH:
            return True
        if due[delivery.receipt.number] and instant and bar_of(ring, instant) is Bar.UNRECYCLED:
            return True
    return False
