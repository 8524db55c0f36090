"""Edits that only generated mutants make. Those of `mutations/edits.py` do the rest."""

import ast
from typing import cast

from onceonly_verify.mutations.edits import EditOperation
from onceonly_verify.mutations.scope import DefinitionScope, DoesNotApply


def drop_from_display(scope: DefinitionScope, operation: EditOperation) -> None:
    """Remove an element of a tuple, a list or a set that is written out."""
    node = operation.node(scope)
    parent = scope.parent(node)
    if not isinstance(parent, ast.Tuple | ast.List | ast.Set):
        raise DoesNotApply(f"{operation.words}: it is not an element")
    parent.elts.remove(cast("ast.expr", node))


def drop_handler(scope: DefinitionScope, operation: EditOperation) -> None:
    """Remove an `except` clause, and the `try` statement with the last one."""
    node = operation.node(scope)
    parent = scope.parent(node)
    if not isinstance(node, ast.ExceptHandler) or not isinstance(parent, ast.Try):
        raise DoesNotApply(f"{operation.words}: it is not an except clause")
    if len(parent.handlers) > 1 or parent.finalbody:
        parent.handlers.remove(node)
    else:
        _unwrap(scope, parent, [*parent.body, *parent.orelse])


def drop_with(scope: DefinitionScope, operation: EditOperation) -> None:
    """Run the body of a `with` statement without it."""
    node = operation.node(scope)
    if not isinstance(node, ast.With | ast.AsyncWith):
        raise DoesNotApply(f"{operation.words}: it is not a with statement")
    _unwrap(scope, node, node.body)


def turn(scope: DefinitionScope, operation: EditOperation) -> None:
    """Change the operator of a comparison; `key` is the name of its new class."""
    node = operation.node(scope)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise DoesNotApply(f"{operation.words}: it is not a single comparison")
    node.ops = [getattr(ast, str(operation.key))()]


def keep_side(scope: DefinitionScope, operation: EditOperation) -> None:
    """Replace an expression by one of its fields, whose name is `key`."""
    node = operation.node(scope)
    scope.put(node, getattr(node, str(operation.key)))


def _unwrap(scope: DefinitionScope, statement: ast.stmt, body: list[ast.stmt]) -> None:
    block = scope.block(statement)
    at = block.index(statement)
    block[at : at + 1] = body


def put_value(scope: DefinitionScope, operation: EditOperation) -> None:
    """Replace an expression by the code in `key`, which names what the function knows there."""
    scope.put(operation.node(scope), ast.parse(str(operation.key), mode="eval").body)
