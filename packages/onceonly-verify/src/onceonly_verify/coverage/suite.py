"""What a measurement comes to: the coverage of each module, compared with the list of places that no check reaches."""

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from importlib.resources import files

from msgspec import Struct

from onceonly_verify.coverage.measurement import Arcs, FunctionLines, functions_of
from onceonly_verify.generated.lists import parse

_Headed = ast.stmt | ast.ExceptHandler | ast.match_case
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


class ModuleCoverage(Struct, frozen=True, kw_only=True):
    """What the checks reach of one module.

    `missing` names the places without coverage. A line that is not reached stands for the branches to it and from it.
    """

    lines: int
    covered_lines: int
    branches: int
    covered_branches: int
    places: frozenset[str]
    missing: tuple[str, ...]

    @property
    def percent(self) -> float:
        """Return the share of the lines and branches that the checks reach."""
        return share(self.covered_lines + self.covered_branches, self.lines + self.branches)


def share(part: int, whole: int) -> float:
    """Return a percentage. Rounded to one digit, it is 100 only if nothing is missing."""
    return 100.0 if part == whole else min(100 * part / whole, 99.9)


def coverage_of(module: str, source: str, functions: Mapping[str, FunctionLines]) -> ModuleCoverage:
    """Count the lines and branches of a module, and name those that are missing, in the order of the source."""
    texts = dict(_statements(ast.parse(source)))
    found = [place for name, lines in functions.items() for place in _places(f"{module}.{name}", lines, texts)]
    return ModuleCoverage(
        lines=sum(len(each.executed_lines) + len(each.missing_lines) for each in functions.values()),
        covered_lines=sum(len(each.executed_lines) for each in functions.values()),
        branches=sum(len(each.executed_branches) + len(each.missing_branches) for each in functions.values()),
        covered_branches=sum(len(each.executed_branches) for each in functions.values()),
        places=frozenset(name for name, _ in found),
        missing=tuple(name for name, is_missing in found if is_missing),
    )


def _places(function: str, lines: FunctionLines, texts: Mapping[int, str]) -> Iterator[tuple[str, bool]]:
    """Name each line and each branch of a function, and tell whether it is to be listed as missing."""
    missing = {*lines.missing_lines}
    branches = [*lines.executed_branches, *lines.missing_branches]
    targets: Sequence[tuple[int, ...]] = [*((line,) for line in (*lines.executed_lines, *missing)), *branches]
    taken: Counter[str] = Counter()
    for place in sorted(targets):
        text = " -> ".join(texts[line] if line > 0 else "the end" for line in place)
        taken[text] += 1
        name = f"{function}: {text}" + (f" #{taken[text]}" if taken[text] > 1 else "")
        is_branch = len(place) > 1
        yield name, place in lines.missing_branches and not missing & {*place} if is_branch else place[0] in missing


def _statements(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Write the first line of each statement in one form, whatever its layout is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Headed):
            line = child.pattern.lineno if isinstance(child, ast.match_case) else child.lineno
            yield line, _header(child)
            yield from ((each.lineno, f"@{ast.unparse(each)}") for each in getattr(child, "decorator_list", ()))
        yield from _statements(child)


def _header(node: _Headed) -> str:
    header = copy(node)
    for name in _BLOCKS:
        if hasattr(header, name):
            setattr(header, name, [])
    return ast.unparse(header).strip().removesuffix(":")


class CoverageFindings(Struct, frozen=True, kw_only=True):
    """The coverage of each module. `whole` is whether all checks ran: otherwise more is missing than the list contains."""

    modules: Mapping[str, ModuleCoverage]
    listed: Mapping[str, str]
    whole: bool = True

    @property
    def total(self) -> ModuleCoverage:
        each = self.modules.values()
        return ModuleCoverage(
            lines=sum(one.lines for one in each),
            covered_lines=sum(one.covered_lines for one in each),
            branches=sum(one.branches for one in each),
            covered_branches=sum(one.covered_branches for one in each),
            places=frozenset(name for one in each for name in one.places),
            missing=tuple(name for one in each for name in one.missing),
        )

    @property
    def unlisted(self) -> tuple[str, ...]:
        """Return the places that no check reaches, and that are not in the list."""
        return tuple(name for name in self.total.missing if name not in self.listed)

    @property
    def covered(self) -> tuple[str, ...]:
        """Return the listed places that a check reaches."""
        total = self.total
        return tuple(name for name in self.listed if name in total.places and name not in total.missing)

    @property
    def gone(self) -> tuple[str, ...]:
        """Return the listed places that are not in the code."""
        places = self.total.places
        return tuple(name for name in self.listed if name not in places)

    @property
    def complaints(self) -> list[str]:
        """Return what is wrong. A part of the checks cannot show that a place is not reached."""
        found = [
            ("no check reaches, and uncovered.txt does not list", self.unlisted if self.whole else ()),
            ("uncovered.txt lists, but a check reaches", self.covered),
            ("uncovered.txt lists, but the code does not contain", self.gone),
        ]
        return [f"coverage: {words}: {'; '.join(names)}" for words, names in found if names]


@cache
def uncovered() -> Mapping[str, str]:
    """Return why no check reaches these lines and branches."""
    return parse((files(__package__) / "uncovered.txt").read_text("utf-8"), prefix="")


def findings_of(
    measured: Iterable[Mapping[str, Arcs]], *, whole: bool = True, listed: Mapping[str, str] | None = None
) -> CoverageFindings:
    """Add up what checks reach. Raises CoverageMissing."""
    modules = {
        name: coverage_of(name, inspect.getsource(importlib.import_module(f"onceonly.{name}")), functions)
        for name, functions in functions_of(measured).items()
    }
    return CoverageFindings(modules=modules, listed=uncovered() if listed is None else listed, whole=whole)
