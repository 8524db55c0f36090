"""The part of a module that an operation changes: a function, a class, or the whole module, as a syntax tree."""

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onceonly.model.errors import OnceOnlyError

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class DoesNotApply(OnceOnlyError):
    """The target of a mutation is missing or not unique: the code has changed, so the mutant must change as well."""


@dataclass
class ScopeNames:
    """The names that new code of one function uses and assigns. They are checked when all operations are done."""

    locals: frozenset[str] = frozenset()
    """The local variables before any change, without those of comprehensions. New code does not overwrite them."""
    hidden: frozenset[str] = frozenset()
    """All of them. Nothing is found by these names, and new code reaches them through places only."""
    used: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)


class DefinitionScope:
    """One definition inside its module. `name` is its qualified name; the empty name is the module."""

    def __init__(self, module: ast.Module, name: str, names: ScopeNames) -> None:
        """Find the definition. Raises DoesNotApply."""
        self.module = module
        self.names = names
        self.path: list[ast.Module | Definition] = [module]
        for part in name.split(".") if name else ():
            found = [node for node in self.path[-1].body if isinstance(node, Definition) and node.name == part]
            if len(found) != 1:
                raise DoesNotApply(f"there are {len(found)} definitions of {name!r}; one is required")
            self.path.append(found[0])
        self.root = self.path[-1]
        self._parents = {child: node for node in ast.walk(self.root) for child in ast.iter_child_nodes(node)}

    def nodes(self, within: Sequence[ast.AST] = ()) -> Iterator[ast.AST]:
        """Walk the body, or the given nodes, from top to bottom."""
        for node in within or self.root.body:
            yield from _walk(node)

    def ancestors(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Return the pairs of a node and its parent, from the inside out, up to the root."""
        while node is not self.root:
            yield node, self._parents[node]
            node = self._parents[node]

    def parent(self, node: ast.AST) -> ast.AST:
        """Return the node that contains this one."""
        return self._parents[node]

    def statement(self, node: ast.AST) -> ast.stmt:
        """Return the innermost statement that contains this node."""
        if isinstance(node, ast.stmt):
            return node
        return next(parent for _, parent in self.ancestors(node) if isinstance(parent, ast.stmt))

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """Return the list of statements that this one is in."""
        for _, value in ast.iter_fields(self._parents[statement]):
            if isinstance(value, list) and statement in value:
                return value
        raise AssertionError(ast.dump(statement))

    def put(self, old: ast.AST, new: ast.AST) -> None:
        parent = self._parents[old]
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and old in value:
                value[value.index(old)] = new

    def check_names(self) -> None:
        """Check that new code names only parameters, functions, globals and what it assigns itself. Raises DoesNotApply."""
        known = {*dir(builtins), *self.names.assigned, "__name__"}
        for node in self.path:
            known |= _globals(node) if isinstance(node, ast.Module) else parameters(node)
        known |= {node.name for node in ast.walk(self.root) if isinstance(node, Definition)}
        if unknown := self.names.used - known:
            raise DoesNotApply(f"new code uses {', '.join(sorted(unknown))}: neither a parameter, a global nor assigned by it")
        if taken := self.names.assigned & self.names.locals:
            raise DoesNotApply(f"new code overwrites the local variable {', '.join(sorted(taken))}")


def names_before(scope: DefinitionScope) -> ScopeNames:
    """Note the local variables of a function that is about to be changed."""
    if not isinstance(scope.root, Function):
        return ScopeNames()
    given = {name for node in scope.path if isinstance(node, Function) for name in parameters(node)}
    nodes = [node for each in scope.root.body for node in ast.walk(each)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    kept = assigned_names(scope.root.body)
    return ScopeNames(frozenset(kept), frozenset((stored | kept) - given))


def parameters(function: Definition) -> set[str]:
    """Return the names of a function's parameters; a class has none."""
    if isinstance(function, ast.ClassDef):
        return set()
    found = function.args
    every = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
    return {each.arg for each in every if each is not None}


def assigned_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the variables that these nodes assign, without those of comprehensions."""
    inner = {
        name
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.comprehension)
        for name in ast.walk(each.target)
    }
    names = {
        each.id
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each not in inner
    }
    return names | {
        each.name for node in nodes for each in ast.walk(node) if isinstance(each, ast.ExceptHandler) and each.name is not None
    }


def is_named(scope: DefinitionScope, node: ast.AST, name: str) -> bool:
    """Return whether a node is this name, or ends with it: `store.forget` is also `ports.store.forget`."""
    return f".{_dotted(scope, node)}".endswith(f".{name}")


def _dotted(scope: DefinitionScope, node: ast.AST) -> str:
    """Return `a.b.c` for a name or an attribute. A local variable, and what is neither, is a question mark."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(scope, node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) and node.id not in scope.names.hidden else "?"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _walk(child)


def _globals(module: ast.Module) -> set[str]:
    names = assigned_names([node for node in module.body if not isinstance(node, Definition)])
    names |= {node.name for node in module.body if isinstance(node, Definition)}
    imports = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return names | {alias.asname or alias.name for node in imports for alias in node.names}
