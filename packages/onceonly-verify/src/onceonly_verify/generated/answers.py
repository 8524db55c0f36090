"""What the ports and the algorithms answer, by their annotations: values that may stand for an answer of a dropped call."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from enum import Enum
from functools import cache, partial

from msgspec import Struct
from msgspec.structs import fields, replace

PACKAGES = ("onceonly.ports", "onceonly.algorithms")
STRUCTS = (*PACKAGES, "onceonly.model")
SEQUENCES = ("tuple[", "Sequence[", "list[", "Works", "Batch")
_EMPTY = (
    (("tuple[", "Sequence[", "list["), ("()",)),
    (("Mapping[", "dict["), ("{}",)),
    (("frozenset[", "AbstractSet[", "Set["), ("frozenset()",)),
    (("bool",), ("False", "True")),
    (("int",), ("0",)),
)
_OWN = ("BatchReport", "RunResult", "UnitResult", "RelayResult")
"""Results of the algorithms that may be empty."""


def neutral_answers(name: str) -> tuple[str, ...]:
    """Return expressions that a call of this name could have answered without doing anything."""
    found: dict[str, None] = {}
    for annotation in sorted(_annotations().get(name, ())):
        if annotation.endswith("| None"):
            found["None"] = None
        for beginnings, values in _EMPTY:
            if annotation.startswith(beginnings):
                found.update(dict.fromkeys(values))
        if annotation in _OWN:
            found[f"{annotation}()"] = None
    return tuple(found)


def passes_on(name: str) -> bool:
    """Return whether a call of this name answers what it is given, prepared: its first argument has its answer's type."""
    return name == "prepare"


def is_sequence(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is that of a sequence whose first element can be taken."""
    return annotation is not None and ast.unparse(annotation).startswith(SEQUENCES)


@cache
def sequence_fields() -> frozenset[str]:
    """Return the names of the fields and properties that are sequences in every class that has them."""
    kinds: dict[str, set[bool]] = {}
    for tree in _trees(STRUCTS):
        for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
            for node in cls.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    kinds.setdefault(node.target.id, set()).add(is_sequence(node.annotation))
                elif isinstance(node, ast.FunctionDef) and node.decorator_list:
                    kinds.setdefault(node.name, set()).add(is_sequence(node.returns))
    return frozenset(name for name, each in kinds.items() if each == {True})


def has_default(module: str, function: ast.expr, parameter: str) -> bool:
    """Return whether a call may leave a parameter out. Without one, the call would fail for a reason that types show."""
    called = vars(importlib.import_module(module)).get(function.id) if isinstance(function, ast.Name) else None
    if isinstance(called, type) and issubclass(called, Struct):
        return any(field.name == parameter and not field.required for field in fields(called))
    if not callable(called) or called in (replace, partial):
        return False
    found = inspect.signature(called).parameters.get(parameter)
    return found is not None and found.default is not inspect.Parameter.empty


@cache
def enums(module: str) -> dict[str, tuple[str, ...]]:
    """Return the members of the enumerations that a module names."""
    names = vars(importlib.import_module(module))
    found = {name: value for name, value in names.items() if isinstance(value, type) and issubclass(value, Enum)}
    return {name: tuple(value.__members__) for name, value in found.items() if value.__members__}


@cache
def _annotations() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for tree in _trees(PACKAGES):
        for node in ast.walk(tree):
            if isinstance(node, ast.AsyncFunctionDef) and node.returns is not None:
                found.setdefault(node.name, set()).add(ast.unparse(node.returns).strip("'\""))
    return {name: frozenset(each) for name, each in found.items()}


def _trees(packages: tuple[str, ...]) -> Iterator[ast.Module]:
    for package in packages:
        for each in pkgutil.iter_modules(importlib.import_module(package).__path__):
            yield ast.parse(inspect.getsource(importlib.import_module(f"{package}.{each.name}")))
