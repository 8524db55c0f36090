"""Random schedules: worlds too large to be explored, each walked from its beginning to rest along one way chosen by chance.

Schedule n of a seed is always the same one, whatever ran before it. Every state on the way is judged, and the one at rest.
No state is remembered and no order is left out, so this also doubts the reductions that the search takes.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from onceonly_verify.check import Check
from onceonly_verify.checks.larger import LARGE
from onceonly_verify.explorer import Step
from onceonly_verify.histories import Counterexample, TraceStep, resolved
from onceonly_verify.programs import Programs
from onceonly_verify.shrinking import shrunk
from onceonly_verify.simulation import Simulation, at_once
from onceonly_verify.workload import End
from onceonly_verify.world_player import WORLD, InitialState, Option

LONGEST = 2_000
"""Steps after which a schedule that does not come to rest is stuck."""
BOLDNESS = (0.02, 0.08, 0.25)
"""How likely a step is to be a fault, as long as the bounds allow one: few faults go far, many come together."""

Tick = Callable[["WalkResult"], None]


class WalkResult(Struct, frozen=True, kw_only=True):
    """How far random schedules went; `number` is that of the one with the violation, counted from 0 in its seed.

    `wanted` of them were to be walked, from number `first` on, and `schedules` were.
    """

    seed: int
    first: int = 0
    schedules: int
    steps: int
    seconds: float
    wanted: int
    violation: str = ""
    number: int = -1
    history: Counterexample | None = None

    @property
    def passed(self) -> bool:
        """Tell whether nothing was wrong; fewer schedules than wanted are no failure."""
        return not self.violation

    @property
    def left(self) -> int:
        """How many schedules are still to be walked, from number `first` + `schedules` on; 0 after a violation."""
        return 0 if self.violation else self.wanted - self.schedules


def walk_schedules(
    wanted: int,
    *,
    seed: int = 0,
    first: int = 0,
    checks: Sequence[Check] = LARGE,
    programs: Programs | None = None,
    tick: Tick | None = None,
) -> WalkResult:
    """Walk schedules `first` to `wanted` - 1 of a seed, or until one ends badly, or until a KeyboardInterrupt."""
    openings = [InitialState(check, programs) for check in checks]
    began, steps, number = time.perf_counter(), 0, first

    def walked(violation: str = "", history: Counterexample | None = None) -> WalkResult:
        spent = time.perf_counter() - began
        done = number - first + bool(violation)
        return WalkResult(
            seed=seed,
            first=first,
            schedules=done,
            steps=steps,
            seconds=spent,
            wanted=wanted - first,
            violation=violation,
            number=number if violation else -1,
            history=history,
        )

    try:
        for number in range(first, wanted):
            opening = openings[number % len(openings)]
            walk = Walk(opening, f"{seed}:{number}")
            violation = at_once(walk.go())
            steps += walk.steps
            if violation:
                return walked(violation, _told(opening, f"{seed}:{number}", violation))
            if tick and number % 64 == 0:
                tick(walked())
        number = wanted
    except KeyboardInterrupt:
        pass  # what was done so far is an answer
    return walked()


class Walk:
    """One schedule. With `record`, its steps can be told afterwards."""

    def __init__(self, opening: InitialState, seed: str, *, record: bool = False) -> None:
        self.steps = 0
        self.told: list[Step] = []
        self._simulation = Simulation(opening)
        self._chance = random.Random(seed)  # noqa: S311 - a schedule is no secret
        self._boldness = self._chance.choice(BOLDNESS)
        self._behaviour = opening.check.workload.behaviour
        self._record = record

    async def go(self) -> str:
        """Walk to rest, or to the first bad state; gives what is wrong with it."""
        simulation = self._simulation
        try:
            while not simulation.is_at_rest():
                option = self._next()
                if option is None:
                    return "stuck: nothing can happen any more, and there is no rest"
                ends = await simulation.take(option, self._choose)
                self.steps += 1
                if self._record:
                    self.told.append(simulation.player.step(option, ends))
                if violation := simulation.violation():
                    return violation
                if self.steps >= LONGEST:
                    return f"stuck: no final state after {LONGEST} steps"
            return ""
        finally:
            await simulation.close()

    def _next(self) -> Option | None:
        if self._chance.random() < self._boldness:
            for fault in self._chance.sample(self._faults, len(self._faults)):
                found = fault()
                if found:
                    return self._chance.choice(found)
        whom = [*range(len(self._simulation.workers)), WORLD]
        self._chance.shuffle(whom)
        return next((option for who in whom if (option := self._ordinary(who))), None)

    def _ordinary(self, who: int) -> Option | None:
        """Choose something for this worker or the world that is no fault; None when there is nothing."""
        simulation = self._simulation
        if who == WORLD:
            landing = [*simulation.player.landing(), *simulation.ticking()]
            return self._chance.choice(landing) if landing else None
        call = simulation.call(who)
        if call:
            applied = simulation.player.applied(who, call)
            return self._chance.choice(applied) if applied else None
        arriving = [] if simulation.workers[who] else list(simulation.arrivals(who))
        return self._chance.choice(arriving) if arriving else None

    @property
    def _faults(self) -> list[Callable[[], list[Option]]]:
        left = self._simulation.player.ledger.left
        return [
            *([self._crash] if left.crashes else []),
            *([self._simulation.player.expiring] if left.expiries else []),
            *([self._fail, self._lose] if left.failures else []),
            *([self._cut] if left.outage or left.silences else []),
        ]

    def _crash(self) -> list[Option]:
        who, call = self._busy()
        return self._simulation.player.dying(who, call) if call else []

    def _fail(self) -> list[Option]:
        who, call = self._busy()
        return self._simulation.player.failing(who, call) if call else []

    def _cut(self) -> list[Option]:
        who, call = self._busy()
        return self._simulation.player.cutting(who, call) if call else []

    def _lose(self) -> list[Option]:
        idle = [who for who, run in enumerate(self._simulation.workers) if not run]
        return list(self._simulation.arrivals(self._chance.choice(idle), lost=True)) if idle else []

    def _busy(self) -> tuple[int, Any]:
        busy = [(who, call) for who in range(len(self._simulation.workers)) if (call := self._simulation.call(who))]
        return self._chance.choice(busy) if busy else (WORLD, None)

    def _choose(self, name: str) -> End:
        ends: tuple[End, ...] = self._behaviour(name).value
        whims = self._simulation.player.ledger.left.whims
        return self._chance.choice(ends) if whims and self._chance.random() < self._boldness * 2 else ends[0]


def _told(opening: InitialState, seed: str, violation: str) -> Counterexample:
    """Tell a bad schedule's steps: walked once more, then without the steps that the violation does not need."""
    walk = Walk(opening, seed, record=True)
    at_once(walk.go())
    lines = tuple(TraceStep(step.who, step.what, step.outcome) for step in walk.told)
    history = Counterexample(check=opening.check.name, violation=violation, steps=lines)
    return shrunk(resolved(history, opening), opening)
