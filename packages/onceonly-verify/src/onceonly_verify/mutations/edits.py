"""What an operation does to a syntax tree. Each edit raises DoesNotApply if the target has another form than it needs."""

import ast
from collections.abc import Callable
from typing import TypeVar, cast

from msgspec import Struct

from onceonly_verify.mutations.places import CodePlace
from onceonly_verify.mutations.scope import Definition, DefinitionScope, DoesNotApply, Function
from onceonly_verify.mutations.snippets import Code

_Some = TypeVar("_Some")


def _required(value: _Some | None) -> _Some:
    if value is None:
        raise TypeError("this operation needs a place or code")
    return value


class EditOperation(Struct, frozen=True, kw_only=True):
    """One change of a definition. It holds data only, so it can be compared, stored and sent to another process."""

    change: Callable[[DefinitionScope, "EditOperation"], None]
    words: str = ""
    """What it does, in plain words; empty for a definition that other operations use."""
    where: CodePlace | None = None
    other: CodePlace | None = None
    code: Code | None = None
    key: str | int = ""

    def apply(self, scope: DefinitionScope) -> None:
        """Change the tree in place. Raises DoesNotApply."""
        self.change(scope, self)

    def node(self, scope: DefinitionScope) -> ast.AST:
        return _required(self.where).one(scope)

    def statements(self, scope: DefinitionScope) -> list[ast.stmt]:
        return _required(self.code).statements(scope)

    def expression(self, scope: DefinitionScope, old: ast.AST | None = None) -> ast.expr:
        return _required(self.code).expression(scope, old)


def drop(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    statement = scope.statement(node)
    if node is not statement:
        value = statement.value if isinstance(statement, ast.Expr) else None
        if node not in (value, getattr(value, "value", None)):
            raise DoesNotApply(f"{_required(operation.where).words} is not a statement of its own: its answer is used")
    block, at = _block(scope, statement)
    if isinstance(statement, ast.If):
        block[at : at + 1] = statement.orelse
    else:
        del block[at]
    owner = scope.parent(statement)
    if not block and block is getattr(owner, "body", None):
        block.append(ast.Pass())


def drop_operand(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    both = cast("ast.BoolOp", scope.parent(node))
    both.values.remove(cast("ast.expr", node))
    if len(both.values) == 1:
        scope.put(both, both.values[0])


def drop_filter(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    parent = scope.parent(node)
    if not isinstance(parent, ast.comprehension):
        raise DoesNotApply(f"{_required(operation.where).words} is not the condition of a comprehension")
    parent.ifs.remove(cast("ast.expr", node))


def drop_element(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    parent = scope.parent(node)
    if not isinstance(parent, ast.Tuple):
        raise DoesNotApply(f"{_required(operation.where).words} is not an element of a tuple")
    parent.elts.remove(cast("ast.expr", node))
    if len(parent.elts) == 1 and isinstance(scope.parent(parent), ast.ExceptHandler):
        scope.put(parent, parent.elts[0])


def drop_argument(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    parent = scope.parent(node)
    if isinstance(parent, ast.keyword):
        cast("ast.Call", scope.parent(parent)).keywords.remove(parent)
    else:
        cast("ast.Call", parent).args.remove(cast("ast.expr", node))


def swap(scope: DefinitionScope, operation: EditOperation) -> None:
    """Swap two statements of a block."""
    one, two = _both(scope, operation)
    block, first = _block(scope, one)
    other, second = _block(scope, two)
    if block is not other or first == second:
        raise DoesNotApply("what is to be swapped is not in one block")
    block[first], block[second] = two, one


def move_before(scope: DefinitionScope, operation: EditOperation) -> None:
    one, two = _both(scope, operation)
    scope.block(one).remove(one)
    block, at = _block(scope, two)
    block.insert(at, one)


def insert_before(scope: DefinitionScope, operation: EditOperation) -> None:
    block, at = _block(scope, scope.statement(operation.node(scope)))
    block[at:at] = operation.statements(scope)


def insert_after(scope: DefinitionScope, operation: EditOperation) -> None:
    block, at = _block(scope, scope.statement(operation.node(scope)))
    block[at + 1 : at + 1] = operation.statements(scope)


def insert_first(scope: DefinitionScope, operation: EditOperation) -> None:
    """Add statements at the beginning, behind the docstring."""
    owner = operation.node(scope) if operation.where else scope.root
    if not isinstance(owner, Function | ast.ExceptHandler):
        raise DoesNotApply("only a function and an except clause have a beginning")
    at = int(isinstance(owner, Function) and ast.get_docstring(owner) is not None)
    owner.body[at:at] = operation.statements(scope)


def replace(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    if not isinstance(node, ast.expr):
        raise DoesNotApply(f"{_required(operation.where).words} is not an expression")
    scope.put(node, operation.expression(scope, node))


def replace_statement(scope: DefinitionScope, operation: EditOperation) -> None:
    block, at = _block(scope, scope.statement(operation.node(scope)))
    block[at : at + 1] = operation.statements(scope)


def replace_body(scope: DefinitionScope, operation: EditOperation) -> None:
    if not isinstance(scope.root, Function):
        raise DoesNotApply("only a function has a body to replace")
    at = int(ast.get_docstring(scope.root) is not None)
    scope.root.body[at:] = operation.statements(scope)


def keep_only(scope: DefinitionScope, operation: EditOperation) -> None:
    """Replace an expression by a part of it."""
    node, kept = operation.node(scope), _required(operation.other).one(scope)
    if not any(part is kept for part in ast.walk(node)):
        raise DoesNotApply(f"{_required(operation.other).words} is not a part of {_required(operation.where).words}")
    scope.put(node, kept)


def compare(scope: DefinitionScope, operation: EditOperation) -> None:
    """Change the operator and the right side of a comparison."""
    node = operation.node(scope)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise DoesNotApply(f"{_required(operation.where).words} is not a single comparison")
    new = ast.parse(_required(operation.code).text, mode="eval").body
    if not isinstance(new, ast.Compare):
        raise DoesNotApply(f"{_required(operation.code).words} is not a comparison")
    node.ops, node.comparators = new.ops, new.comparators


def add_argument(scope: DefinitionScope, operation: EditOperation) -> None:
    node, value = operation.node(scope), operation.expression(scope)
    if not isinstance(node, ast.Call):
        raise DoesNotApply(f"{_required(operation.where).words} is not a call")
    if operation.key:
        node.keywords.append(ast.keyword(arg=str(operation.key), value=value))
    else:
        node.args.append(value)


def add_element(scope: DefinitionScope, operation: EditOperation) -> None:
    node, value = operation.node(scope), operation.expression(scope)
    if not isinstance(node, ast.Tuple):
        raise DoesNotApply(f"{_required(operation.where).words} is not a tuple")
    node.elts.insert(int(operation.key), value)


def ignore_answer(scope: DefinitionScope, operation: EditOperation) -> None:
    """Keep a call, and assign its answer to nothing."""
    statement = scope.statement(operation.node(scope))
    if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
        raise DoesNotApply(f"the answer of {_required(operation.where).words} is not assigned")
    block, at = _block(scope, statement)
    block[at] = ast.Expr(statement.value)


def swallow(scope: DefinitionScope, operation: EditOperation) -> None:
    """Put a statement into a `try` statement."""
    statement = scope.statement(operation.node(scope))
    block, at = _block(scope, statement)
    block[at] = ast.Try(body=[statement], handlers=[_except(scope, operation)], orelse=[], finalbody=[])


def add_handler(scope: DefinitionScope, operation: EditOperation) -> None:
    """Add an `except` clause."""
    node = operation.node(scope)
    if not isinstance(node, ast.Try):
        raise DoesNotApply(f"{_required(operation.where).words} is not a try statement")
    node.handlers.insert(0, _except(scope, operation))


def _except(scope: DefinitionScope, operation: EditOperation) -> ast.ExceptHandler:
    scope.names.used.add(str(operation.key))
    error = ast.Name(id=str(operation.key), ctx=ast.Load())
    return ast.ExceptHandler(type=error, name=None, body=operation.statements(scope))


def enclose(scope: DefinitionScope, operation: EditOperation) -> None:
    """Put a statement into a `with` statement."""
    statement = scope.statement(operation.node(scope))
    block, at = _block(scope, statement)
    block[at] = ast.With(items=[ast.withitem(context_expr=operation.expression(scope))], body=[statement])


def add_parameter(scope: DefinitionScope, operation: EditOperation) -> None:
    if not isinstance(scope.root, Function):
        raise DoesNotApply("only a function has parameters")
    old, new = scope.root.args, _signature(_required(operation.code).text)
    old.kwonlyargs += new.kwonlyargs
    old.kw_defaults += new.kw_defaults
    names = [each.arg for each in old.args]
    if operation.key and operation.key not in names:
        raise DoesNotApply(f"there is no parameter `{operation.key}`")
    at = names.index(str(operation.key)) if operation.key else len(names)
    old.args[at:at] = new.args
    old.defaults += new.defaults


def add_field(scope: DefinitionScope, operation: EditOperation) -> None:
    fields = [
        node
        for node in scope.root.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == operation.key
    ]
    if len(fields) != 1:
        raise DoesNotApply(f"there are {len(fields)} fields `{operation.key}`; one is required")
    at = scope.root.body.index(fields[0]) + 1
    while at < len(scope.root.body) and _is_docstring(scope.root.body[at]):
        at += 1
    scope.root.body[at:at] = ast.parse(_required(operation.code).text).body


def define(scope: DefinitionScope, operation: EditOperation) -> None:
    new = operation.statements(scope)
    taken = {node.name for node in scope.root.body if isinstance(node, Definition)}
    if again := taken & {node.name for node in new if isinstance(node, Definition)}:
        raise DoesNotApply(f"{', '.join(again)} is defined already")
    scope.root.body += new


def imports(scope: DefinitionScope, operation: EditOperation) -> None:
    body = scope.root.body
    at = next(number for number, node in enumerate(body) if isinstance(node, ast.Import | ast.ImportFrom))
    body[at:at] = ast.parse(_required(operation.code).text).body


def _signature(text: str) -> ast.arguments:
    (function,) = ast.parse(f"def _({text}): pass").body
    return cast("ast.FunctionDef", function).args


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _both(scope: DefinitionScope, operation: EditOperation) -> tuple[ast.stmt, ast.stmt]:
    return scope.statement(operation.node(scope)), scope.statement(_required(operation.other).one(scope))


def _block(scope: DefinitionScope, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
    block = scope.block(statement)
    return block, block.index(statement)


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
