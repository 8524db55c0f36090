"""`onceonly verify`: the model checker's findings, for people and for programs."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from onceonly.cli.output import NEGATIVE, complain, progress, show, show_json, show_table
from onceonly.cli.places import JsonOption
from onceonly.verify import CHECKS, MUTANTS, CheckResult, MutantResult, render, run_checks, run_mutants

CHECK_COLUMNS = ("algorithm", "bound", "states", "transitions", "seconds", "complete", "violations", "stuck", "megabytes")


def verify(
    *,
    mutants: Annotated[bool, typer.Option(help="Also break the algorithms on purpose: each mutant must be caught.")] = True,
    jobs: Annotated[int, typer.Option(min=0, help="How many processes work at once; 0 means one for each core.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Explore every interleaving of the shipping algorithms in small worlds: duplicates, crashes, lost answers, ended leases.

    Exit code 1 on a violation, a stuck state, a world that was not explored completely, or a mutant that survives.
    """
    checked = _check(jobs)
    hunted = _hunt(jobs) if mutants else ()
    if as_json:
        show_json({"checks": [_check_json(each) for each in checked], "mutants": [_mutant_json(each) for each in hunted]})
    else:
        _tell(checked, hunted)
    bad = [each.algorithm for each in checked if not each.passed]
    survivors = [each.name for each in hunted if not each.passed]
    if bad:
        complain(f"the promise was not shown for: {', '.join(bad)}")
    if survivors:
        complain(f"the checker is blind to: {', '.join(survivors)}")
    if bad or survivors:
        raise typer.Exit(NEGATIVE)


def _check(jobs: int) -> tuple[CheckResult, ...]:
    seen: dict[str, int] = {}
    with progress() as bar:
        task = bar.add_task("checking", total=len(CHECKS))

        def look(name: str, states: int, _transitions: int) -> None:
            seen[name] = states
            bar.update(task, description="checking: " + "; ".join(f"{name}, {n:,} states" for name, n in seen.items()))

        def end(result: CheckResult) -> None:
            seen.pop(result.algorithm, None)
            bar.advance(task)

        return run_checks(CHECKS, jobs=jobs, progress=look, done=end)


def _hunt(jobs: int) -> tuple[MutantResult, ...]:
    with progress() as bar:
        task = bar.add_task("hunting mutants", total=len(MUTANTS))
        return run_mutants(MUTANTS, jobs=jobs, done=lambda _: bar.advance(task))


def _tell(checked: Sequence[CheckResult], hunted: Sequence[MutantResult]) -> None:
    rows = [[_check_json(each)[column] for column in CHECK_COLUMNS] for each in checked]
    show_table("The shipping algorithms, explored", CHECK_COLUMNS, rows)
    for each in checked:
        if not each.passed:
            show(f"\n{each.algorithm}:\n{render(each)}")
    if hunted:
        columns = ("mutant", "caught", "violation", "steps", "states")
        broken = [(each.name, each.caught, each.violation, len(each.steps), each.states) for each in hunted]
        show_table("\nBroken on purpose", columns, broken)


def _check_json(each: CheckResult) -> dict[str, Any]:
    return {name: getattr(each, name) for name in CHECK_COLUMNS} | {"seconds": round(each.seconds, 2), "missing": each.missing}


def _mutant_json(each: MutantResult) -> dict[str, Any]:
    return {
        "name": each.name,
        "caught": each.caught,
        "violation": each.violation,
        "steps": len(each.steps),
        "states": each.states,
    }
