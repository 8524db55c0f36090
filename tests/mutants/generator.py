"""All mutants of a module under names that stay: the function, what is changed in it, and a number among equal ones."""

import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from onceonly_verify.generated.generator import PREFIX
from onceonly_verify.generated.generator import mutants_of as generated
from onceonly_verify.mutations import CodeChange, mutated
from tests.mutants.operators import OPERATORS


class Mutant(NamedTuple):
    """One mutant of a module. `line` is the statement that a rule must reach; 0 for a constant of the module."""

    name: str
    module: str
    line: int
    change: CodeChange


def mutants_of(module: str) -> Iterator[Mutant]:
    """Generate the mutants of all functions and constants of a module."""
    for each in generated(module.removeprefix("onceonly."), source_of(module), OPERATORS):
        yield Mutant(each.name.removeprefix(PREFIX), module, each.line, each.change)


def codes_of(mutant: Mutant) -> dict[str, CodeType]:
    """Compile a mutant of a function. Return the code of the outermost function that it changes, by its qualified name."""
    compiled = compile(mutated(source_of(mutant.module), [mutant.change]), path_of(mutant.module), "exec")
    codes = function_codes(compiled)
    parts = mutant.change.function.split(".")
    name = next(name for end in range(1, len(parts) + 1) if (name := ".".join(parts[:end])) in codes)
    return {name: codes[name]}


def function_codes(code: CodeType) -> dict[str, CodeType]:
    """Return the code of all functions of a module, by their qualified names."""
    found: dict[str, CodeType] = {}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            if each.co_flags & OPTIMIZED:
                found[each.co_qualname] = each
            found |= function_codes(each)
    return found


OPTIMIZED = 1
"""The flag of the code of functions, which the code of classes has not."""


def path_of(module: str) -> str:
    """Return the path of a module's source."""
    path = importlib.import_module(module).__file__
    assert path is not None
    return path


@cache
def source_of(module: str) -> str:
    """Read a module's source."""
    return Path(path_of(module)).read_text(encoding="utf-8")
