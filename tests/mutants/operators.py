"""The operators for adapters: those of the checker that fit any code, and others for SQL, for options and for constants."""

import ast
import re
from collections.abc import Callable, Iterator

from onceonly_verify.generated import operators as general
from onceonly_verify.generated.definitions import MutableDefinition, called, shown
from onceonly_verify.generated.operators import Candidate, Operator
from onceonly_verify.mutations import edits
from onceonly_verify.mutations.edits import EditOperation
from onceonly_verify.mutations.scope import DefinitionScope

CLAUSES = frozenset({"order_by", "limit", "with_for_update", "distinct", "execution_options"})
OPTIONS = frozenset(
    {
        "arguments",
        "committing",
        "definite",
        "isolation",
        "isolated",
        "limit",
        "lingers",
        "locked",
        "mandatory",
        "multiple",
        "only",
        "refused",
        "requeue",
        "skip_locked",
        "unknown",
        "within",
    }
)
"""Arguments by name that have a default, and that change what a statement or an error means."""
WORDS = (
    (r" FOR UPDATE| FOR SHARE| FOR KEY SHARE", ""),
    (r" SKIP LOCKED| NOWAIT", ""),
    (r" ON CONFLICT( DO NOTHING)?", ""),
    (r"ACCESS EXCLUSIVE", "ACCESS SHARE"),
    (r"(?<!ACCESS )EXCLUSIVE", "ROW EXCLUSIVE"),
    (r"REPEATABLE READ|SERIALIZABLE", "READ COMMITTED"),
    (r"IMMEDIATE", "DEFERRED"),
    (r" ORDER BY [a-z_]+", ""),
    (r" WHERE ", " WHERE true OR "),
    (r" AND ", " OR "),
)
"""Edits of SQL that is written as text."""


def conditions_of_where(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop each condition of `.where()`."""
    for node in found.own:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "where":
            for each in node.args:
                yield _candidate(found, ("drop condition", shown(each)), each, _drop_condition)


def clauses(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop ORDER BY, LIMIT and FOR UPDATE."""
    for node in found.own:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CLAUSES:
            what = f".{node.func.attr}({', '.join(map(shown, node.args))})"
            yield _candidate(found, ("drop clause", what), node, _drop_clause)


def options(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop arguments by name that have a default, and flip flags that are passed by name."""
    for node in found.own:
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            what = f"{keyword.arg}={shown(keyword.value)} of {called(node)}"
            if keyword.arg in OPTIONS:
                yield _candidate(found, ("drop option", what), keyword.value, edits.drop_argument)
            if isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, bool):
                yield _candidate(found, ("flip", what), keyword.value, _put, key=repr(not keyword.value.value))


def own_state(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop assignments to attributes of `self` behind the constructor, and deletions."""
    for node in found.own:
        is_stored = isinstance(node, ast.Assign) and all(isinstance(each, ast.Attribute) for each in node.targets)
        if (is_stored and not found.name.endswith("__init__")) or isinstance(node, ast.Delete):
            yield _candidate(found, ("drop", shown(node)), node, edits.drop)


def texts(found: MutableDefinition) -> Iterator[Candidate]:
    """Weaken SQL in texts."""
    for node in found.own:
        if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            continue
        if node.value.isupper() or re.search(r"\b[A-Z]{4,}\b", node.value):
            for pattern, words in WORDS:
                weaker = re.sub(pattern, words, node.value)
                if weaker != node.value:
                    what = f"{' '.join(node.value.split())[:40]!r}, {pattern}"
                    yield _candidate(found, ("weaken", what), node, _put, key=repr(weaker))


def entries(found: MutableDefinition) -> Iterator[Candidate]:
    """Drop entries of mappings that are written out, such as the arguments of a queue."""
    for node in found.own:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                name = f"**{shown(value)}" if key is None else shown(key)
                what = f"{name} of {shown(found.statement(node))}"
                yield _candidate(found, ("drop entry", what), value, _drop_entry)


def flags(found: MutableDefinition) -> Iterator[Candidate]:
    """Turn the flags in a module's constants. A number there is a limit, which moves by one without breaking a promise."""
    for node in found.own if not found.name else ():
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            what = f"{node.value} in {shown(found.statement(node))}"
            yield _candidate(found, ("flip", what), node, _put, key=repr(not node.value))


OPERATORS: tuple[Operator, ...] = (
    general.dropped_calls,
    general.dropped_statements,
    general.conditions,
    general.comparisons,
    general.firsts,
    general.elements,
    general.members,
    general.exceptions,
    conditions_of_where,
    clauses,
    options,
    own_state,
    texts,
    entries,
    flags,
)


def _candidate(
    found: MutableDefinition, name: tuple[str, str], node: ast.AST, change: Callable[..., None], *, key: str = ""
) -> Candidate:
    operator, what = name
    operation = EditOperation(change=change, words=f"{operator} {what}", where=found.place(node, what), key=key)
    return Candidate(operator, what, operation, found.statement(node).lineno)


def _put(scope: DefinitionScope, operation: EditOperation) -> None:
    scope.put(operation.node(scope), ast.parse(str(operation.key), mode="eval").body)


def _drop_condition(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    call = scope.parent(node)
    assert isinstance(node, ast.expr)
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    call.args.remove(node)
    if not call.args:
        scope.put(call, call.func.value)


def _drop_clause(scope: DefinitionScope, operation: EditOperation) -> None:
    call = operation.node(scope)
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Attribute)
    scope.put(call, call.func.value)


def _drop_entry(scope: DefinitionScope, operation: EditOperation) -> None:
    node = operation.node(scope)
    entry = scope.parent(node)
    assert isinstance(node, ast.expr)
    assert isinstance(entry, ast.Dict)
    at = entry.values.index(node)
    del entry.keys[at], entry.values[at]
