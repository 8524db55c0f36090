"""New code that an operation brings along. It names no local variable of the old code: those it receives through places."""

import ast
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy

from msgspec import Struct

from onceonly_verify.mutations.places import CodePlace
from onceonly_verify.mutations.scope import Definition, DefinitionScope, DoesNotApply, assigned_names, parameters

OLD = "old"
"""What stands for the replaced expression in new code."""
LONGEST = 90
"""Characters of new code that the plain words show."""


class Code(Struct, frozen=True):
    """New code, and the places whose content its names stand for. Other names are parameters, globals, or its own."""

    text: str
    places: tuple[tuple[str, CodePlace], ...] = ()

    @property
    def words(self) -> str:
        line = "; ".join(part.strip() for part in self.text.strip().splitlines()).replace(":;", ":").replace("(;", "(")
        return f"`{line if len(line) <= LONGEST else line[: LONGEST - 3] + '...'}`"

    def statements(self, scope: DefinitionScope) -> list[ast.stmt]:
        """Make statements of it. Raises DoesNotApply."""
        body = ast.parse(self.text).body
        self._note(scope, body)
        return [_Bound(self._content(scope)).visit(each) for each in body]

    def expression(self, scope: DefinitionScope, old: ast.AST | None = None) -> ast.expr:
        """Make an expression of it, in which `old` is the one that it replaces. Raises DoesNotApply."""
        value = ast.parse(self.text, mode="eval").body
        content = self._content(scope) | ({OLD: old} if old is not None else {})
        self._note(scope, [value], frozenset(content))
        found = _Bound(content).visit(value)
        assert isinstance(found, ast.expr)  # noqa: S101 - an expression that is replaced is one
        return found

    def _content(self, scope: DefinitionScope) -> dict[str, ast.AST]:
        return {name: each.one(scope) for name, each in self.places}

    def _note(self, scope: DefinitionScope, nodes: Sequence[ast.AST], given: AbstractSet[str] = frozenset()) -> None:
        given = given | {name for name, _ in self.places}
        parts = [part for node in nodes for part in ast.walk(node)]
        own = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
        for part in parts:
            if isinstance(part, Definition):
                own |= {part.name, *parameters(part)}
            elif isinstance(part, ast.Import | ast.ImportFrom):
                own |= {alias.asname or alias.name for alias in part.names}
        used = {part.id for part in parts if isinstance(part, ast.Name)}
        scope.names.used |= used - own - given
        scope.names.assigned |= assigned_names(nodes) - given


class _Bound(ast.NodeTransformer):
    """Puts content in the place of names."""

    def __init__(self, content: Mapping[str, ast.AST]) -> None:
        self._content = content

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self._content.get(node.id)
        if found is None:
            return node
        found = deepcopy(found)
        if isinstance(found, ast.Name | ast.Attribute | ast.Subscript):
            found.ctx = node.ctx
        elif not isinstance(node.ctx, ast.Load):
            raise DoesNotApply(f"new code assigns to {node.id}, which stands for no variable")
        return found
