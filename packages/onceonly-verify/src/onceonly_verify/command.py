"""`onceonly verify`: run the model checker and report what it finds."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, TypeVar

import typer
from msgspec import Struct, field

from onceonly.cli.commands import JsonOption
from onceonly.cli.output import NEGATIVE, SETUP, print_error, refuse, show, show_json, show_table
from onceonly_verify import CHECKS, MUTANTS, Check, CheckResult, Mutant, MutantResult, render, run_checks, run_mutants
from onceonly_verify.checks.larger import DEEP, LARGE
from onceonly_verify.coverage.measurement import CoverageMissing, library, run_measured
from onceonly_verify.coverage.suite import CoverageFindings, findings_of
from onceonly_verify.deep import Budget, holds, run_deep
from onceonly_verify.generated.generator import PREFIX, GeneratedMutant, generated_mutants
from onceonly_verify.generated.runs import GeneratedResult, Limits, run_generated
from onceonly_verify.generated.suite import SAMPLE, GeneratedFindings, GeneratedPlan, reach_of, run_named, summed_up, tasks_of
from onceonly_verify.histories import STUCK, history_of
from onceonly_verify.invariants.kinds import NOT_COVERED, unreported
from onceonly_verify.output import (
    check_json,
    command_to_continue,
    coverage_json,
    generated_json,
    mutant_json,
    progress_of,
    show_checks,
    show_coverage,
    show_generated,
    show_mutants,
    summary,
    walked_json,
    walked_text,
)
from onceonly_verify.parallel import walk_in_processes
from onceonly_verify.processes import cores
from onceonly_verify.replay_command import keep, replay_file
from onceonly_verify.runs import LIMIT
from onceonly_verify.schedules import WalkResult

MILLION = 1_000_000
INTERRUPTED = 130
"""Exit code: stopped with Ctrl-C, as shells count it."""

_Named = TypeVar("_Named", Check, Mutant, GeneratedMutant)


class VerifyPlan(Struct, frozen=True, kw_only=True):
    """What to do; `save` names the file for counterexamples, None for one named after the check."""

    checks: Sequence[Check] = ()
    mutants: Sequence[Mutant] = ()
    deep: Sequence[Check] = ()
    budget: Budget = Budget()
    schedules: int = 0
    first: int = 0
    """The number of the first of them."""
    seed: int = 0
    jobs: int = 0
    save: str | None = None
    as_json: bool = False
    prints_counterexamples: bool = False
    """Whether to print the counterexamples of mutants as well."""
    generated: GeneratedPlan | None = None
    named: Sequence[GeneratedMutant] = ()
    """Generated mutants to run alone, with their counterexamples."""
    limits: Limits = Limits()
    check_states: int | None = None
    """States after which a check may be left incomplete; None for checks that have to be complete."""
    coverage: bool = False
    """Whether to measure what the checks reach."""


class VerifyFindings(Struct):
    checked: list[CheckResult] = field(default_factory=list)
    hunted: list[MutantResult] = field(default_factory=list)
    deep: list[CheckResult] = field(default_factory=list)
    walked: WalkResult | None = None
    generated: GeneratedFindings | None = None
    coverage: CoverageFindings | None = None
    interrupted: bool = False


def verify(  # noqa: PLR0913 - one parameter for each option
    *,
    mutants: Annotated[
        bool, typer.Option(help="Also check broken versions of the algorithms. Each of these mutants must be caught.")
    ] = True,
    check: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this check; repeatable.")] = None,
    check_states: Annotated[
        int | None,
        typer.Option(
            min=1, help="States of a check after which it is left incomplete. An incomplete check is then not a failure."
        ),
    ] = None,
    mutant: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Run only this mutant, also a generated one, and print its counterexample; repeatable."
        ),
    ] = None,
    generated: Annotated[bool, typer.Option(help="Run all generated mutants and nothing else, instead of a sample.")] = False,
    sample: Annotated[int, typer.Option(min=0, help="Number of generated mutants in a sample.")] = SAMPLE,
    mutant_states: Annotated[
        int, typer.Option(min=1, help="States of a check after which a generated mutant is not caught by it.")
    ] = Limits().check_states,
    mutant_seconds: Annotated[
        float, typer.Option(min=1, help="Seconds of processor time after which a generated mutant has survived.")
    ] = Limits().seconds,
    coverage: Annotated[
        bool, typer.Option(help="Also measure which lines and branches of the algorithms the checks reach. Runs no mutants.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List checks and mutants without running them.")] = False,
    save: Annotated[str | None, typer.Option(metavar="FILE", help="Save the counterexample to this file.")] = None,
    replay: Annotated[
        str | None, typer.Option(metavar="FILE", help="Replay a saved counterexample on an asyncio event loop.")
    ] = None,
    deep: Annotated[bool, typer.Option(help="Also explore larger worlds and a million random schedules.")] = False,
    minutes: Annotated[float, typer.Option(min=0, help="Time limit of --deep, without the random schedules.")] = 15,
    gigabytes: Annotated[float, typer.Option(min=0.1, help="Memory limit of --deep.")] = 8,
    schedules: Annotated[
        int | None, typer.Option(min=0, help="Number of random schedules. Skips all other checks unless --deep is given.")
    ] = None,
    first: Annotated[
        int, typer.Option(min=0, help="Number of the first random schedule, to continue a run that was interrupted.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random schedules and of the sample.")] = 0,
    jobs: Annotated[int, typer.Option(min=0, help="Number of processes; 0 means one for each core.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Explore every interleaving of the shipping algorithms in small worlds, with crashes, duplicates and lost answers.

    Exits with code 1 on a violation, a stuck state, an incomplete check unless --check-states is given, or a mutant that
    survives. Generated mutants that are listed as survivors are printed only. The larger worlds of --deep may stay incomplete.
    With --coverage, exits with code 1 also if the checks do not reach a line or branch that is not in the list of exceptions,
    or reach one that is. With --replay, exits with code 1 if the violation is reproduced and 3 if it is not.
    """
    if list_:
        _list(as_json=as_json)
        return
    if coverage:
        chosen = {"check-states": check_states, "mutant": mutant, "generated": generated, "deep": deep, "replay": replay}
        _refuse_with_coverage({**chosen, "schedules": schedules is not None})
    if first and schedules is None and not deep:
        refuse(f"--first {first} has no effect without --schedules: add the number of schedules to run", SETUP)
    if replay is not None:
        replay_file(replay, as_json=as_json)
    whole = not (check or mutant or generated or (schedules is not None and not deep))
    mutants = mutants and not coverage
    limits = Limits(check_states=mutant_states, seconds=mutant_seconds)
    by_rule = [name for name in mutant or () if name.startswith(PREFIX)]
    by_hand = [name for name in mutant or () if name not in by_rule]
    _run_plan(
        VerifyPlan(
            checks=_chosen(check, (*CHECKS, *DEEP)) if check else CHECKS if whole else (),
            mutants=_chosen(by_hand, MUTANTS) if mutant else MUTANTS if whole and mutants else (),
            named=_chosen(by_rule, generated_mutants()) if by_rule else (),
            limits=limits,
            check_states=check_states,
            deep=DEEP if deep else (),
            budget=Budget(minutes * 60, int(gigabytes * 2**30)),
            schedules=schedules if schedules is not None else MILLION * deep,
            first=first,
            seed=seed,
            jobs=jobs,
            save=save,
            as_json=as_json,
            prints_counterexamples=bool(mutant),
            generated=GeneratedPlan(sample=None if generated else sample, seed=seed, limits=limits, jobs=jobs)
            if generated or (whole and mutants and sample)
            else None,
            coverage=coverage,
        )
    )


def _run_plan(plan: VerifyPlan) -> None:
    began = time.perf_counter()
    found = VerifyFindings()
    try:
        _run_phases(plan, found)
    except KeyboardInterrupt:
        found.interrupted = True
    if plan.as_json:
        show_json(_json_document(plan, found))
    else:
        _print_findings(plan, found, time.perf_counter() - began)
        if len(found.checked) > 1:
            show("Not covered:\n" + "\n".join(f"* {text}" for text in NOT_COVERED))
    _save_counterexamples(plan, found)
    bad = _failures(plan, found)
    for text in bad:
        print_error(text)
    if bad:
        raise typer.Exit(NEGATIVE)
    if found.interrupted:
        refuse("interrupted: the results above are incomplete", INTERRUPTED)


def _refuse_with_coverage(others: Mapping[str, object]) -> None:
    """Refuse other options, and a missing library, before anything runs."""
    if together := [f"--{name}" for name, value in others.items() if value]:
        refuse(f"--coverage cannot be combined with {', '.join(together)}: run them one after the other", SETUP)
    try:
        library()
    except CoverageMissing as error:
        refuse(str(error), SETUP)


def _run_phases(plan: VerifyPlan, found: VerifyFindings) -> None:
    if plan.checks:
        _run_checks(plan, found)
    if plan.mutants:
        _run_mutants(plan, found)
    if plan.named:
        _run_named_mutants(plan, found)
    if plan.generated:
        _run_generated_mutants(plan, plan.generated, found)
    if plan.deep:
        _run_deep_checks(plan, found)
    if plan.schedules:
        _run_schedules(plan, found)


def _run_checks(plan: VerifyPlan, found: VerifyFindings) -> None:
    under_way: dict[str, int] = {}
    with progress_of("checking", len(plan.checks), quiet=plan.as_json) as watch:

        def seen(name: str, states: int, _transitions: int) -> None:
            under_way[name] = states
            watch.now("; ".join(f"{each}, {number:,} states" for each, number in under_way.items()))

        def checked(each: CheckResult) -> None:
            under_way.pop(each.algorithm, None)
            found.checked.append(each)
            watch.done(_check_line(each))

        if not plan.coverage:
            limit = plan.check_states or LIMIT
            found.checked = list(run_checks(plan.checks, jobs=plan.jobs, progress=seen, done=checked, limit=limit))
            return
        measured = run_measured(plan.checks, jobs=plan.jobs, progress=seen, done=checked)
        found.checked = [each.result for each in measured]
        whole = {each.name for each in plan.checks} >= {each.name for each in CHECKS}
        found.coverage = findings_of((each.arcs for each in measured), whole=whole)


def _run_mutants(plan: VerifyPlan, found: VerifyFindings) -> None:
    with progress_of("checking mutants", len(plan.mutants), quiet=plan.as_json) as watch:

        def hunted(each: MutantResult) -> None:
            found.hunted.append(each)
            watch.done(f"mutant {each.name}: {f'caught after {len(each.steps)} steps' if each.caught else 'SURVIVED'}")

        shortest = plan.prints_counterexamples or bool(plan.save)
        found.hunted = list(run_mutants(plan.mutants, jobs=plan.jobs, done=hunted, shortest=shortest))


def _run_named_mutants(plan: VerifyPlan, found: VerifyFindings) -> None:
    with progress_of("recording what checks reach", len(CHECKS), quiet=True) as watch:
        generated = GeneratedPlan(limits=plan.limits, jobs=plan.jobs)
        found.hunted += run_named(plan.named, generated, recorded=lambda each: watch.done(each.check))


def _run_generated_mutants(plan: VerifyPlan, generated: GeneratedPlan, found: VerifyFindings) -> None:
    with progress_of("recording what checks reach", len(plan.checks or CHECKS), quiet=True) as watch:
        reach = reach_of(generated, recorded=lambda each: watch.done(each.check))
    tasks = tasks_of(generated, reach)
    results: list[GeneratedResult] = []
    with progress_of("checking generated mutants", len(tasks), quiet=plan.as_json) as watch:

        def hunted(each: GeneratedResult) -> None:
            results.append(each)
            watch.done(f"{each.name}: {f'caught in check {each.check!r}' if each.caught else 'SURVIVED'}")

        try:
            run_generated(tasks, jobs=generated.jobs, done=hunted)
        finally:  # an interrupted run reports what it did so far
            found.generated = summed_up(results, generated)


def _run_deep_checks(plan: VerifyPlan, found: VerifyFindings) -> None:
    with progress_of("exploring", len(plan.deep), quiet=plan.as_json) as watch:

        def seen(name: str, states: int, _transitions: int) -> None:
            watch.now(f"{name}, {states:,} states")

        def explored(each: CheckResult) -> None:
            found.deep.append(each)
            watch.done(_check_line(each))

        run_deep(plan.budget, plan.deep, progress=seen, done=explored)
    if len(found.deep) < len(plan.deep):
        raise KeyboardInterrupt


def _run_schedules(plan: VerifyPlan, found: VerifyFindings) -> None:
    with progress_of("running schedules", plan.schedules, quiet=plan.as_json) as watch:

        def tick(walked: WalkResult) -> None:
            watch.reach(walked.schedules)
            watch.now(f"{walked.steps:,} steps")

        found.walked = walk_in_processes(
            plan.first + plan.schedules, seed=plan.seed, first=plan.first, processes=plan.jobs or cores(), tick=tick
        )
    found.interrupted = found.walked.left > 0


def _print_findings(plan: VerifyPlan, found: VerifyFindings, seconds: float) -> None:
    if found.checked:
        show_checks("Checks of the shipping algorithms", found.checked)
    if found.deep:
        show_checks("Checks of larger worlds, within the limits of time and memory", found.deep)
    if found.hunted and not plan.prints_counterexamples:
        show_mutants(found.hunted)
    _print_counterexamples(plan, found)
    if found.generated:
        show_generated(found.generated)
    if found.coverage:
        show_coverage(found.coverage)
    if found.walked:
        _print_schedules(found.walked)
    if found.checked or found.hunted:
        show(summary(found.checked, found.hunted, seconds))


def _print_counterexamples(plan: VerifyPlan, found: VerifyFindings) -> None:
    for each in _wrong(plan, found):
        show(f"\n{each.algorithm}:\n{render(each)}")
    by_name: dict[str, Mutant | GeneratedMutant] = {each.name: each for each in plan.mutants}
    by_name |= {each.name: each for each in plan.named}
    for mutant in found.hunted if plan.prints_counterexamples else ():
        where = f"Counterexample in check {mutant.check!r}:\n{render(mutant)}" if mutant.caught else "No check caught it."
        show(f"Mutant {mutant.name!r} {by_name[mutant.name].words}.\n{where}")


def _print_schedules(walked: WalkResult) -> None:
    show(walked_text(walked))
    if walked.left:
        show(f"To continue: {command_to_continue(walked)}")
    if walked.history:
        where = f"schedule {walked.number} of seed {walked.seed}"
        show(f"Counterexample in check {walked.history.check!r}, {where}:")
        steps = enumerate(walked.history.steps, 1)
        show("\n".join(f"{number:3}. {line.who}: {line.what}: {line.outcome}" for number, line in steps))
        show(f"     => {walked.history.violation}")


def _save_counterexamples(plan: VerifyPlan, found: VerifyFindings) -> None:
    """Save what a person will want to replay: what is wrong with the shipping code, and mutants where a file is named."""
    wrong = [each for each in (*found.checked, *found.deep) if each.violation or each.stuck]
    histories = [history_of(each.algorithm, each.violation or STUCK, each.steps) for each in wrong]
    if found.walked and found.walked.history:
        histories.append(found.walked.history)
    if plan.save:
        caught = [each for each in found.hunted if each.caught and each.steps]
        histories += [history_of(each.check, each.violation, each.steps, each.name) for each in caught]
    for number, history in enumerate(histories):
        keep(history, plan.save if not number else None)
    if plan.save and not histories and not found.interrupted:
        print_error(f"{plan.save} was not written: no check found a counterexample")


def _wrong(plan: VerifyPlan, found: VerifyFindings) -> list[CheckResult]:
    """Return the checks that failed. Deep ones, and those with a limit of states, may be incomplete."""
    bad = [each for each in found.checked if not (holds(each) if plan.check_states else each.passed)]
    return bad + [each for each in found.deep if not holds(each)]


def _failures(plan: VerifyPlan, found: VerifyFindings) -> list[str]:
    bad = [each.algorithm for each in _wrong(plan, found)]
    if found.walked and not found.walked.passed:
        bad.append(f"random schedule {found.walked.number} of seed {found.walked.seed}")
    survivors = [each.name for each in found.hunted if not each.passed]
    survivors += [each.name for each in found.generated.unknown] if found.generated else []
    texts = [f"checks failed: {', '.join(bad)}"] if bad else []
    texts += [f"mutants not caught: {', '.join(survivors)}"] if survivors else []
    unproven = unreported(each.violation for each in found.hunted) if len(found.hunted) == len(MUTANTS) else ()
    texts += found.coverage.complaints if found.coverage else []
    return texts + ([f"invariants that no mutant violates: {', '.join(unproven)}"] if unproven else [])


def _json_document(plan: VerifyPlan, found: VerifyFindings) -> dict[str, object]:
    document: dict[str, object] = {
        "checks": [check_json(each) for each in found.checked],
        "mutants": [mutant_json(each) for each in found.hunted],
    }
    if plan.deep:
        document["deep"] = [check_json(each) for each in found.deep]
    if found.generated:
        document["generated"] = generated_json(found.generated)
    if found.coverage:
        document["coverage"] = coverage_json(found.coverage)
    if found.walked:
        document["schedules"] = walked_json(found.walked)
    return document


def _chosen(names: Iterable[str], known: Sequence[_Named]) -> list[_Named]:
    by_name = {each.name: each for each in known}
    missing = [name for name in names if name not in by_name]
    if missing:
        refuse(f"unknown check or mutant {', '.join(map(repr, missing))}: `onceonly verify --list` lists the names", SETUP)
    return [by_name[name] for name in names]


def _list(*, as_json: bool) -> None:
    kinds = {"checks": CHECKS, "deep": DEEP, "schedules": LARGE}
    if as_json:
        listed = {kind: [{"name": each.name, "bound": each.bound} for each in checks] for kind, checks in kinds.items()}
        show_json(listed | {"mutants": [_mutant_json(each) for each in MUTANTS]})
        return
    for title, checks in zip(("Checks", "Checks of --deep", "Checks of --schedules"), kinds.values(), strict=True):
        show_table(title, ("name", "bound"), [(each.name, each.bound) for each in checks])
    show("Mutants: the change of each, and the checks that can catch it")
    for mutant in MUTANTS:
        show(f"* {mutant.name}: {mutant.words} ({'; '.join(mutant.checks)})")


def _mutant_json(each: Mutant) -> dict[str, object]:
    return {"name": each.name, "does": each.words, "checks": each.checks}


def _check_line(each: CheckResult) -> str:
    end = each.violation or ("stuck" if each.stuck else "complete" if each.complete else "incomplete")
    return f"{each.algorithm}: {each.states:,} states in {each.seconds:.1f} s, {end}"
