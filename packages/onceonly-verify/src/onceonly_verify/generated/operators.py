"""The operators: each lists the mutants that it makes of one definition."""

import ast
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from onceonly_verify.generated.answers import enums, has_default, neutral_answers, passes_on, sequence_fields
from onceonly_verify.generated.definitions import MutableDefinition, called, shown
from onceonly_verify.mutations import edits
from onceonly_verify.mutations.edits import EditOperation
from onceonly_verify.mutations.snippets import Code

COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BOUNDS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


class Candidate(NamedTuple):
    """One mutant of a definition: the operator, the place as its name says it, and the line that a check must reach."""

    operator: str
    what: str
    operation: EditOperation
    line: int


Operator = Callable[[MutableDefinition], Iterator[Candidate]]


def dropped_calls(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop statements that are calls, and take an empty answer for calls that are awaited."""
    for node in found.own:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant | ast.Yield):
            call = node.value.value if isinstance(node.value, ast.Await) else node.value
            what = called(call) if isinstance(call, ast.Call) else shown(node.value)
            yield _edit(found, "drop", what, node, edits.drop, f"drops the call to `{what}`")
        elif isinstance(node, ast.Await) and not isinstance(found.parent(node), ast.Expr):
            yield from _unanswered(found, node)


def _unanswered(found: MutableDefinition, node: ast.Await) -> Iterator[Candidate]:
    if not isinstance(node.value, ast.Call):
        return
    what = called(node.value)
    name = what.rpartition(".")[2]
    values = [ast.unparse(node.value.args[0])] if passes_on(name) and node.value.args else neutral_answers(name)
    for value in values:
        operation = EditOperation(
            change=edits.put_value,
            words=f"takes `{value}` for the answer of `{what}`, without the call,",
            where=found.place(node, what),
            key=value,
        )
        yield Candidate("drop", f"{what} for {value}", operation, found.statement(node).lineno)


def dropped_statements(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop assignments that something else can stand for, `return`, `raise`, `continue` and `break`."""
    assigned: set[str] = set()
    for node in found.own:
        text = shown(node) if isinstance(node, ast.stmt) and not hasattr(node, "body") else ""
        if isinstance(node, ast.AugAssign):
            yield _edit(found, "drop", text, node, edits.drop, f"drops `{text}`")
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Attribute):
            target = node.targets[0]
            is_own = isinstance(target, ast.Attribute) and shown(target.value) == "self"  # without it, the first read fails
            if not is_own and (isinstance(target, ast.Attribute) or target.id in assigned):
                yield _edit(found, "drop", text, node, edits.drop, f"drops `{text}`")
        elif isinstance(node, ast.Return | ast.Raise | ast.Continue | ast.Break) and not _is_last(found, node):
            yield _edit(found, "drop", text, node, edits.drop, f"goes on instead of `{text}`")
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned.add(node.id)


def _is_last(found: MutableDefinition, node: ast.stmt) -> bool:
    return node is getattr(found.scope.root, "body", [None])[-1] and not isinstance(node, ast.Raise)


def swapped_calls(found: MutableDefinition) -> Iterator[Candidate]:
    """Swap neighbours that both call a port, where the second needs no answer of the first."""
    for block in found.blocks():
        for one, two in pairwise(block):
            first, second = _calls(one), _calls(two)
            if not first or not second or _names(one, ast.Store) & _names(two, ast.Load):
                continue
            if isinstance(two, ast.Return | ast.Raise):
                continue
            what = f"{first} and {second}"
            operation = EditOperation(
                change=edits.swap,
                words=f"swaps `{first}` and `{second}`",
                where=found.place(one, first),
                other=found.place(two, second),
            )
            yield Candidate("swap", what, operation, two.lineno)


def _calls(statement: ast.stmt) -> str:
    """Name the first call of a port in a statement; empty if there is none."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return called(statement.value)
    calls = [node.value for node in ast.walk(statement) if isinstance(node, ast.Await) and isinstance(node.value, ast.Call)]
    return called(calls[0]) if calls else ""


def _names(statement: ast.stmt, kind: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, kind)}


def conditions(found: MutableDefinition) -> Iterator[Candidate]:
    """Negate conditions, drop filters and operands."""
    for node in found.own:
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield _negated(found, node.test)
        elif isinstance(node, ast.comprehension):
            for test in node.ifs:
                yield _negated(found, test)
                text = shown(test)
                yield _edit(found, "drop filter", text, test, edits.drop_filter, f"drops the filter `{text}`")
        elif isinstance(node, ast.BoolOp):
            for value in node.values:
                text = f"{shown(value)} of {shown(node)}"
                yield _edit(found, "drop operand", text, value, edits.drop_operand, f"drops the operand `{shown(value)}`")
        elif isinstance(node, ast.BinOp):
            for side, dropped in (("left", node.right), ("right", node.left)):
                text = f"{shown(dropped)} of {shown(node)}"
                words = f"drops `{shown(dropped)}` of `{shown(node)}`"
                yield _edit(found, "drop operand", text, node, edits.keep_side, words, key=side)


def _negated(found: MutableDefinition, test: ast.expr) -> Candidate:
    text = shown(test)
    return _put(found, "negate", text, test, "not old", f"negates the condition `{text}`")


def comparisons(found: MutableDefinition) -> Iterator[Candidate]:
    """Turn comparisons: at their bound, or around where that is not the whole condition."""
    for node in found.own:
        if not isinstance(node, ast.Compare) or len(node.ops) != 1:
            continue
        parent = found.parent(node)
        whole = isinstance(parent, ast.If | ast.IfExp | ast.While) or (
            isinstance(parent, ast.comprehension) and node in parent.ifs
        )
        if whole and not isinstance(node.ops[0], _BOUNDS):
            continue
        turned = TURNED[type(node.ops[0])]
        new = shown(ast.Compare(node.left, [turned()], node.comparators))
        words = f"compares `{new}` instead of `{shown(node)}`"
        yield _edit(found, "turn", shown(node), node, edits.turn, words, key=turned.__name__)


def firsts(found: MutableDefinition) -> Iterator[Candidate]:
    """Take the first element only: of what loops and comprehensions iterate over, and of sequences that are passed on."""
    for node in found.own:
        if isinstance(node, ast.For | ast.comprehension):
            yield _first(found, node.iter)
        elif isinstance(node, ast.Call):
            for each in [*node.args, *(keyword.value for keyword in node.keywords)]:
                if _is_sequence(found, each):
                    yield _first(found, each, f" for {called(node)}")
        elif isinstance(node, ast.Starred) and isinstance(found.parent(node), ast.Tuple | ast.List):
            yield _first(found, node.value, f" in {shown(found.parent(node))}")


def _first(found: MutableDefinition, node: ast.expr, where: str = "") -> Candidate:
    text = shown(node)
    code = "old[:1]" if where else "[*old][:1]"
    if where and not isinstance(node, ast.Name | ast.Attribute | ast.ListComp | ast.List):
        code = "tuple(old)[:1]"
    return _put(found, "first of", text + where, node, code, f"takes the first element only of `{text}`{where}")


def _is_sequence(found: MutableDefinition, node: ast.expr) -> bool:
    if isinstance(node, ast.ListComp):
        return bool(node.generators[0].ifs) or len(node.generators) > 1
    if isinstance(node, ast.Attribute):
        return node.attr in sequence_fields()
    return found.is_sequence(node)


def elements(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop what is put into a list or a tuple, and arguments by name, which have defaults."""
    for node in found.own:
        if isinstance(node, ast.Tuple | ast.List | ast.Set) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            if isinstance(found.parent(node), ast.ExceptHandler) or len(node.elts) < 2:  # noqa: PLR2004 - one is dropped, one stays
                continue
            for each in node.elts:
                if isinstance(each, ast.Starred):
                    what = f"{shown(each)} of {shown(node)}"
                    yield _edit(found, "drop element", what, each, edits.drop_from_display, f"drops `{shown(each)}`")
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg and has_default(f"onceonly.{found.module}", node.func, keyword.arg):
                    what = f"{keyword.arg} for {called(node)}"
                    words = f"does not pass `{keyword.arg}` to `{called(node)}`"
                    yield _edit(found, "drop argument", what, keyword.value, edits.drop_argument, words)


def answers(found: MutableDefinition) -> Iterator[Candidate]:
    """Replace members of enumerations by each other, and numbers and flags by their neighbours."""
    for node in found.own:
        yield from _members(found, node)
        yield from _numbers(found, node)


def members(found: MutableDefinition) -> Iterator[Candidate]:
    """Replace members of enumerations by each other."""
    for node in found.own:
        yield from _members(found, node)


def numbers(found: MutableDefinition) -> Iterator[Candidate]:
    """Replace numbers and flags by their neighbours."""
    for node in found.own:
        yield from _numbers(found, node)


def _members(found: MutableDefinition, node: ast.AST) -> Iterator[Candidate]:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        known = enums(f"onceonly.{found.module}").get(node.value.id, ())
        for other in known if node.attr in known else ():
            if other != node.attr:
                new = f"{node.value.id}.{other}"
                yield _put(found, "put", f"{other} for {shown(node)}", node, new, f"puts `{new}` for `{shown(node)}`")


def _numbers(found: MutableDefinition, node: ast.AST) -> Iterator[Candidate]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        for other_value in _neighbours(node.value):
            text = f"{other_value!r} for {node.value!r} in {shown(_around(found, node))}"
            yield _put(found, "put", text, node, repr(other_value), f"puts `{text}`")


def _neighbours(value: int) -> Sequence[int]:
    if isinstance(value, bool):
        return (not value,)
    return (value + 1, value - 1) if value else (1,)


def _around(found: MutableDefinition, node: ast.AST) -> ast.AST:
    parent = found.parent(node)
    return parent if isinstance(parent, ast.expr | ast.keyword | ast.Return | ast.Assign) else found.statement(node)


def exceptions(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop the classes that an `except` clause names, the whole clause, and what suppresses errors."""
    for node in found.own:
        if isinstance(node, ast.ExceptHandler):
            named = shown(node.type) if node.type else ""
            if isinstance(node.type, ast.Tuple):
                for each in node.type.elts:
                    what = f"{shown(each)} of except {named}"
                    words = f"does not catch `{shown(each)}` in `except {named}`"
                    yield _edit(found, "drop", what, each, edits.drop_element, words, line=node.body[0].lineno)
            words = f"drops the handler of `{named}`"
            yield _edit(found, "drop", f"except {named}", node, edits.drop_handler, words, line=node.body[0].lineno)
        elif isinstance(node, ast.With | ast.AsyncWith):
            text = shown(node.items[0].context_expr)
            yield _edit(found, "drop with", text, node, edits.drop_with, f"drops `with {text}`")


OPERATORS: tuple[Operator, ...] = (
    dropped_calls,
    dropped_statements,
    swapped_calls,
    conditions,
    comparisons,
    firsts,
    elements,
    answers,
    exceptions,
)


def _edit(  # noqa: PLR0913, PLR0917 - the parts of a candidate
    found: MutableDefinition,
    operator: str,
    what: str,
    node: ast.AST,
    change: Callable[..., None],
    words: str,
    *,
    key: str = "",
    line: int = 0,
) -> Candidate:
    operation = EditOperation(change=change, words=words, where=found.place(node, what), key=key)
    return Candidate(operator, what, operation, line or found.statement(node).lineno)


def _put(  # noqa: PLR0917 - the parts of a candidate
    found: MutableDefinition, operator: str, what: str, node: ast.expr, code: str, words: str
) -> Candidate:
    operation = EditOperation(change=edits.replace, words=words, where=found.place(node, what), code=Code(code))
    return Candidate(operator, what, operation, found.statement(node).lineno)
