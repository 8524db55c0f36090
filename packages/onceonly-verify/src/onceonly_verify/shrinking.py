"""Making a long counterexample short: steps are left out as long as the same kind of violation is still reached."""

from collections.abc import Sequence

from msgspec.structs import replace

from onceonly_verify.histories import STUCK, Counterexample, Diverged, TraceStep, calm_option, follow, resolved
from onceonly_verify.simulation import Simulation, at_once
from onceonly_verify.world_player import InitialState

PLAYED = 15_000
"""So many steps are played at most, about a second."""


def shrunk(history: Counterexample, opening: InitialState) -> Counterexample:
    """Give a history with no step that can be left out, alone or with its neighbours; one without an end stays as it is."""
    if history.violation.startswith((STUCK, "endless")):
        return history
    played, size = 0, max(1, len(history.steps) // 2)
    while size and played < PLAYED:
        before, at = len(history.steps), 0
        while at < len(history.steps) and played < PLAYED:
            rest = (*history.steps[:at], *history.steps[at + size :])
            shorter: Counterexample | None = at_once(_played(rest, history, opening))
            played += len(history.steps)
            if shorter and len(shorter.steps) < len(history.steps):
                history = shorter
            else:
                at += size
        if len(history.steps) == before or size > 1:
            size //= 2
    return resolved(history, opening)


async def _played(lines: Sequence[TraceStep], history: Counterexample, opening: InitialState) -> Counterexample | None:
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
            found = await _calmly(simulation, kept, len(history.steps))
        return replace(history, violation=found, steps=tuple(kept)) if found.partition(":")[0] == kind else None
    finally:
        await simulation.close()


async def _calmly(simulation: Simulation, kept: list[TraceStep], longest: int) -> str:
    while len(kept) < longest:
        option = calm_option(simulation, len(kept))
        if option is None:
            return ""
        step = simulation.player.step(option, await simulation.take(option, simulation.usual))
        kept.append(TraceStep(step.who, step.what, step.outcome))
        if found := simulation.violation():
            return found
    return ""
