"""What a measurement prints, for persons and for programs."""

from typing import Any

from onceonly.cli.output import show, show_table
from onceonly_verify.coverage.places import ModuleCoverage
from onceonly_verify.coverage.suite import CoverageFindings

COLUMNS = ("module", "lines", "lines covered", "branches", "branches covered", "percent", "listed", "not listed")


def coverage_json(found: CoverageFindings) -> dict[str, Any]:
    """Return the figures for programs."""
    return {
        **_numbers(found.total),
        "complete": found.whole,
        "missing": [{"place": name, "reason": found.listed.get(name)} for name in found.total.missing],
        "listed_but_covered": list(found.covered),
        "listed_but_gone": list(found.gone),
        "modules": {name: _numbers(each) for name, each in found.modules.items()},
    }


def show_coverage(found: CoverageFindings) -> None:
    """Print the table by module, then the places that no check reaches."""
    rows = [_row(name, each, found) for name, each in found.modules.items()]
    which = "the checks" if found.whole else "these checks alone"
    show_table(
        f"Lines and branches in functions of the algorithms that {which} reach",
        COLUMNS,
        [*rows, _row("all", found.total, found)],
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


def _numbers(each: ModuleCoverage) -> dict[str, Any]:
    return {
        "lines": each.lines,
        "covered_lines": each.covered_lines,
        "branches": each.branches,
        "covered_branches": each.covered_branches,
        "percent": round(each.percent, 1),
    }


def _row(name: str, each: ModuleCoverage, found: CoverageFindings) -> tuple[object, ...]:
    listed = sum(place in found.listed for place in each.missing)
    return (name, *_numbers(each).values(), listed, len(each.missing) - listed)
