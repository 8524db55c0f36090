"""What a measurement comes to: the coverage of each module, compared with the list of places that no check reaches."""

import importlib
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from msgspec import Struct

from onceonly_verify.coverage.measuring import Arcs, functions_of
from onceonly_verify.coverage.places import ModuleCoverage, coverage_of
from onceonly_verify.generated.listed import parse


class CoverageFindings(Struct, frozen=True, kw_only=True):
    """The coverage of each module. `whole` is whether all checks ran: otherwise more is missing than the list contains."""

    modules: Mapping[str, ModuleCoverage]
    listed: Mapping[str, str]
    whole: bool = True

    @property
    def total(self) -> ModuleCoverage:
        """Add the modules up."""
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
        """Say what is wrong. A part of the checks cannot show that a place is not reached."""
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
