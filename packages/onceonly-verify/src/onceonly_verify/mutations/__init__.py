"""Changes of a module's syntax tree: what makes a mutant of the shipping code.

An operation is addressed by module, function and what the code does there ("the call to `ack`", "the condition on `fenced`").
It quotes no old code, so mutants survive the formatting of the code and new names of local variables. Where its target is gone
or no longer unique, it raises DoesNotApply.
"""

import ast
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from onceonly_verify.mutations.edits import EditOperation
from onceonly_verify.mutations.scope import DefinitionScope, DoesNotApply, ScopeNames, names_before

__all__ = ["CodeChange", "DoesNotApply", "EditOperation", "change", "mutated"]


class CodeChange(Struct, frozen=True):
    """Operations on one definition of a module under check. `function` is its qualified name; the module's own is empty."""

    module: str
    function: str
    operations: tuple[EditOperation, ...]

    @property
    def words(self) -> str:
        """Return in plain words what it does; what it only prepares for other changes is left out."""
        words = ", ".join(operation.words for operation in self.operations if operation.words)
        return f"{words} in `{self.function}`" if words and self.function else words


def change(module: str, function: str, *operations: EditOperation) -> CodeChange:
    """Return a change of one definition; `module` is named without the package `onceonly`, or with `onceonly_verify`."""
    return CodeChange(module, function, operations)


def mutated(source: str, changes: Iterable[CodeChange]) -> ast.Module:
    """Apply changes of one module to its source, in their order. Raises DoesNotApply."""
    tree = ast.parse(source)
    names: dict[str, ScopeNames] = {}
    for each in changes:
        with _at(each.module, each.function):
            if each.function not in names:
                names[each.function] = names_before(DefinitionScope(tree, each.function, ScopeNames()))
            for operation in each.operations:
                operation.apply(DefinitionScope(tree, each.function, names[each.function]))
    for function, noted in names.items():
        with _at(each.module, function):
            DefinitionScope(tree, function, noted).check_names()
    return ast.fix_missing_locations(tree)


@contextmanager
def _at(module: str, function: str) -> Iterator[None]:
    try:
        yield
    except DoesNotApply as error:
        raise DoesNotApply(f"{module} {function or 'module'}: {error}".strip()) from error
