"""Counterexamples that can be kept and played again: what happened, step by step, in words that the play understands."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from onceonly.model.errors import OnceOnlyError, SetupError
from onceonly_verify.checks import CHECKS
from onceonly_verify.checks.larger import DEEP, LARGE
from onceonly_verify.explorer import ExploredStep
from onceonly_verify.generated.generator import PREFIX, generated_mutants
from onceonly_verify.mutants import MUTANTS
from onceonly_verify.mutations import CodeChange, DoesNotApply
from onceonly_verify.programs import Programs, changed, shipped
from onceonly_verify.simulation import Simulation, at_once
from onceonly_verify.step_limit import STEP_LIMIT
from onceonly_verify.workload import End
from onceonly_verify.world_player import WORLD, Ends, InitialState, Option, OutOfBounds

FORMAT = 1
ATTEMPTS = 10_000
CALM_STEPS = 500
"""So many more steps without a fault, and still no rest: there is none."""
STUCK = "stuck"
_HANDLER = "; the handler of "


class TraceStep(Struct, frozen=True):
    """One step. `variant` tells apart what reads the same: which of several messages was the refused one."""

    who: str
    what: str
    outcome: str
    variant: int = 0


class Counterexample(Struct, frozen=True, kw_only=True):
    """A counterexample: of which check, of which mutant (empty: the shipping code), what is wrong at its end."""

    check: str
    violation: str
    steps: tuple[TraceStep, ...]
    mutant: str = ""
    format: int = FORMAT


class Diverged(OnceOnlyError):
    """The programs did not do what the history says; `begun` when the step had begun before that showed."""

    def __init__(self, text: str, *, begun: bool = False) -> None:
        super().__init__(text)
        self.begun = begun


def history_of(check: str, violation: str, steps: Sequence[ExploredStep], mutant: str = "") -> Counterexample:
    """Make a history of a finding, and find the variants that lead to its violation."""
    lines = tuple(TraceStep(step.who, step.what, step.outcome) for step in steps)
    found = Counterexample(check=check, violation=violation or STUCK, steps=lines, mutant=mutant)
    return resolved(found, opening_of(found))


def save(history: Counterexample, file: str) -> None:
    """Write it as JSON. Raises OSError."""
    Path(file).write_bytes(msgspec.json.format(msgspec.json.encode(history), indent=2) + b"\n")


def load(file: str) -> Counterexample:
    """Read what `save` wrote. Raises SetupError when it is something else, OSError."""
    try:
        history = msgspec.json.decode(Path(file).read_bytes(), type=Counterexample)
    except msgspec.DecodeError as error:
        raise SetupError(f"{file} is not a counterexample saved by `onceonly verify`: {error}") from error
    if history.format != FORMAT:
        raise SetupError(f"{file} has format {history.format}, this version reads format {FORMAT}: save it again")
    return history


def opening_of(history: Counterexample) -> InitialState:
    """Set up the check and the programs of a history. Raises SetupError when there are none of these names any more."""
    check = next((check for check in (*CHECKS, *DEEP, *LARGE) if check.name == history.check), None)
    if check is None:
        raise SetupError(f"unknown check {history.check!r}: `onceonly verify --list` lists the checks")
    return InitialState(check, programs_of(history.mutant))


def programs_of(mutant: str) -> Programs:
    """Return the shipping code, or the mutant's. Raises SetupError."""
    if not mutant:
        return shipped()
    changes = changes_of(mutant)
    needs_log = next((each.needs_log for each in MUTANTS if each.name == mutant), True)
    if not changes:
        raise SetupError(f"unknown mutant {mutant!r}: `onceonly verify --list` lists the mutants")
    try:
        return changed(changes, has_log=needs_log)
    except DoesNotApply as error:
        raise SetupError(f"mutant {mutant!r} no longer applies to the code: {error}") from error


def changes_of(mutant: str) -> tuple[CodeChange, ...]:
    """Return the changes of a mutant, written by hand or generated; none if there is no mutant of this name."""
    if mutant.startswith(PREFIX):
        return tuple(each.change for each in generated_mutants() if each.name == mutant)
    return next((each.changes for each in MUTANTS if each.name == mutant), ())


def option_for(simulation: Simulation, line: TraceStep, at: int) -> tuple[Option, int]:
    """Find what a line speaks of among what may happen, and in how many ways it may. Raises Diverged."""
    who = WORLD if line.who == "the world" else ord(line.who[-1]) - ord("A")
    said, _, _ = line.what.partition(_HANDLER)
    wanted = ExploredStep(line.who, said, line.outcome)
    options = simulation.options(who) if who < len(simulation.workers) else iter(())
    found = _matching_options(simulation, options, wanted)
    if not found and simulation.player.land_unseen():
        return option_for(simulation, line, at)
    if not found:
        instead = _alternatives_text(simulation, wanted, simulation.options(who) if who < len(simulation.workers) else ())
        raise Diverged(f"step {at + 1} should be\n  {line.who}: {said}: {line.outcome}\nbut {instead}")
    return found[min(line.variant, len(found) - 1)], len(found)


def _matching_options(simulation: Simulation, options: Iterator[Option], wanted: ExploredStep) -> list[Option]:
    """Find the options that read as wanted; those that do come one after another."""
    found: list[Option] = []
    for option in options:
        if option.outcome == wanted.outcome and simulation.player.step(option) == wanted:
            found.append(option)
        elif found and option.spends != found[0].spends:
            break  # faults of one kind come together
    return found


def _alternatives_text(simulation: Simulation, wanted: ExploredStep, options: Iterable[Option]) -> str:
    who, steps = wanted.who, [simulation.player.step(option) for option in options]
    outcomes = sorted({step.outcome for step in steps if step.what == wanted.what})
    if outcomes:
        return f"this can only come to: {', '.join(outcomes)}"
    calls = sorted({step.what for step in steps})
    return f"{who} can only\n  " + "\n  ".join(calls) if calls else f"{who} has nothing to do"


class HandlerScript:
    """How the handlers of one step ended, according to its line."""

    def __init__(self, line: TraceStep, at: int) -> None:
        self._at = at
        self._ends = [_end(text) for text in line.what.split(_HANDLER)[1:]]

    def choose(self, name: str) -> End:
        """Return the next end. Raises Diverged when the history does not know of this handler's run."""
        if not self._ends or self._ends[0][0] != name:
            raise Diverged(f"in step {self._at + 1} the handler of {name} ran, and the history does not say so", begun=True)
        return self._ends.pop(0)[1]

    def finish(self) -> None:
        """Make sure that every handler of the line ran. Raises Diverged."""
        if self._ends:
            raise Diverged(f"in step {self._at + 1} the handler of {self._ends[0][0]} should have run", begun=True)


def _end(text: str) -> tuple[str, End]:
    end = next(end for end in End if text.endswith(f" {end.value}"))
    return text.removesuffix(f" {end.value}"), end


async def follow(simulation: Simulation, line: TraceStep, at: int) -> tuple[Option, Ends, int]:
    """Let happen what a line says; returns it, and in how many ways it could have been meant. Raises Diverged."""
    option, variants = option_for(simulation, line, at)
    script = HandlerScript(line, at)
    try:
        ends = await simulation.take(option, script.choose)
    except OutOfBounds as error:
        raise Diverged(f"in step {at + 1}, {error}", begun=True) from error
    script.finish()
    return option, ends, variants


async def final(simulation: Simulation, wanted: str) -> str:
    """Return what is wrong at a history's end; one that ends stuck goes on without faults, as long as that leads nowhere."""
    found = simulation.violation()
    if not found and simulation.player.land_unseen():
        found = simulation.violation()
    if found or not wanted.startswith(STUCK):
        return found
    for number in range(CALM_STEPS):
        option = calm_option(simulation, number)
        if option is None:
            break
        await simulation.take(option, simulation.usual)
        if found := simulation.violation():
            return found
    if simulation.is_at_rest():
        return ""
    return f"{STUCK}: no final state after {number} more steps without a fault"


def calm_option(simulation: Simulation, number: int) -> Option | None:
    """Choose something that is no fault, by turns; None when there is nothing."""
    count = len(simulation.workers)
    for who in (*((number + offset) % count for offset in range(count)), WORLD):
        option = next(simulation.options(who), None)  # what is no fault comes first
        if option and not option.spends:
            return option
    return None


def resolved(history: Counterexample, opening: InitialState) -> Counterexample:
    """Find the variants with which a history leads to its violation; as it is when none does."""
    lines = list(history.steps)
    for _ in range(ATTEMPTS):
        with STEP_LIMIT.enforced():
            variants, found = at_once(_attempt(lines, history.violation, opening))
        if same(found, history.violation):
            return replace(history, steps=tuple(lines))
        last = next((at for at in reversed(range(len(variants))) if lines[at].variant + 1 < variants[at]), None)
        if last is None:
            break
        lines[last] = replace(lines[last], variant=lines[last].variant + 1)
        lines[last + 1 :] = [replace(line, variant=0) for line in lines[last + 1 :]]
    return history


def same(found: str, wanted: str) -> bool:
    """Return whether this is the violation that was saved."""
    return found == wanted or (found.startswith(STUCK) and wanted.startswith(STUCK))


async def _attempt(lines: Sequence[TraceStep], wanted: str, opening: InitialState) -> tuple[list[int], str]:
    simulation, variants = Simulation(opening), []
    try:
        for at, line in enumerate(lines):
            variants.append((await follow(simulation, line, at))[2])
        return variants, await final(simulation, wanted)
    except Diverged:
        return variants, ""
    finally:
        await simulation.close()
