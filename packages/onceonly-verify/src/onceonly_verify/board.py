"""The shared counters of one host, and runs that have a process to themselves, in worlds whose processes a supervisor watches.

The marks and the list of deaths are those of the shipping `CounterRow`, on the numbers that are a part of the world. What
truly happened is noted next to them: which message ran alone in which process, and whether several handlers ran at a death.
A process is a worker with one batch, so its row is named by the receipt of that batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly.adapters.memory.world import PortOperation, WorldPart
from onceonly.model.identity import Identity, claim_key
from onceonly.ports.run_markers import DeadRuns, StartResult
from onceonly_verify.driver import CheckerDriver, HandlerChoice
from onceonly_verify.workload import Supervision

READS = frozenset({"awaits_record", "death_of", "explains", "get", "killed_run_of"})
START = 1_000_000_000
"""What the clock of the host shows at the beginning. It is later than the time for which deaths are evidence."""


class BoardWorld(Struct, frozen=True):
    """The numbers of each process that marked something, the list of deaths, and the clock.

    `alone` is what has a process to itself, by process. `deaths` is how often a process died by itself while the handler of a
    message ran, or while the message had the process to itself. `unclear`: one died with several handlers running.
    """

    rows: tuple[tuple[Any, tuple[int, ...]], ...] = ()
    listed: tuple[int, ...] = ()
    now: int = START
    alone: tuple[tuple[Any, bytes], ...] = ()
    deaths: tuple[tuple[bytes, int], ...] = ()
    unclear: bool = False


class DeathOfProcess(Struct, frozen=True, kw_only=True):
    """How a process ended: by itself or not, and which handler was running, or that there were several."""

    blames: bool
    running: bytes | None
    has_several: bool


BOARD = WorldPart("board", BoardWorld())


def first_board(programs: Any) -> BoardWorld:
    counters = programs.counters
    return BoardWorld(listed=(0,) * (counters.DEATHS * counters.FIELDS + counters.SINCE))


def called(
    counters: Any, world: BoardWorld, process: Any, method: str, *arguments: Any, **named: Any
) -> tuple[BoardWorld, Any]:
    """Call a method of the shipping row of a process; returns the board afterwards, and what it returned."""
    width = counters.WIDTH
    numbers = [*dict(world.rows).get(process, (0,) * width), *world.listed]
    before, counters._now = counters._now, lambda: world.now  # noqa: SLF001 - its clock is that of the world
    try:
        found = getattr(counters.CounterRow(numbers, 0, width), method)(*arguments, **named)
    finally:
        counters._now = before  # noqa: SLF001
    rows = {**dict(world.rows), process: tuple(numbers[:width])}
    left = tuple(sorted(((name, row) for name, row in rows.items() if any(row)), key=repr))
    return replace(world, rows=left, listed=tuple(numbers[width:])), found


@cache
def _calling(counters: Any) -> Callable[..., Any]:
    def call(world: BoardWorld, process: Any, method: str, arguments: tuple[Any, ...]) -> tuple[BoardWorld, None]:
        return called(counters, world, process, method, *arguments)[0], None

    return call


def look(world: BoardWorld) -> tuple[BoardWorld, BoardWorld]:
    return world, world


def clear(world: BoardWorld, process: Any, key: bytes) -> tuple[BoardWorld, BoardWorld]:
    """Return a process to one message. It has no other units, so nothing has to end."""
    after = replace(world, alone=(*_others(world, process), (process, key)))
    return after, after


def reopen(world: BoardWorld, process: Any) -> tuple[BoardWorld, None]:
    return replace(world, alone=_others(world, process)), None


def death_of(programs: Any, supervision: Supervision, process: Any, call: Any) -> PortOperation:
    """Return what happens on the board when a process dies at this call: by itself in a handler, else as the check says."""
    in_handler = isinstance(call, HandlerChoice)
    blames = in_handler or supervision is Supervision.SEES
    running = call.run[0] if in_handler and call.run else None
    death = DeathOfProcess(blames=blames, running=running, has_several=in_handler and not call.run)
    return PortOperation("rollback", BOARD, burying(programs.counters), (process, death))


def ran_alone(world: BoardWorld, process: Any) -> bytes | None:
    """Return the key of the message that has a process to itself."""
    return dict(world.alone).get(process)


@cache
def burying(counters: Any) -> Callable[..., Any]:
    """Return what a supervisor does about the death of a process, before its messages come again."""

    def bury(world: BoardWorld, process: Any, death: DeathOfProcess) -> tuple[BoardWorld, None]:
        after, _ = called(counters, world, process, "record_death", blames=death.blames)
        after, _ = called(counters, after, process, "clear_marks")
        own = {key for key in (death.running, ran_alone(world, process)) if key is not None and death.blames}
        before = dict(world.deaths)
        deaths = tuple(sorted((before | {key: before.get(key, 0) + 1 for key in own}).items()))
        unclear = world.unclear or death.has_several
        return replace(after, now=world.now + 1, alone=_others(world, process), deaths=deaths, unclear=unclear), None

    return bury


def _others(world: BoardWorld, process: Any) -> tuple[tuple[Any, bytes], ...]:
    return tuple(each for each in world.alone if each[0] != process)


class BoardRow:
    """The row of one process as its program uses it: it reads the board as of the last look, and writes at once."""

    def __init__(self, counters: Any, driver: CheckerDriver) -> None:
        """Mark for the run of this driver."""
        self._counters = counters
        self._driver = driver
        self.seen = BoardWorld()

    @property
    def process(self) -> Any:
        return self._driver.name

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Call the shipping method on what was seen. What changes the board is left for the world as the same call."""

        def call(*arguments: Any) -> Any:
            self.seen, found = called(self._counters, self.seen, self.process, method, *arguments)
            if method not in READS:
                operation = PortOperation("board", BOARD, _calling(self._counters), (self.process, method, arguments))
                self._driver.at_once(operation)
            return found

        return call


class BoardGate:
    """The gate of one process, in which no other unit is open. Taking it looks at the board."""

    def __init__(self, row: BoardRow, driver: CheckerDriver, endpoint: str) -> None:
        self.is_alone = self.is_marked = False
        self._row = row
        self._driver = driver
        self._endpoint = endpoint

    async def clear(self, message: str = "") -> None:
        """Have the process to itself, for this message."""
        source, _, id_ = message.partition(" ")
        key = claim_key(self._endpoint, Identity(source, id_))
        self._row.seen = await self._driver.perform(PortOperation("alone", BOARD, clear, (self._row.process, key)))
        self.is_alone = True

    def reopen(self) -> None:
        """Let others in again; harmless when it was not alone."""
        if self.is_alone:
            self.is_alone = False
            self._driver.at_once(PortOperation("reopen", BOARD, reopen, (self._row.process,)))


class BoardRunMarkers:
    """The shipping `IsolatedRuns`, whose view of the board is fresh whenever it looks there."""

    def __init__(self, alone: Any, row: BoardRow, driver: CheckerDriver) -> None:
        self._alone = alone
        self._row = row
        self._driver = driver

    async def find_dead(self, identities: Any) -> DeadRuns:
        self._row.seen = await self._driver.perform(PortOperation("board-look", BOARD, look, ()))
        found: DeadRuns = await self._alone.find_dead(identities)
        return found

    async def begin(self, identity: Identity, attempts: int) -> StartResult:
        found: StartResult = await self._alone.begin(identity, attempts)
        return found

    async def finish(self, identity: Identity) -> None:
        await self._alone.finish(identity)

    async def forget(self, identity: Identity, attempts: int) -> None:
        """Remove the record of a run whose death was counted."""
        await self._alone.forget(identity, attempts)


class PromptTimer:
    """A timer that does not wait: under the checker, calls fail a few times at most."""

    async def sleep(self, _seconds: float) -> None:
        """Return."""


class StillRandom:
    """A source of randomness that is always the same."""

    def fraction(self) -> float:
        return 0.0


class StillEnvironment:
    """What `IsolatedRuns` takes from its environment."""

    timer = PromptTimer()

    random = StillRandom()


def on_board(programs: Any, driver: CheckerDriver, run_markers: Any, endpoint: str) -> tuple["Marks", BoardRunMarkers]:
    """Return what marks the handlers of a run, and its run markers."""
    row = BoardRow(programs.counters, driver)
    gate = BoardGate(row, driver, endpoint)
    alone = programs.alone.IsolatedRuns(run_markers, gate, endpoint=endpoint, environment=StillEnvironment(), row=row)
    return Marks(row, gate), BoardRunMarkers(alone, row, driver)


class Marks:
    """Marks running handlers as a worker does: those of a run alone are marked with its record."""

    def __init__(self, row: BoardRow, gate: BoardGate) -> None:
        self._row = row
        self._gate = gate

    @contextmanager
    def running(self, marks: Sequence[tuple[bytes, int]]) -> Iterator[None]:
        entered = () if self._gate.is_marked else marks
        for mark in entered:
            self._row.enter(*mark)
        try:
            yield
        finally:
            for mark in entered:
                self._row.leave(*mark)
