"""A definition of the shipping code as the operators see it: its nodes with their numbers, and how to name them."""

import ast
from collections.abc import Iterator, Mapping

from onceonly_verify.generated.answers import is_sequence
from onceonly_verify.mutations.places import CodePlace
from onceonly_verify.mutations.scope import Definition, DefinitionScope, DoesNotApply, Function, ScopeNames


class NodePlace(CodePlace, frozen=True, kw_only=True):
    """A node by its number in the walk of its definition. Mutants are generated anew from each source, so it always fits."""

    number: int
    text: str

    @property
    def words(self) -> str:
        """Return the words that the generator found for it."""
        return self.text

    def find(self, scope: DefinitionScope) -> list[ast.AST]:
        """Find its node. Raises DoesNotApply."""
        nodes = list(scope.nodes())
        if self.number >= len(nodes):
            raise DoesNotApply(f"{self.text} is number {self.number} of {len(nodes)} nodes: generate the mutant again")
        return [nodes[self.number]]


LONGEST = 72
"""Characters of code in a name."""


class MutableDefinition:
    """One function, or the assignments of a module. Nested functions are definitions of their own."""

    def __init__(self, module: str, tree: ast.Module, name: str) -> None:
        """Number its nodes as the operations will find them."""
        self.module = module
        self.name = name
        self.scope = DefinitionScope(tree, name, ScopeNames())
        self.numbers: Mapping[ast.AST, int] = {node: number for number, node in enumerate(self.scope.nodes())}
        self.own = list(self._own_nodes())
        self._sequences = self._local_sequences()

    def place(self, node: ast.AST, text: str) -> NodePlace:
        return NodePlace(number=self.numbers[node], text=text)

    def parent(self, node: ast.AST) -> ast.AST:
        """Return the node that contains this one."""
        return self.scope.parent(node)

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains this node."""
        return self.scope.statement(node)

    def is_sequence(self, node: ast.AST) -> bool:
        """Return whether an expression is a sequence, as far as annotations and assignments tell."""
        return isinstance(node, ast.Name) and node.id in self._sequences

    def blocks(self) -> Iterator[list[ast.stmt]]:
        if isinstance(self.scope.root, Function):
            yield self.scope.root.body
        for node in self.own:
            for field in ("body", "orelse", "finalbody"):
                block = getattr(node, field, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    yield block

    def _own_nodes(self) -> Iterator[ast.AST]:
        for statement in self.scope.root.body:
            if isinstance(self.scope.root, ast.Module) and not isinstance(statement, ast.Assign):
                continue
            yield from _without_definitions(statement)

    def _local_sequences(self) -> frozenset[str]:
        found = set()
        if isinstance(self.scope.root, Function):
            every = self.scope.root.args
            found |= {each.arg for each in [*every.args, *every.kwonlyargs] if is_sequence(each.annotation)}
        for node in self.own:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if isinstance(node.value, ast.List | ast.ListComp | ast.Tuple):
                    found.add(node.targets[0].id)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_sequence(node.annotation):
                found.add(node.target.id)
        return frozenset(found)


def definitions(module: str, tree: ast.Module) -> Iterator[MutableDefinition]:
    """List the definitions of a module that mutants are made of: its own assignments first, then every function."""
    yield MutableDefinition(module, tree, "")
    for name in _functions(tree, ""):
        yield MutableDefinition(module, tree, name)


def shown(node: ast.AST) -> str:
    """Write code in one line; the same however it is formatted."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def called(node: ast.Call) -> str:
    """Name what is called: `store.forget` for `ports.store.forget`."""
    return ".".join(shown(node.func).split(".")[-2:])


def _functions(node: ast.AST, above: str) -> Iterator[str]:
    for child in getattr(node, "body", ()):
        if isinstance(child, Definition):
            if isinstance(child, Function):
                yield above + child.name
            yield from _functions(child, f"{above}{child.name}.")


def _without_definitions(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, Definition):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if child is not getattr(node, "annotation", None):
            yield from _without_definitions(child)
