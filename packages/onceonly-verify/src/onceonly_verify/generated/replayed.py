"""One generated mutant by its name: the check that catches it, and the shortest history there, as for those written by hand."""

from collections.abc import Callable, Sequence

from onceonly_verify.generated.generator import GeneratedMutant
from onceonly_verify.generated.reach import CheckReach, Reach
from onceonly_verify.generated.running import GeneratedResult, MutantTask, run_generated
from onceonly_verify.generated.suite import GeneratedPlan, checks_for, reach_of
from onceonly_verify.mutants import Mutant
from onceonly_verify.results import MutantResult
from onceonly_verify.running import run_mutants


def run_named(
    mutants: Sequence[GeneratedMutant],
    plan: GeneratedPlan,
    *,
    recorded: Callable[[CheckReach], None] | None = None,
) -> tuple[MutantResult, ...]:
    """Run generated mutants, each with the checks that reach it. A result has steps if a history shows what is wrong.

    None does if the mutant is caught by what never happens. `recorded` is called with the reach of each check.
    """
    reach = reach_of(plan, recorded=recorded)
    found = run_generated([_task(each, reach, plan) for each in mutants], jobs=plan.jobs)
    return tuple(_with_history(mutant, each) for mutant, each in zip(mutants, found, strict=True))


def _task(mutant: GeneratedMutant, reach: Reach, plan: GeneratedPlan) -> MutantTask:
    return MutantTask(mutant=mutant, checks=checks_for(mutant, reach), limits=plan.limits)


def _with_history(mutant: GeneratedMutant, found: GeneratedResult) -> MutantResult:
    """Run the check that caught the mutant once more, in every order: there the history is the shortest."""
    if found.caught:
        (again,) = run_mutants([Mutant(mutant.name, (found.check,), (mutant.change,), needs_log=True)], jobs=1)
        if again.caught:
            return again
    return MutantResult(
        name=mutant.name,
        caught=found.caught,
        check=found.check,
        violation=found.violation,
        states=found.states,
        seconds=found.seconds,
    )
