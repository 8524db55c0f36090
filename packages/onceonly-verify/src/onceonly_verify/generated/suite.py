"""A run over generated mutants: all of them, or a sample that a seed chooses."""

import ast
import importlib
import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from msgspec import Struct

from onceonly_verify.check import Check
from onceonly_verify.checks import CHECKS
from onceonly_verify.checks.larger import LARGE
from onceonly_verify.generated.generator import GeneratedMutant, generated_modules, generated_mutants
from onceonly_verify.generated.lists import equivalents, known_survivors
from onceonly_verify.generated.reach import CheckReach, Reach, record_reach
from onceonly_verify.generated.runs import GeneratedResult, Limits, MutantTask, run_generated
from onceonly_verify.mutants import Mutant
from onceonly_verify.mutations.scope import DefinitionScope, ScopeNames
from onceonly_verify.results import MutantResult
from onceonly_verify.runs import run_mutants

SAMPLE = 60
"""Mutants in a sample."""
REACH_STATES = 1_500
"""States of a check in which its reach is recorded. What lies deeper is found by the function that it is in."""


class GeneratedPlan(Struct, frozen=True, kw_only=True):
    """Which generated mutants to run, and how far."""

    sample: int | None = SAMPLE
    """None for all."""
    seed: int = 0
    limits: Limits = Limits()
    jobs: int = 0


class Survivor(Struct, frozen=True, kw_only=True):
    """A mutant that no check caught. `known` is the reason in the list of known survivors; empty if it is not there.

    `broken` is an error of the checker that ended its search. Such a mutant fails a run, listed or not.
    """

    name: str
    words: str
    known: str = ""
    complete: bool = False
    """Whether all checks that reach it were explored completely."""
    broken: str = ""


class ModuleFigures(Struct, kw_only=True):
    """The figures of one module: `total` counts what is generated, `run` what was run and the known survivors of a sample.

    Equivalent mutants are not run.
    """

    total: int = 0
    run: int = 0
    caught: int = 0
    equivalent: int = 0
    survivors: int = 0

    @property
    def percent(self) -> float:
        """Return the share of the mutants that ran and were caught."""
        return 100 * self.caught / self.run if self.run else 100.0


class GeneratedFindings(Struct, frozen=True, kw_only=True):
    seed: int
    sampled: bool
    modules: Mapping[str, ModuleFigures]
    survivors: tuple[Survivor, ...]

    @property
    def figures(self) -> ModuleFigures:
        names = ModuleFigures.__struct_fields__
        return ModuleFigures(**{name: sum(getattr(each, name) for each in self.modules.values()) for name in names})

    @property
    def unknown(self) -> tuple[Survivor, ...]:
        """Return the survivors that are in no list, and those that broke the checker: they fail a run."""
        return tuple(each for each in self.survivors if not each.known or each.broken)

    @property
    def passed(self) -> bool:
        """Return whether every mutant was caught or is listed."""
        return not self.unknown


def tasks_of(
    plan: GeneratedPlan,
    reach: Reach,
    checks: Sequence[Check] = CHECKS,
    *,
    larger: Sequence[Check] = LARGE,
    mutants: Sequence[GeneratedMutant] | None = None,
) -> list[MutantTask]:
    """Choose the mutants to run, and the checks for each. Known survivors take the longest: a sample does not run them."""
    selected = choose(generated_mutants() if mutants is None else mutants, plan)
    if plan.sample is not None:
        selected = tuple(each for each in selected if each.name not in known_survivors())
    return [
        MutantTask(
            mutant=each, checks=checks_for(each, reach, checks), limits=plan.limits, larger=checks_for(each, reach, larger)
        )
        for each in selected
    ]


def choose(mutants: Sequence[GeneratedMutant], plan: GeneratedPlan) -> tuple[GeneratedMutant, ...]:
    """Choose those to run: without the equivalent ones, and no more than the sample."""
    left = [each for each in mutants if each.name not in equivalents()]
    if plan.sample is None or plan.sample >= len(left):
        return tuple(left)
    numbers = random.Random(plan.seed).sample(range(len(left)), plan.sample)  # noqa: S311 - the same sample for one seed
    return tuple(left[number] for number in sorted(numbers))


def reach_of(
    plan: GeneratedPlan, checks: Sequence[Check] = (*CHECKS, *LARGE), *, recorded: Callable[[CheckReach], None] | None = None
) -> Reach:
    """Record what checks reach; `recorded` is called with each."""
    return record_reach(generated_modules(), checks, limit=REACH_STATES, jobs=plan.jobs, done=recorded)


def checks_for(mutant: GeneratedMutant, reach: Reach, checks: Sequence[Check] = CHECKS) -> tuple[Check, ...]:
    """Return the checks that reach a mutant, the cheapest first."""
    change = mutant.change
    root = DefinitionScope(_tree(change.module), change.function, ScopeNames()).root
    first, last = (root.lineno, root.end_lineno or root.lineno) if not isinstance(root, ast.Module) else (0, 1_000_000)
    named = {check.name: check for check in checks}
    known = Reach(tuple(each for each in reach.each if each.check in named))
    return tuple(named[name] for name in known.checks_for(change.module, mutant.line, first, last))


@cache
def _tree(module: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(f"onceonly.{module}")))


def summed_up(
    results: Sequence[GeneratedResult], plan: GeneratedPlan, mutants: Sequence[GeneratedMutant] | None = None
) -> GeneratedFindings:
    mutants = generated_mutants() if mutants is None else mutants
    by_name = {each.name: each for each in mutants}
    modules: dict[str, ModuleFigures] = {}
    for mutant in mutants:
        figures = modules.setdefault(mutant.module, ModuleFigures())
        figures.total += 1
        figures.equivalent += mutant.name in equivalents()
    survivors = []
    known = known_survivors()
    skipped = [each.name for each in choose(mutants, plan) if plan.sample is not None and each.name in known]
    for result in [*results, *(GeneratedResult(name=name, caught=False) for name in skipped)]:
        mutant = by_name[result.name]
        figures = modules[mutant.module]
        figures.run += 1
        figures.caught += result.caught
        figures.survivors += not result.caught
        if not result.caught:
            broken = f"{result.broken}, in check {result.check!r}" if result.broken else ""
            reason = known.get(mutant.name, "")
            survivors.append(
                Survivor(name=mutant.name, words=mutant.words, known=reason, complete=result.complete, broken=broken)
            )
    sampled = sum(each.run for each in modules.values()) < sum(each.total - each.equivalent for each in modules.values())
    return GeneratedFindings(seed=plan.seed, sampled=sampled, modules=modules, survivors=tuple(survivors))


def run_named(
    mutants: Sequence[GeneratedMutant], plan: GeneratedPlan, *, recorded: Callable[[CheckReach], None] | None = None
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
