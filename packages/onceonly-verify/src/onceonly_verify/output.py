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
        """Say what is being done."""
        self._bar.update(self._task, description=f"{self._what}: {text}")

    def reach(self, number: int) -> None:
        """Say how many of the things are done; a line for each tenth of them."""
        self._bar.update(self._task, completed=number)
        tenths = number * 10 // self._total
        if self._plain and tenths > self._tenths:
            say(f"{self._what}: {number:,} of {self._total:,}")
        self._tenths = tenths

    def done(self, text: str) -> None:
        """Say that one more is done."""
        self._bar.advance(self._task)
        if self._plain:
            say(text)


@contextmanager
def watching(what: str, total: int, *, quiet: bool) -> Iterator[ProgressOutput]:
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
    """Print the table of mutants."""
    columns = ("mutant", "caught", "violation", "steps", "states")
    show_table("Mutants: deliberately broken algorithms", columns, [tuple(mutant_json(each).values()) for each in hunted])


def summary(checked: Sequence[CheckResult], hunted: Sequence[MutantResult], seconds: float) -> str:
    """Say in one line what was done."""
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
    """Say how far random schedules went."""
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
    """Give one check for programs."""
    numbers = {name: getattr(each, name) for name in CHECK_COLUMNS} | {"seconds": round(each.seconds, 2)}
    return numbers | {"violation": each.violation, "missing": each.missing}


def mutant_json(each: MutantResult) -> dict[str, Any]:
    """Give one mutant for programs."""
    found = {"name": each.name, "caught": each.caught, "violation": each.violation}
    return found | {"steps": len(each.steps), "states": each.states}


def walked_json(walked: WalkResult) -> dict[str, Any]:
    """Give random schedules for programs; `number` is that of the one with the violation, `continue` a command."""
    done = {"seed": walked.seed, "first": walked.first, "schedules": walked.schedules, "steps": walked.steps}
    found = {"violation": walked.violation, "number": walked.number if walked.violation else None}
    return done | {"seconds": round(walked.seconds, 2)} | found | {"continue": command_to_continue(walked) or None}


def _rate(number: int, walked: WalkResult) -> str:
    return f"{number / walked.seconds:,.0f}" if walked.seconds else "0"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"
