"""Checks that measure which lines and branches of the algorithms they reach, each in a process of its own."""

import importlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from onceonly.model.errors import OnceOnlyError
from onceonly_verify.check import Check
from onceonly_verify.checks import CHECKS
from onceonly_verify.generated.generator import generated_modules
from onceonly_verify.processes import Tell, side_by_side
from onceonly_verify.results import CheckResult
from onceonly_verify.runs import LIMIT, Progress, run_check

Arcs = frozenset[tuple[int, int]]
"""Pairs of line numbers, one executed after the other. A negative number is the entry or the exit of a function."""
_NEVER = ["(?!)"]
"""A pattern that no line matches: no comment in the code can exclude a line or a branch."""


class CoverageMissing(OnceOnlyError):
    """The library `coverage` is not installed."""


class MeasuredCheck(Struct, frozen=True, kw_only=True):
    """The result of a check, and the arcs that it executed, by module."""

    result: CheckResult
    arcs: Mapping[str, Arcs]


class FunctionLines(Struct, frozen=True, kw_only=True):
    """Statements and branches of one function, by line numbers, as the library reports them."""

    executed_lines: tuple[int, ...]
    missing_lines: tuple[int, ...]
    executed_branches: tuple[tuple[int, int], ...] = ()
    missing_branches: tuple[tuple[int, int], ...] = ()


class _File(Struct, frozen=True):
    functions: Mapping[str, FunctionLines]


class _Report(Struct, frozen=True):
    files: Mapping[str, _File]


def library() -> Any:
    """Return the library `coverage`. Raises CoverageMissing."""
    try:
        return importlib.import_module("coverage")
    except ModuleNotFoundError:
        raise CoverageMissing(
            "--coverage needs the package `coverage`, which is not installed: pip install 'onceonly-verify[coverage]'"
        ) from None


def run_measured(
    checks: Sequence[Check] = CHECKS,
    *,
    limit: int = LIMIT,
    jobs: int = 0,
    progress: Progress | None = None,
    done: Callable[[CheckResult], None] | None = None,
) -> tuple[MeasuredCheck, ...]:
    """Explore checks up to `limit` states each, and measure what they reach. Raises CoverageMissing."""
    library()

    def measured(each: MeasuredCheck) -> None:
        if done:
            done(each.result)

    return side_by_side(_measure, [(check, limit) for check in checks], jobs=jobs, told=progress, done=measured)


def functions_of(
    measured: Iterable[Mapping[str, Arcs]], files: Mapping[str, Path] | None = None
) -> dict[str, dict[str, FunctionLines]]:
    """Add up the arcs of several checks. Returns the functions of each module, by qualified name.

    Modules are imported before measuring starts, so code outside of functions is left out. Raises CoverageMissing.
    """
    files = files or measured_files()
    coverage = _coverage(files)
    data = coverage.get_data()
    data.add_arcs({str(file): () for file in files.values()})  # also a module that no check reaches is reported
    for arcs in measured:
        data.add_arcs({str(files[module]): found for module, found in arcs.items()})
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "coverage.json"
        coverage.json_report(morfs=[str(file) for file in files.values()], outfile=str(written))
        report = msgspec.json.decode(written.read_bytes(), type=_Report)
    by_path = {Path(name).resolve(): found.functions for name, found in report.files.items()}
    return {
        module: {name: lines for name, lines in by_path[file.resolve()].items() if name}
        for module, file in sorted(files.items())
    }


def measured_files() -> dict[str, Path]:
    """Return the source files of the algorithms by the names of their modules, without the package `onceonly`."""
    return {name: Path(str(importlib.import_module(f"onceonly.{name}").__file__)) for name in generated_modules()}


def _measure(task: tuple[Check, int], tell: Tell) -> MeasuredCheck:
    check, limit = task
    files = measured_files()
    coverage = _coverage(files)
    coverage.start()
    try:
        result = run_check(check, limit=limit, progress=tell)
    finally:
        coverage.stop()
    data = coverage.get_data()
    arcs = {module: frozenset(data.arcs(str(file)) or ()) for module, file in files.items()}
    return MeasuredCheck(result=result, arcs={module: found for module, found in arcs.items() if found})


def _coverage(files: Mapping[str, Path]) -> Any:
    """Return a measurement of these files alone. It keeps its data in memory and reads no configuration."""
    names = [str(file) for file in files.values()]
    coverage = library().Coverage(data_file=None, branch=True, config_file=False, include=names)
    for option in ("exclude_lines", "partial_branches", "partial_branches_always"):
        coverage.set_option(f"report:{option}", _NEVER)
    return coverage
