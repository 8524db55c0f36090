"""The generator: every mutant of the algorithms' modules that the operators make, under names that stay."""

import ast
import importlib
import inspect
import pkgutil
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import cache

from msgspec import Struct

from onceonly_verify.generated.definitions import MutableDefinition, definitions
from onceonly_verify.generated.operators import OPERATORS, Candidate, Operator
from onceonly_verify.mutations import CodeChange
from onceonly_verify.mutations.scope import DefinitionScope, ScopeNames

PACKAGE = "algorithms"
PREFIX = "generated: "


class GeneratedMutant(Struct, frozen=True, kw_only=True):
    """One generated mutant. A check can tell it from the shipping code only if it reaches `line` of the module."""

    name: str
    change: CodeChange
    line: int

    @property
    def words(self) -> str:
        """Return in one line what it does to the shipping code."""
        return self.change.words

    @property
    def module(self) -> str:
        return self.change.module.rpartition(".")[2]


def generated_modules() -> tuple[str, ...]:
    """Name the modules that mutants are made of, without the package `onceonly`."""
    path = importlib.import_module(f"onceonly.{PACKAGE}").__path__
    return tuple(sorted(f"{PACKAGE}.{each.name}" for each in pkgutil.iter_modules(path)))


@cache
def generated_mutants() -> tuple[GeneratedMutant, ...]:
    """Generate all mutants of the installed algorithms, in the order of the source."""
    sources = {name: inspect.getsource(importlib.import_module(f"onceonly.{name}")) for name in generated_modules()}
    return tuple(mutant for name, source in sources.items() for mutant in mutants_of(name, source))


def mutants_of(module: str, source: str, operators: Sequence[Operator] = OPERATORS) -> Iterator[GeneratedMutant]:
    """Generate the mutants of one module. Of those that make the same code, the first one stays."""
    tree = ast.parse(source)
    made: set[tuple[str, str]] = set()
    taken: Counter[str] = Counter()
    for found in definitions(module, tree):
        made.add((found.name, _dump(found.scope)))
        for candidate in _candidates(found, operators):
            change = CodeChange(module, found.name, (candidate.operation,))
            code = _code(tree, found, candidate)
            if code in made:
                continue
            made.add(code)
            place = f"{module}.{found.name}" if found.name else module
            name = f"{PREFIX}{place}: {candidate.operator} {candidate.what}"
            taken[name] += 1
            yield GeneratedMutant(name=f"{name} #{taken[name]}", change=change, line=candidate.line if found.name else 0)


def _code(tree: ast.Module, found: MutableDefinition, candidate: Candidate) -> tuple[str, str]:
    """Apply a candidate to a copy of its definition only: that is a hundred times as fast as to the whole source."""
    top = found.scope.path[1] if found.name else None
    scope = DefinitionScope(
        ast.Module([deepcopy(node) if node is top or top is None else node for node in tree.body], []), found.name, ScopeNames()
    )
    candidate.operation.apply(scope)
    return found.name, _dump(scope)


def _dump(scope: DefinitionScope) -> str:
    return ast.dump(scope.root)


def _candidates(found: MutableDefinition, operators: Sequence[Operator]) -> list[Candidate]:
    every = [candidate for operator in operators for candidate in operator(found)]
    return sorted(every, key=lambda candidate: candidate.line)
