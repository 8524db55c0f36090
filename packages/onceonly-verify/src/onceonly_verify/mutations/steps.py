"""Steps from one node to another: from a call to its argument, from a value to the variable that receives it.

Each step returns the nodes that it leads to; none where there is no such step.
"""

import ast
from collections.abc import Sequence

from onceonly_verify.mutations.scope import COMPREHENSIONS, DefinitionScope

Key = int | str | None


def argument(_scope: DefinitionScope, node: ast.AST, key: Key) -> Sequence[ast.AST]:
    """Return the argument at this position, or of this name."""
    if not isinstance(node, ast.Call):
        return ()
    if isinstance(key, int):
        return node.args[key : key + 1]
    return [keyword.value for keyword in node.keywords if keyword.arg == key]


def element(_scope: DefinitionScope, node: ast.AST, key: Key) -> Sequence[ast.AST]:
    return node.elts[key : key + 1] if isinstance(node, ast.Tuple | ast.List) and isinstance(key, int) else ()


def receiver(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the object whose method is called."""
    return (node.func.value,) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ()


def answer(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the `await` of a call, or the call itself."""
    parent = scope.parent(node)
    return (parent,) if isinstance(parent, ast.Await) else (node,)


def _assignment(scope: DefinitionScope, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    found = scope.statement(node)
    if isinstance(found, ast.Assign) and len(found.targets) == 1:
        return found.targets[0], found.value
    return (found.target, found.value) if isinstance(found, ast.AnnAssign) and found.value is not None else None


def result(scope: DefinitionScope, node: ast.AST, key: Key) -> Sequence[ast.AST]:
    """Return the variable that receives this value."""
    if (found := _assignment(scope, node)) is None:
        return ()
    target, value = found
    if isinstance(target, ast.Tuple):
        if isinstance(value, ast.Tuple):
            above = {part for pair in scope.ancestors(node) for part in pair}
            key = next((number for number, part in enumerate(value.elts) if part in above), None)
        return target.elts[key : key + 1] if isinstance(key, int) else ()
    return (target,) if isinstance(target, ast.Name) else ()


def source(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the value that is assigned to this variable, if it is assigned once."""
    name = node.id if isinstance(node, ast.Name) else ""
    pairs = [_assignment(scope, each) for each in scope.nodes() if isinstance(each, ast.Assign | ast.AnnAssign)]
    values = [value for pair in pairs if pair for target, value in [pair] if isinstance(target, ast.Name) and target.id == name]
    return values if len(values) == 1 else ()


def assigned(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    found = _assignment(scope, node)
    return (found[1],) if found else ()


def statement(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    return (scope.statement(node),)


def _if(scope: DefinitionScope, node: ast.AST, *fields: str) -> ast.If | None:
    for child, parent in scope.ancestors(node):
        if isinstance(parent, ast.If):
            there = [each for name in fields for each in _listed(getattr(parent, name))]
            if child in there:
                return parent
    return None


def _listed(value: ast.AST | Sequence[ast.AST]) -> Sequence[ast.AST]:
    return (value,) if isinstance(value, ast.AST) else value


def guard(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the condition of the closest `if` whose body this is in."""
    found = _if(scope, node, "body")
    return (found.test,) if found else ()


def branch(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the closest `if` whose condition this is in."""
    found = _if(scope, node, "test")
    return (found,) if found else ()


def then(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the statements that run if the condition holds."""
    found = _if(scope, node, "test")
    return found.body if found else ()


def otherwise(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the statements that run if the condition does not hold."""
    found = _if(scope, node, "test", "body")
    return found.orelse if found else ()


def attempt(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the closest `try` whose body this is in."""
    tries = (parent for child, parent in scope.ancestors(node) if isinstance(parent, ast.Try) and child in parent.body)
    found = next(tries, None)
    return (found,) if found else ()


def operand(scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the closest operand of `and` or `or`."""
    found = next((child for child, parent in scope.ancestors(node) if isinstance(parent, ast.BoolOp)), None)
    return (found,) if found else ()


def left(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    return (node.left,) if isinstance(node, ast.Compare | ast.BinOp) else ()


def right(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    if isinstance(node, ast.Compare):
        return node.comparators
    return (node.right,) if isinstance(node, ast.BinOp) else ()


def root(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the variable that attributes and indexes are read from."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return (node,) if isinstance(node, ast.Name) else ()


def index(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    return (node.slice,) if isinstance(node, ast.Subscript) else ()


def lower_bound(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    bounds = node.slice if isinstance(node, ast.Subscript) else None
    return (bounds.lower,) if isinstance(bounds, ast.Slice) and bounds.lower is not None else ()


def _comprehensions(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, (*COMPREHENSIONS, ast.For, ast.AsyncFor)):
        return [node]
    return [found for child in ast.iter_child_nodes(node) for found in _comprehensions(child)]


def _first_generator(node: ast.AST) -> ast.comprehension | ast.For | None:
    found = _comprehensions(node)
    if len(found) != 1:
        return None
    if isinstance(found[0], ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return found[0].generators[0]
    return found[0] if isinstance(found[0], ast.For) else None


def iterated(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return what the comprehension or the loop iterates over."""
    found = _first_generator(node)
    return (found.iter,) if found else ()


def each(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    """Return the variable of the comprehension or the loop."""
    found = _first_generator(node)
    return (found.target,) if found and isinstance(found.target, ast.Name) else ()


def produced(_scope: DefinitionScope, node: ast.AST, _key: Key) -> Sequence[ast.AST]:
    found = _comprehensions(node)
    return [each.elt for each in found if isinstance(each, ast.ListComp | ast.SetComp | ast.GeneratorExp)][:2]
