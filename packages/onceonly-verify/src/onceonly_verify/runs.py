"""Running checks and mutants, with progress for whoever watches."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from onceonly_verify.actors.hosts import GIVES_UP
from onceonly_verify.check import Check
from onceonly_verify.checks import CHECKS
from onceonly_verify.environment import ENDS_AT_WORK, CheckEnvironment
from onceonly_verify.explorer import Exploration, Explorer
from onceonly_verify.faults import (
    ANSWER_LOST,
    FORMS,
    LATE_ACCEPTED,
    LATE_IGNORED,
    NOT_ANSWERED,
    TIME_OVER_APPLIED,
    TIME_OVER_NOT,
    TO_PEERS,
    UNIT_OVER,
)
from onceonly_verify.invariants.auditor import Auditor
from onceonly_verify.mutants import MUTANTS, Mutant
from onceonly_verify.mutations import DoesNotApply
from onceonly_verify.processes import MEGABYTE, Tell, peak, side_by_side
from onceonly_verify.programs import Programs, changed, shipped
from onceonly_verify.results import CheckResult, MutantResult
from onceonly_verify.roles import Role
from onceonly_verify.step_limit import STEP_LIMIT
from onceonly_verify.time_steps import HANDLED_AGAIN
from onceonly_verify.trie import NotDeterministic
from onceonly_verify.workload import DeduplicationMode
from onceonly_verify.world import Bounds

LIMIT = 5_000_000
MUTANT_LIMIT = 400_000
"""States after which a search gives up; a check that reaches it is not complete, a mutant that does has survived."""

Progress = Callable[[str, int, int], None]
"""Called now and then with a check's name, and the states and transitions seen so far."""


def run_check(
    check: Check, *, programs: Programs | None = None, limit: int = LIMIT, progress: Progress | None = None
) -> CheckResult:
    """Explore one check in this process, of the shipping code unless other programs are given."""
    found, happened = _search(check, programs, limit=limit, progress=progress)
    return CheckResult(
        algorithm=check.name,
        bound=check.bound,
        states=found.states,
        transitions=found.transitions,
        seconds=found.seconds,
        megabytes=peak() // MEGABYTE,
        complete=found.complete,
        violation=found.violation,
        stuck=found.stuck or 0,
        missing=tuple(sorted(required(check, happened) - happened)) if found.complete else (),
        steps=found.steps,
    )


def run_checks(
    checks: Sequence[Check] = CHECKS,
    *,
    jobs: int = 0,
    progress: Progress | None = None,
    done: Callable[[CheckResult], None] | None = None,
    limit: int = LIMIT,
) -> tuple[CheckResult, ...]:
    """Explore checks, each in its own process, `jobs` at a time (0: one for each core); `done` is called as they end."""
    return side_by_side(partial(_check, limit=limit), checks, jobs=jobs, told=progress, done=done)


def run_mutant(
    mutant: Mutant, checks: Sequence[Check] = CHECKS, *, limit: int = MUTANT_LIMIT, shortest: bool = True
) -> MutantResult:
    """Run the mutant's checks until one catches it. One that does not apply is not caught.

    The log of batches is used for mutants only that need it: it would see others before they do any harm. Without `shortest`
    the steps are the first way to the violation that is found, in half the time.
    """
    began = time.perf_counter()
    named = {check.name: check for check in checks}
    try:
        programs = changed(mutant.changes, has_log=mutant.needs_log)
    except DoesNotApply as error:
        return MutantResult(name=mutant.name, caught=False, violation=f"does not apply: {error}")
    states = 0
    for name in mutant.checks:
        found, _ = (_search if shortest else explore)(named[name], programs, limit=limit)
        states += found.states
        wrong = found.violation or (f"stuck: {found.stuck} states never come to rest" if found.stuck else "")
        if wrong:
            spent = time.perf_counter() - began
            return MutantResult(
                name=mutant.name, caught=True, check=name, violation=wrong, states=states, seconds=spent, steps=found.steps
            )
    return MutantResult(name=mutant.name, caught=False, states=states, seconds=time.perf_counter() - began)


def run_mutants(
    mutants: Sequence[Mutant] = MUTANTS,
    *,
    jobs: int = 0,
    done: Callable[[MutantResult], None] | None = None,
    shortest: bool = True,
) -> tuple[MutantResult, ...]:
    """Run mutants, each in its own process, `jobs` at a time (0: one for each core); `done` is called as they end."""
    return side_by_side(partial(_mutant, shortest=shortest), mutants, jobs=jobs, done=done)


def required(check: Check, happened: frozenset[str]) -> frozenset[str]:
    """Name what must have happened somewhere: each call of the check, and each fault that its bounds allow, in every form.

    Each of it at every endpoint, and every end that a handler may come to.
    """
    ends = {end for _, behaviour in check.workload.behaviours for end in behaviour.value}
    wanted = {f"handler: {end.value}" for end in ends}
    if check.workload.timing and check.workload.timing.forgets:
        wanted.add(HANDLED_AGAIN)
    for role in check.roles:
        is_late = (check.workload.timing and role.sweeps) or not role.has_peers  # it gets only what a crash has left
        bounds = replace(check.bounds, crashes=max(0, check.bounds.crashes - 1)) if is_late else check.bounds
        wanted |= _required_of(role, bounds, happened)
    for label in check.workload.labels if check.workers else ():
        here = frozenset(kind.removeprefix(label) for kind in happened if kind.startswith(label))
        wanted |= {label + kind for kind in _required_at_one(check, here)}
    return frozenset(wanted)


def _required_at_one(check: Check, happened: frozenset[str]) -> set[str]:
    wanted = {f"{point}: applied" for point in check.reaches}
    if check.bounds.failures:
        failing = [point for point in FORMS if f"{point}: may fail" in happened]
        wanted |= {f"{point}: {form}" for point in failing for form in FORMS[point]} | {f"receive: {ANSWER_LOST}"}
        if "commit" in failing and check.workload.deduplication is not DeduplicationMode.DATABASE:  # there it is nobody's alone
            wanted.add("commit: lands now, applied")
    if check.bounds.silences:
        wanted |= {f"{point}: {NOT_ANSWERED}" for point in TO_PEERS if f"{point}: applied" in happened}
    if check.bounds.cuts:
        wanted |= {f"{point}: {TIME_OVER_NOT}" for point in check.reaches if point != "ack"}
        wanted |= {f"{point}: {TIME_OVER_APPLIED}" for point in ("commit", "save") if point in check.reaches}
    if check.bounds.rollbacks:
        wanted |= {f"unit: {ENDS_AT_WORK}"} | ({f"commit: {UNIT_OVER}"} if "commit" in check.reaches else set())
    if check.bounds.lapses:
        wanted.add(f"run marker: {ENDS_AT_WORK}")
    if check.bounds.crashes:
        wanted |= {f"{point}: crash before" for point in check.reaches} | {"lease: ends"}
    if check.bounds.expiries:
        wanted |= {f"ack: {LATE_IGNORED}", f"ack: {LATE_ACCEPTED}", f"lease: {ENDS_AT_WORK}"}
    return wanted


def _required_of(role: Role, bounds: Bounds, happened: frozenset[str]) -> set[str]:
    """Name what a worker of a kind that is no endpoint's must do."""
    wanted = {f"{point}: applied" for point in role.reaches}
    wanted |= {f"{role.point}: applied"} if role.point == GIVES_UP else set()
    if bounds.rollbacks and "commit" in role.reaches:
        wanted.add(f"commit: {UNIT_OVER}")
    if bounds.crashes:
        wanted |= {f"{point}: crash before" for point in role.reaches}
    if bounds.failures:
        failing = [point for point in FORMS if role.reaches and f"{role.label}{point}: may fail" in happened]
        wanted |= {f"{point}: {form}" for point in failing for form in FORMS[point]}
    return {role.label + kind for kind in wanted}


def explore(
    check: Check,
    programs: Programs | None = None,
    *,
    limit: int = LIMIT,
    progress: Progress | None = None,
    reduced: bool = True,
) -> tuple[Exploration, frozenset[str]]:
    """Explore one check; returns what was found, and every kind of thing that happened. Not `reduced`, in every order."""
    programs = programs or shipped()
    environment = CheckEnvironment(check.workload, check.bounds, programs=programs, roles=check.roles, reduced=reduced)
    auditor = Auditor(environment, check.workload, check.patience)

    def tick(states: int, transitions: int) -> None:
        if progress:
            progress(check.name, states, transitions)

    with STEP_LIMIT.enforced():
        try:
            return Explorer(environment, auditor, tick).explore(limit), frozenset(environment.happened)
        except NotDeterministic as error:
            raise NotDeterministic(f"{check.name}: {error}") from error
        finally:
            environment.trie.close()


def _search(
    check: Check, programs: Programs | None, *, limit: int, progress: Progress | None = None
) -> tuple[Exploration, frozenset[str]]:
    """Explore with the reductions. A violation is looked for once more without them: there its history is the shortest."""
    found, happened = explore(check, programs, limit=limit, progress=progress)
    if found.violation:
        nearest, _ = explore(check, programs, limit=limit, progress=progress, reduced=False)
        found = nearest if nearest.violation else found
    return found, happened


def _check(check: Check, tell: Tell, *, limit: int) -> CheckResult:
    return run_check(check, progress=tell, limit=limit)


def _mutant(mutant: Mutant, _tell: Tell, *, shortest: bool) -> MutantResult:
    return run_mutant(mutant, shortest=shortest)
