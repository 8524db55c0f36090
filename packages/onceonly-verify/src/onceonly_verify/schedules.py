"""Random schedules: worlds too large to be explored, each walked from its beginning to rest along one way chosen by chance.

Schedule n of a seed is always the same one, whatever ran before it. Every state on the way is judged, and the one at rest.
No state is remembered and no order is left out, so this also doubts the reductions that the search takes.
"""

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly_verify.check import Check
from onceonly_verify.checks.larger import LARGE
from onceonly_verify.explorer import ExploredStep
from onceonly_verify.histories import STUCK, Counterexample, Diverged, TraceStep, calm_option, follow, resolved
from onceonly_verify.programs import Programs
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
        """Return whether nothing was wrong; fewer schedules than wanted are no failure."""
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
                return walked(violation, _counterexample(opening, f"{seed}:{number}", violation))
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
        self.told: list[ExploredStep] = []
        self._simulation = Simulation(opening)
        self._rng = random.Random(seed)  # noqa: S311 - a schedule is no secret
        self._boldness = self._rng.choice(BOLDNESS)
        self._behaviour = opening.check.workload.behaviour
        self._record = record

    async def go(self) -> str:
        """Walk to rest, or to the first bad state; returns what is wrong with it."""
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
        if self._rng.random() < self._boldness:
            for fault in self._rng.sample(self._faults, len(self._faults)):
                found = fault()
                if found:
                    return self._rng.choice(found)
        whom = [*range(len(self._simulation.workers)), WORLD]
        self._rng.shuffle(whom)
        return next((option for who in whom if (option := self._step_without_fault(who))), None)

    def _step_without_fault(self, who: int) -> Option | None:
        """Choose something for this worker or the world that is no fault; None when there is nothing."""
        simulation = self._simulation
        if who == WORLD:
            landing = [*simulation.player.landing(), *simulation.ticking()]
            return self._rng.choice(landing) if landing else None
        call = simulation.call(who)
        if call:
            applied = simulation.player.applied(who, call)
            return self._rng.choice(applied) if applied else None
        arriving = [] if simulation.workers[who] else list(simulation.arrivals(who))
        return self._rng.choice(arriving) if arriving else None

    @property
    def _faults(self) -> list[Callable[[], list[Option]]]:
        left = self._simulation.player.ledger.left
        return [
            *([self._crash] if left.crashes else []),
            *([self._simulation.player.expiring] if left.expiries else []),
            *([self._simulation.player.ending] if left.rollbacks or left.lapses else []),
            *([self._fail, self._lost_arrivals] if left.failures else []),
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

    def _lost_arrivals(self) -> list[Option]:
        idle = [who for who, run in enumerate(self._simulation.workers) if not run]
        return list(self._simulation.arrivals(self._rng.choice(idle), lost=True)) if idle else []

    def _busy(self) -> tuple[int, Any]:
        busy = [(who, call) for who in range(len(self._simulation.workers)) if (call := self._simulation.call(who))]
        return self._rng.choice(busy) if busy else (WORLD, None)

    def _choose(self, name: str) -> End:
        ends: tuple[End, ...] = self._behaviour(name).value
        whims = self._simulation.player.ledger.left.whims
        return self._rng.choice(ends) if whims and self._rng.random() < self._boldness * 2 else ends[0]


def _counterexample(opening: InitialState, seed: str, violation: str) -> Counterexample:
    """Return a bad schedule's steps: walked once more, then without the steps that the violation does not need."""
    walk = Walk(opening, seed, record=True)
    at_once(walk.go())
    lines = tuple(TraceStep(step.who, step.what, step.outcome) for step in walk.told)
    history = Counterexample(check=opening.check.name, violation=violation, steps=lines)
    return shrunk(resolved(history, opening), opening)


PLAYED = 15_000
"""So many steps are played at most, about a second."""


def shrunk(history: Counterexample, opening: InitialState) -> Counterexample:
    """Return a history with no step that can be left out, alone or with its neighbours; one without an end stays as it is."""
    if history.violation.startswith((STUCK, "endless")):
        return history
    played, size = 0, max(1, len(history.steps) // 2)
    while size and played < PLAYED:
        before, at = len(history.steps), 0
        while at < len(history.steps) and played < PLAYED:
            rest = (*history.steps[:at], *history.steps[at + size :])
            shorter: Counterexample | None = at_once(_play(rest, history, opening))
            played += len(history.steps)
            if shorter and len(shorter.steps) < len(history.steps):
                history = shorter
            else:
                at += size
        if len(history.steps) == before or size > 1:
            size //= 2
    return resolved(history, opening)


async def _play(lines: Sequence[TraceStep], history: Counterexample, opening: InitialState) -> Counterexample | None:
    """Play what can be played of these lines, then go on without faults; None when nothing bad comes of it."""
    simulation, kept = Simulation(opening), list[TraceStep]()
    kind = history.violation.partition(":")[0]
    try:
        for line in lines:
            try:
                option, ends, _ = await follow(simulation, line, len(kept))
            except Diverged as diverged:
                if diverged.begun:
                    return None
                continue
            step = simulation.player.step(option, ends)
            kept.append(TraceStep(step.who, step.what, step.outcome, line.variant))
            if found := simulation.violation():
                break
        else:
            found = await _play_without_faults(simulation, kept, len(history.steps))
        return replace(history, violation=found, steps=tuple(kept)) if found.partition(":")[0] == kind else None
    finally:
        await simulation.close()


async def _play_without_faults(simulation: Simulation, kept: list[TraceStep], longest: int) -> str:
    while len(kept) < longest:
        option = calm_option(simulation, len(kept))
        if option is None:
            return ""
        step = simulation.player.step(option, await simulation.take(option, simulation.usual))
        kept.append(TraceStep(step.who, step.what, step.outcome))
        if found := simulation.violation():
            return found
    return ""
