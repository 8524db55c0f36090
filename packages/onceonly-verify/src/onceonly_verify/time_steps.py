"""Explicit time: a world's clock moves by steps, each of which is a transition of the search.

A program sees the time at which it begins, and the time of each answer that it gets. Its clock may be ahead of the world's
clock or behind it by whole steps, the same for the whole run. A step is just below half of `CLOCK_MARGIN_MS`: the margin has to
cover both the difference of two clocks, one step at most, and the time between a read of the clock and the write that contains
it, one step at most as well.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.documents import DocumentsWorld
from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.model.message import Delivery
from onceonly.model.retention import CLOCK_MARGIN_MS
from onceonly.model.token import Token
from onceonly.ports.documents import Change
from onceonly_verify.driver import CheckerDriver

STEP = CLOCK_MARGIN_MS // 2 - 1
START = 1000 * STEP
"""What a world's clock shows at the beginning. It is not 0, which stands for no time in many places."""
CLOCK = "clock"
"""The name of the part of a world that is its clock."""
UNBOUNDED = 2**62
_WRITES = frozenset({"save", "call-put", "call-bury"})
_SKEW = "clock is off by steps"
HANDLED_AGAIN = "handled again: after the retention"
AHEAD, BEHIND = "its clock is ahead", "its clock is behind"


class Timing(Struct, frozen=True, kw_only=True):
    """How time passes in a world, in steps.

    * `steps`: how often the clock may move while there is work to do.
    * `rest`: how often it may move after that, while the world is not at rest and nothing else can happen.
    * `skews`: by how many steps the clock of a run may differ from the world's clock. The search tries each for each run.
    * `sweeper_skews`: the same for sweepers.
    * `lifetime`: the steps that a run may take, with all calls that it leaves under way. The clock waits for older runs.
    * `per_call`: whether `lifetime` bounds each write of a document, from its request until it lands, and nothing else. Then
      a run and its other calls may take any time.
    * `retention`: how long history, marks, answers and tombstones are promised to be kept.
    * `max_commit`: the deadline of transactions, counted from their beginning.
    * `looks`: the delays before the looks of a control message.
    * `sweep_after`: the age from which a sweeper treats an attempt as dead.
    * `retry_after`: the delays that the retry policy promises after the first failure, the second, and so on.
    * `changes`: the retentions that an operator sets, each once and at any moment, one after another.
    * `forgets`: whether something must be forgotten and handled again in some history.
    """

    steps: int
    rest: int = 0
    skews: tuple[int, ...] = (0,)
    sweeper_skews: tuple[int, ...] = (0,)
    lifetime: int = 1
    per_call: bool = False
    retention: int = 1
    max_commit: int = 1
    looks: tuple[int, ...] = (2,)
    sweep_after: int = 2
    retry_after: tuple[int, ...] = ()
    changes: tuple[int, ...] = ()
    forgets: bool = False

    @property
    def shortest(self) -> int:
        """The shortest retention that ever holds, in milliseconds."""
        return min(self.retention, *self.changes) * STEP if self.changes else self.kept

    @property
    def kept(self) -> int:
        """The promised retention in milliseconds."""
        return self.retention * STEP

    @property
    def difference(self) -> int:
        """By how many steps two clocks differ at most."""
        every = {*self.skews, *self.sweeper_skews}
        return max(every) - min(every)

    def bounded_since(self, point: str, since: int, at: int) -> int:
        """Return from when the clock bounds a run that began at `since` and made this call at `at`."""
        if not self.per_call:
            return since
        return at if point in _WRITES else UNBOUNDED


class ClockWorld(Struct, frozen=True):
    """What the clock shows, and what only the auditor reads.

    `committed` is when each row was committed: (endpoint, text, attempt, instant). `opened` is when each attempt of a client
    began, `prepared` when each token was, and `swept` when a sweeper was about to remove it. `failed` is when a handler failed,
    and `retried` when the run began that followed: (endpoint, message, failures so far, instant).
    """

    now: int = START
    committed: frozenset[tuple[str, str, str, int]] = frozenset()
    opened: frozenset[tuple[str, int]] = frozenset()
    prepared: frozenset[tuple[Token, int]] = frozenset()
    swept: frozenset[tuple[Token, int]] = frozenset()
    failed: frozenset[tuple[str, str, int, int]] = frozenset()
    retried: frozenset[tuple[str, str, int, int]] = frozenset()

    def times(self, endpoint: str) -> dict[tuple[str, str], int]:
        """Return the instants of the commits at an endpoint, by text and attempt."""
        return {(text, mark): at for owner, text, mark, at in self.committed if owner == endpoint}


PLACE = WorldPart(CLOCK, ClockWorld())


def tick(world: ClockWorld) -> tuple[ClockWorld, None]:
    return replace(world, now=world.now + STEP), None


def note_sweep(world: ClockWorld, tokens: tuple[Token, ...]) -> tuple[ClockWorld, None]:
    """Note that a sweeper removes these tokens now."""
    return replace(world, swept=world.swept | {(token, world.now) for token in tokens}), None


def note_failure(world: ClockWorld, endpoint: str, name: str, count: int) -> tuple[ClockWorld, None]:
    """Note that the handler of a message failed now, for the time of this number."""
    return replace(world, failed=world.failed | {(endpoint, name, count, world.now)}), None


def note_retry(world: ClockWorld, endpoint: str, name: str, count: int) -> tuple[ClockWorld, None]:
    """Note that the handler of a message runs now, after so many failures."""
    return replace(world, retried=world.retried | {(endpoint, name, count, world.now)}), None


def clock_of_world(worlds: Mapping[str, Any]) -> ClockWorld:
    """Return the clock among the parts of a world."""
    world: ClockWorld = worlds[CLOCK]
    return world


TICK, TICKS = PortOperation("tick", PLACE, tick, ()), "clock moves"


class ReadableClock(Protocol):
    """A driver that has been given the time."""

    def read_clock(self) -> int:
        """Return what the clock of this run shows."""


class SteppedClock:
    """The clock of one run of a program."""

    def __init__(self, driver: ReadableClock) -> None:
        """Read the time from the driver, which receives it with each answer."""
        self._driver = driver

    def now(self) -> int:
        return self._driver.read_clock()


def skewed(batch: tuple[Delivery, ...], steps: int) -> tuple[Delivery, ...]:
    """Mark a batch, so that its run has a clock that differs by so many steps."""
    if not steps:
        return batch
    return (replace(batch[0], headers=((_SKEW, str(steps)), *batch[0].headers)), *batch[1:])


def skew_of(batch: tuple[Delivery, ...]) -> int:
    """Return by how many steps the clock of this batch's run differs."""
    headers = batch[0].headers
    return int(headers[0][1]) if headers and headers[0][0] == _SKEW else 0


def unskewed(batch: tuple[Delivery, ...]) -> tuple[Delivery, ...]:
    """Return a batch as its program sees it."""
    return (replace(batch[0], headers=batch[0].headers[1:]), *batch[1:]) if skew_of(batch) else batch


class TimeKeeper:
    """The clock of one world: what it shows, when it may move, and when each row was committed."""

    def __init__(self, timing: Timing, parts: Any, views: Any) -> None:
        """Keep the time of the world that consists of these parts; `views` show its stores."""
        self.place: int = parts.places[CLOCK]
        self._timing = timing
        self._parts = parts
        self._views = views
        self._observed: dict[int, int] = {}
        self.happened: set[str] = set()

    def now(self, store: int) -> int:
        """Return what the clock shows in a state with this number of its stores."""
        world: ClockWorld = self._parts.known[self.place].values[self._parts.at((store,), self.place)]
        return world.now

    def observe(self, store: int) -> int:
        """Note when the rows were committed that are new; returns the number of the stores with the notes."""
        found = self._observed.get(store)
        if found is None:
            found = self._observed[store] = self._noted(store)
            self._observed[found] = found
        return found

    def may_move(self, store: int, begun: Iterable[int], oldest: int, *, is_last: bool) -> bool:
        """Return whether the clock may move now.

        `begun` are the instants from which the runs in progress are bounded, `oldest` that of what is under way, or 0.
        `is_last` is whether the world waits for the time alone.
        """
        timing, now = self._timing, self.now(store)
        latest = now - timing.lifetime * STEP
        if any(at <= latest for at in begun) or 0 < oldest <= latest:
            return False
        passed = (now - START) // STEP
        if passed < timing.steps:
            return True
        return is_last and passed < timing.steps + timing.rest

    def _noted(self, store: int) -> int:
        worlds: Mapping[str, Any] = self._parts.stores(store)
        clock: ClockWorld = worlds[CLOCK]
        known = {(endpoint, text, mark) for endpoint, text, mark, _ in clock.committed}
        rows = {(endpoint, *row) for endpoint, world in self._views.stores(worlds).items() for row in world.notes}
        fresh = rows - known
        opened = self._views.opened(worlds) - {attempt for attempt, _ in clock.opened}
        prepared = {each.token for world in worlds.values() for each in getattr(world, "prepared", ()) if world is not clock}
        prepared -= {token for token, _ in clock.prepared}
        if not fresh and not opened and not prepared:
            return store
        if {(endpoint, self._views.name_of(text)) for endpoint, text, _ in fresh} & {
            (endpoint, self._views.name_of(text)) for endpoint, text, _ in known
        }:
            self.happened.add(HANDLED_AGAIN)
        noted = replace(
            clock,
            committed=clock.committed | {(*row, clock.now) for row in fresh},
            opened=clock.opened | {(attempt, clock.now) for attempt in opened},
            prepared=clock.prepared | {(token, clock.now) for token in prepared},
        )
        numbers = [store]
        self._parts.put(numbers, self.place, self._parts.known[self.place].number(noted))
        return numbers[0]


class ExpiringWorld(DocumentsWorld, frozen=True):
    """Documents, and the instant from which the service may drop each of them."""

    expires: frozenset[tuple[str, int]] = frozenset()

    def expired(self, now: int) -> frozenset[str]:
        """Name the documents that the service may drop."""
        there = {each.key for each in self.written if each.body is not None}
        return frozenset(key for key, at in self.expires if at < now and key in there)


class ExpiringDriver:
    """A driver whose saves keep what the memory adapter ignores: the hint when a document expires."""

    def __init__(self, driver: CheckerDriver) -> None:
        self._driver = driver

    async def perform(self, operation: PortOperation, patience: float | None = None) -> Any:
        if operation.point == "save":
            operation = operation._replace(function=_keeping_expiry(operation.function))
        return await self._driver.perform(operation, patience)

    def at_once(self, operation: PortOperation) -> None:
        self._driver.at_once(operation)

    def token(self) -> Any:
        return self._driver.token()


def drop_expired(world: ExpiringWorld, now: int) -> tuple[ExpiringWorld, None]:
    """Drop what has expired, as the service does by its own clock."""
    gone = world.expired(now)
    left = frozenset(replace(each, body=None) if each.key in gone else each for each in world.written)
    kept = frozenset((key, at) for key, at in world.expires if key not in gone)
    return replace(world, written=left, expires=kept), None


@cache
def _keeping_expiry(function: Callable[..., Any]) -> Callable[..., Any]:
    def save(world: ExpiringWorld, changes: tuple[Change, ...]) -> tuple[ExpiringWorld, Any]:
        after, answers = function(world, changes)
        expires = dict(world.expires)
        for change, version in zip(changes, answers, strict=True):
            if version is not None:
                expires[change.key] = change.expires
        kept = frozenset((key, at) for key, at in expires.items() if at)
        return replace(world, written=after.written, expires=kept), answers

    return save
