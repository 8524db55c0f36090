"""The output of `onceonly verify`: tables, JSON and progress."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from onceonly.cli.output import answers, notices, progress, say, show, show_table
from onceonly_verify import CheckResult, MutantResult
from onceonly_verify.coverage.suite import CoverageFindings, ModuleCoverage
from onceonly_verify.generated.suite import GeneratedFindings, ModuleFigures
from onceonly_verify.schedules import WalkResult
from onceonly_verify.world import count

CHECK_COLUMNS = ("algorithm", "bound", "states", "transitions", "seconds", "complete", "violations", "stuck", "megabytes")
WIDE = 220
"""Columns of a terminal in which a check fits on one line."""
NARROW = 100
"""Columns of a terminal in which headings are broken in two."""
_BROKEN = {
    "transitions": "transi-\ntions",
    "complete": "com-\nplete",
    "violations": "viola-\ntions",
    "megabytes": "mega-\nbytes",
}


class ProgressOutput:
    """Progress of a phase: a bar on a terminal, otherwise one line for each finished step."""

    def __init__(self, bar: Progress, what: str, total: int, *, plain: bool) -> None:
        """Move this bar; with `plain`, print lines."""
        self._bar = bar
        self._task = bar.add_task(what, total=total)
        self._total = total
        self._tenths = 0
        self._what = what
        self._plain = plain

    def now(self, text: str) -> None:
        self._bar.update(self._task, description=f"{self._what}: {text}")

    def reach(self, number: int) -> None:
        """Show how many of the things are done, with a line for each tenth of them."""
        self._bar.update(self._task, completed=number)
        tenths = number * 10 // self._total
        if self._plain and tenths > self._tenths:
            say(f"{self._what}: {number:,} of {self._total:,}")
        self._tenths = tenths

    def done(self, text: str) -> None:
        self._bar.advance(self._task)
        if self._plain:
            say(text)


@contextmanager
def progress_of(what: str, total: int, *, quiet: bool) -> Iterator[ProgressOutput]:
    """Watch a phase of so many things."""
    with progress() as bar:
        yield ProgressOutput(bar, what, total, plain=not quiet and not notices().is_terminal)


def show_checks(title: str, checked: Sequence[CheckResult]) -> None:
    """Print the table of checks: on one line each where there is room, else with each bound below its check's name."""
    rows = [[check_json(each)[column] for column in CHECK_COLUMNS] for each in checked]
    console = answers()
    if console.width >= WIDE:
        show_table(title, CHECK_COLUMNS, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("algorithm and bound", overflow="fold")
    for name in CHECK_COLUMNS[2:]:
        table.add_column(_BROKEN.get(name, name) if console.width < NARROW else name, justify="right", no_wrap=True)
    for name, bound, *numbers in rows:
        table.add_row(Text.assemble(name, "\n", (bound, "dim")), *(_number(value) for value in numbers))
    show(title)
    console.print(table)


def show_mutants(hunted: Sequence[MutantResult]) -> None:
    columns = ("mutant", "caught", "violation", "steps", "states")
    show_table("Mutants: deliberately broken algorithms", columns, [tuple(mutant_json(each).values()) for each in hunted])


def summary(checked: Sequence[CheckResult], hunted: Sequence[MutantResult], seconds: float) -> str:
    """Return in one line what was done."""
    complete = sum(each.complete for each in checked)
    of = "" if complete == len(checked) else f" of {len(checked)}"
    parts = []
    if checked:
        states, wrong = sum(each.states for each in checked), sum(each.violations for each in checked)
        parts.append(
            f"{complete:,}{of} {'check' if len(checked) == 1 else 'checks'} complete, {states:,} states, "
            f"{count(wrong, 'violation', 'violations')}, {sum(each.stuck for each in checked):,} stuck"
        )
    if hunted:
        parts.append(f"{sum(each.caught for each in hunted)} of {count(len(hunted), 'mutant', 'mutants')} caught")
    return "; ".join([*parts, f"{seconds:.0f} s"])


def walked_text(walked: WalkResult) -> str:
    pace = f"{_rate(walked.schedules, walked)} schedules/s, {_rate(walked.steps, walked)} steps/s"
    of = "" if walked.schedules >= walked.wanted or walked.violation else f" of {walked.wanted:,}"
    wrong = count(int(bool(walked.violation)), "violation", "violations")
    begin = f", from number {walked.first:,}" if walked.first else ""
    return f"{walked.schedules:,}{of} random schedules (seed {walked.seed}{begin}), {walked.steps:,} steps, {wrong}; {pace}"


def command_to_continue(walked: WalkResult) -> str:
    """Write the command that runs the schedules which an interrupted run has not run; empty if there are none."""
    if not walked.left:
        return ""
    return f"onceonly verify --schedules {walked.left} --first {walked.first + walked.schedules} --seed {walked.seed}"


def check_json(each: CheckResult) -> dict[str, Any]:
    numbers = {name: getattr(each, name) for name in CHECK_COLUMNS} | {"seconds": round(each.seconds, 2)}
    return numbers | {"violation": each.violation, "missing": each.missing}


def mutant_json(each: MutantResult) -> dict[str, Any]:
    found = {"name": each.name, "caught": each.caught, "violation": each.violation}
    return found | {"steps": len(each.steps), "states": each.states}


def walked_json(walked: WalkResult) -> dict[str, Any]:
    """Return random schedules for programs; `number` is that of the one with the violation, `continue` a command."""
    done = {"seed": walked.seed, "first": walked.first, "schedules": walked.schedules, "steps": walked.steps}
    found = {"violation": walked.violation, "number": walked.number if walked.violation else None}
    return done | {"seconds": round(walked.seconds, 2)} | found | {"continue": command_to_continue(walked) or None}


def _rate(number: int, walked: WalkResult) -> str:
    return f"{number / walked.seconds:,.0f}" if walked.seconds else "0"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"


COLUMNS = ("module", "total", "run", "caught", "equivalent", "survivors", "percent")


def generated_json(found: GeneratedFindings) -> dict[str, Any]:
    return {
        **_numbers(found.figures),
        "sampled": found.sampled,
        "seed": found.seed,
        "survivors": [{"name": each.name, "does": each.words, "known": each.known or None} for each in found.survivors],
        "modules": {
            name: _numbers(figures) | {"survivors": figures.survivors} for name, figures in sorted(found.modules.items())
        },
    }


def show_generated(found: GeneratedFindings) -> None:
    """Print the table by module, then the survivors."""
    rows = [(name, *_row(figures)) for name, figures in sorted(found.modules.items())]
    which = f"a sample, seed {found.seed}" if found.sampled else "all"
    show_table(f"Generated mutants of the algorithms, {which}", COLUMNS, [*rows, ("all", *_row(found.figures))])
    for title, survivors in (
        ("Survivors that are in no list", found.unknown),
        ("Known survivors", [each for each in found.survivors if each.known and not each.broken]),
    ):
        if survivors:
            show(title)
        for each in survivors:
            limit = "" if each.complete else "a limit was reached; a larger one may catch it"
            why = f"the checker failed: {each.broken}" if each.broken else each.known or limit
            show(f"* {each.name}: {each.words}{why and f' ({why})'}")


def _numbers(figures: ModuleFigures) -> dict[str, Any]:
    return {
        "total": figures.total,
        "run": figures.run,
        "caught": figures.caught,
        "equivalent": figures.equivalent,
        "percent": round(figures.percent, 1),
    }


def _row(figures: ModuleFigures) -> tuple[object, ...]:
    numbers = _numbers(figures)
    return (*(numbers[name] for name in ("total", "run", "caught", "equivalent")), figures.survivors, numbers["percent"])


COVERAGE_COLUMNS = ("module", "lines", "lines covered", "branches", "branches covered", "percent", "listed", "not listed")


def coverage_json(found: CoverageFindings) -> dict[str, Any]:
    return {
        **_coverage_numbers(found.total),
        "complete": found.whole,
        "missing": [{"place": name, "reason": found.listed.get(name)} for name in found.total.missing],
        "listed_but_covered": list(found.covered),
        "listed_but_gone": list(found.gone),
        "modules": {name: _coverage_numbers(each) for name, each in found.modules.items()},
    }


def show_coverage(found: CoverageFindings) -> None:
    """Print the table by module, then the places that no check reaches."""
    rows = [_coverage_row(name, each, found) for name, each in found.modules.items()]
    which = "the checks" if found.whole else "these checks alone"
    show_table(
        f"Lines and branches in functions of the algorithms that {which} reach",
        COVERAGE_COLUMNS,
        [*rows, _coverage_row("all", found.total, found)],
    )
    groups: dict[str, list[str]] = {}
    for name in found.total.missing:
        groups.setdefault(found.listed.get(name, ""), []).append(name)
    if unlisted := groups.pop("", []):
        show("Not reached, and not listed:\n" + "\n".join(f"* {name}" for name in unlisted))
    if groups:
        show("Not reached, for a listed reason:")
    for reason, names in groups.items():
        show("\n".join(f"* {name}" for name in names) + f"\n    {reason}")


def _coverage_numbers(each: ModuleCoverage) -> dict[str, Any]:
    return {
        "lines": each.lines,
        "covered_lines": each.covered_lines,
        "branches": each.branches,
        "covered_branches": each.covered_branches,
        "percent": round(each.percent, 1),
    }


def _coverage_row(name: str, each: ModuleCoverage, found: CoverageFindings) -> tuple[object, ...]:
    listed = sum(place in found.listed for place in each.missing)
    return (name, *_coverage_numbers(each).values(), listed, len(each.missing) - listed)
