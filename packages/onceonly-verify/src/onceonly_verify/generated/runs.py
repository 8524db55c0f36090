"""Running generated mutants: the cheapest checks that reach the change first, with few states before many.

A search with few states sees only how a world begins. Random schedules of the same worlds, and of larger ones, go to its end.
"""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from onceonly_verify.check import Check
from onceonly_verify.generated.generator import GeneratedMutant
from onceonly_verify.invariants.batch_log import BrokenOracleError
from onceonly_verify.processes import Tell, side_by_side
from onceonly_verify.programs import Programs, changed
from onceonly_verify.runs import explore, required
from onceonly_verify.schedules import Walk
from onceonly_verify.simulation import at_once
from onceonly_verify.trie import NotDeterministic, UnexpectedOutcome
from onceonly_verify.world_player import InitialState

TOGETHER = 24
"""Mutants that run in one process, one after another."""
FIRST_STATES, GROWTH = 400, 8
"""The states of a check in the first pass over the checks, and how many times as many each further pass has."""


FIRST_WALKS, MORE_WALKS = 6, 4
"""The random schedules of a world after the first pass, and how many times as many there are after each further pass."""


class Limits(Struct, frozen=True, kw_only=True):
    """When a mutant has survived: after so many states of one check, or of all checks, or so many seconds of processor time."""

    check_states: int = 30_000
    states: int = 2_000_000
    seconds: float = 600.0


class GeneratedResult(Struct, frozen=True, kw_only=True):
    """What became of one mutant: what caught it and in which check, or how much was explored in vain.

    `broken` is an error of the checker itself, in `check`. It ends the search, and the mutant is not caught.

    `complete` tells whether every check that reaches it was explored completely; without, a larger limit may catch it.
    """

    name: str
    caught: bool
    check: str = ""
    violation: str = ""
    states: int = 0
    seconds: float = 0
    complete: bool = False
    broken: str = ""


class MutantTask(Struct, frozen=True, kw_only=True):
    """One mutant, and the checks that reach it, in the order in which they are tried."""

    mutant: GeneratedMutant
    checks: tuple[Check, ...]
    limits: Limits
    larger: tuple[Check, ...] = ()
    """Larger worlds that reach it. Only random schedules of them are walked."""


def run_generated(
    tasks: Sequence[MutantTask], *, jobs: int = 0, done: Callable[[GeneratedResult], None] | None = None
) -> tuple[GeneratedResult, ...]:
    """Run mutants, those of one function in one process, `jobs` at a time (0: one for each core).

    `done` is called as mutants end. Results come in the order of the tasks.
    """
    groups: dict[object, list[MutantTask]] = {}
    for task in tasks:
        groups.setdefault((task.mutant.change.module, task.mutant.change.function), []).append(task)
    parts = [group[at : at + TOGETHER] for group in groups.values() for at in range(0, len(group), TOGETHER)]
    found = side_by_side(_run, parts, jobs=jobs, told=done)
    by_name = {result.name: result for part in found for result in part}
    return tuple(by_name[task.mutant.name] for task in tasks)


class _OutOfTimeError(BaseException):
    """The mutant's time is over. It is no Exception, so no program takes it for a port's answer."""


def run_one(task: MutantTask) -> GeneratedResult:
    """Run a mutant until a check catches it or its limits are reached."""
    began = time.process_time()
    search = _Search(task)
    check = violation = broken = ""
    try:
        with _alarm(task.limits.seconds):
            check, violation = search.run()
    except _OutOfTimeError:
        pass
    except BrokenOracleError as error:
        check, broken = search.check, str(error)
    return GeneratedResult(
        name=task.mutant.name,
        caught=bool(violation),
        check=check,
        violation=violation,
        states=search.states,
        seconds=time.process_time() - began,
        complete=not violation and search.is_complete,
        broken=broken,
    )


class _Search:
    """One mutant's search. Its progress is there also if it is interrupted."""

    def __init__(self, task: MutantTask) -> None:
        self.states = 0
        self.check = ""
        """The check that it is in."""
        self.is_complete = False
        self._task = task

    def run(self) -> tuple[str, str]:
        """Try all checks with few states, then those that were not complete with random schedules, and with more states."""
        programs = changed([self._task.mutant.change])
        left, most, limits = list(self._task.checks), FIRST_STATES, self._task.limits
        walks, walked = FIRST_WALKS, 0
        while left:
            most = min(most, limits.check_states)
            incomplete: list[Check] = []
            for check in left:
                if self.states >= limits.states:
                    return "", ""
                violation, complete = self._explore(check, programs, most)
                if violation:
                    return check.name, violation
                if not complete:
                    incomplete.append(check)
            for check in (*incomplete, *self._task.larger):
                if violation := self._walk(check, programs, walked, walks):
                    return check.name, violation
            if most == limits.check_states:
                self.is_complete = not incomplete
                return "", ""
            left, most = incomplete, most * GROWTH
            walks, walked = walks * MORE_WALKS, walks
        self.is_complete = True
        return "", ""

    def _explore(self, check: Check, programs: Programs, most: int) -> tuple[str, bool]:
        self.check = check.name
        try:
            found, happened = explore(check, programs, limit=most)
        except BrokenOracleError:
            raise
        except (NotDeterministic, UnexpectedOutcome) as error:
            return f"not deterministic: {error}", False
        except Exception as error:  # noqa: BLE001 - the world itself could not follow what the mutant did
            return f"escape: the world raised {type(error).__name__}: {error}", False
        self.states += found.states
        if found.violation:
            return found.violation, False
        if found.stuck:
            return f"stuck: {found.stuck} states never come to rest", False
        missing = sorted(required(check, happened) - happened) if found.complete else []
        return (f"missing: {', '.join(missing)} never happened" if missing else ""), found.complete

    def _walk(self, check: Check, programs: Programs, first: int, last: int) -> str:
        """Walk random schedules of a world, from `first` to `last` - 1."""
        self.check = check.name
        try:
            opening = InitialState(check, programs)
            for number in range(first, last):
                walk = Walk(opening, f"{check.name}:{number}")
                violation = at_once(walk.go())
                self.states += walk.steps
                if violation:
                    return f"{violation} (random schedule {number})"
        except BrokenOracleError:
            raise
        except Exception as error:  # noqa: BLE001 - the world itself could not follow what the mutant did
            return f"escape: the world raised {type(error).__name__}: {error}"
        return ""


def _run(tasks: Sequence[MutantTask], tell: Tell) -> list[GeneratedResult]:
    """Run mutants of one function. A check that has caught one of them is tried first for the next."""
    results: list[GeneratedResult] = []
    caught: Counter[str] = Counter()
    for task in tasks:
        checks = sorted(task.checks, key=lambda check: -caught[check.name])
        result = run_one(replace(task, checks=tuple(checks)))
        caught[result.check] += result.caught
        results.append(result)
        tell(result)
    return results


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise _OutOfTimeError after so many seconds, and again each second, for a program may swallow it.

    They are processor time of this process, so a busy machine changes nothing.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def ring(_number: int, _frame: Any) -> None:
        raise _OutOfTimeError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
