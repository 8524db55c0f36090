"""Mutants are operations on syntax trees: they survive new names and formatting, and fail loudly where their target is gone."""

import ast
import importlib
import inspect
import pickle
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest

from onceonly_verify import MUTANTS, Mutant
from onceonly_verify.mutations import CodeChange, DoesNotApply, EditOperation, change, mutated
from onceonly_verify.mutations import operations as do
from onceonly_verify.mutations.places import (
    CodePlace,
    answer,
    argument,
    assigned,
    attempt,
    branch,
    call,
    comparison,
    condition,
    each,
    element,
    guard,
    handler,
    index_of,
    iterated,
    left,
    loop,
    lower_bound,
    named,
    otherwise,
    point,
    produced,
    raised,
    receiver,
    result_of,
    returned,
    right,
    root,
    source_of,
    statement,
    then,
)
from tests import ROOT

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MODULES = sorted({part.module for mutant in MUTANTS for part in mutant.changes})
MUCH_MUTATED = {
    "algorithms.blame",
    "algorithms.deaths",
    "algorithms.settlement",
    "algorithms.outbox",
    "adapters.memory.store",
    "documents.store",
    "documents.transactions",
}
EACH_MODULE = [pytest.param(name, marks=[pytest.mark.slow] if name in MUCH_MUTATED else []) for name in MODULES]


@cache
def source(module: str) -> str:
    """Read a module under check."""
    return inspect.getsource(importlib.import_module(module if module.startswith("onceonly_verify.") else f"onceonly.{module}"))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_applies_to_the_shipping_code_and_changes_it(mutant: Mutant) -> None:
    """Every module and every function that it names; each line of its words is one line."""
    for module in {part.module for part in mutant.changes}:
        tree = mutated(source(module), of_module(mutant, module))
        assert ast.dump(tree) != ast.dump(ast.parse(source(module)))
        compile(tree, module, "exec")
    assert mutant.words
    assert "\n" not in mutant.words


@pytest.mark.parametrize("module", EACH_MODULE)
def test_new_names_and_other_formatting_change_no_mutant(module: str) -> None:
    """Every local variable has another name, comments and line breaks are gone: each mutant applies and means the same."""
    before = ast.parse(source(module))
    renamed = ast.unparse(Renamed(lambda name, _: f"{name}_renamed").visit(before))
    assert renamed.count("_renamed") > 2
    for mutant in MUTANTS:
        if changes := of_module(mutant, module):
            assert numbered(mutated(renamed, changes)) == numbered(mutated(source(module), changes)), mutant.name


def test_a_mutant_can_be_sent_to_another_process() -> None:
    """It is data."""
    assert pickle.loads(pickle.dumps(MUTANTS)) == MUTANTS  # noqa: S301 - our own


def test_the_example_in_the_documentation_applies() -> None:
    """As it stands there."""
    page = (ROOT / "docs" / "explanation" / "mutants.md").read_text()
    code = page.split("## Write a mutant")[1].split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - our own documentation
    shown = [value for value in names.values() if isinstance(value, CodeChange)]
    assert len(shown) == 3
    for each_shown in shown:
        mutated(source(each_shown.module), [each_shown])


CODE = '''
async def serve(items, ports):
    """Serve."""
    claimed = await ports.store.begin(items)  # as quoted in no mutant
    try:
        sent = [item for item in claimed.new if item.due and item.pending]
        await ports.transport.send(sent, ports, late=claimed.late)
    except (Failed, Conflict):
        claimed.abandon()
        raise
    if claimed.fenced is None:
        raise Failed("fenced")
    else:
        await ports.store.keep(claimed)
    for item in sent[1:]:
        await ports.transport.ack(item, (claimed, 1))
        await ports.run("after-ack", item)
    first, last = sent[0], items[-1].id
    return first, last
'''
KEEP = "    await ports.store.keep(claimed)\n"
ACK = "        await ports.transport.ack(item, (claimed, 1))\n"
CONFLICT = """
class Conflict:
    key: str = ""

    def again(self):
        return self.key
"""


@pytest.mark.parametrize(
    ("operation", "before", "after"),
    [
        (do.drop("abandon"), "        claimed.abandon()\n", ""),
        (do.drop(raised("Failed")), "        raise Failed('fenced')\n", "        pass\n"),
        (
            do.drop(branch(condition("fenced"))),
            f"    if claimed.fenced is None:\n        raise Failed('fenced')\n    else:\n    {KEEP}",
            "    await ports.store.keep(claimed)\n",
        ),
        (do.drop(call("keep", within=otherwise(raised("Failed")))), "    else:\n        await ports.store.keep(claimed)\n", ""),
        (do.drop_operand(named("pending")), "item.due and item.pending", "item.due"),
        (do.drop_filter(condition("pending")), " if item.due and item.pending", ""),
        (do.drop_element(named("Conflict")), "except (Failed, Conflict)", "except Failed"),
        (do.drop_argument("send", 1), "(sent, ports, late=", "(sent, late="),
        (do.drop_argument("send", "late"), ", late=claimed.late", ""),
        (
            do.swap("transport.ack", point("after-ack")),
            "        await ports.transport.ack(item, (claimed, 1))\n        await ports.run('after-ack', item)\n",
            "        await ports.run('after-ack', item)\n        await ports.transport.ack(item, (claimed, 1))\n",
        ),
        (
            do.move_before("keep", point("after-ack")),
            f"    else:\n    {KEEP}    for item in sent[1:]:\n{ACK}",
            f"    for item in sent[1:]:\n{ACK}    {KEEP}",
        ),
        (
            do.insert_before(attempt("send"), "await ports.transport.ack(taken)", taken=result_of("begin")),
            "    try:\n",
            "    await ports.transport.ack(claimed)\n    try:\n",
        ),
        (
            do.insert_after("keep", "taken = ()", taken=source_of(argument("send", 0))),
            None,
            DoesNotApply,
        ),
        (
            do.insert_after("keep", "taken = ()", taken=argument("send", 0)),
            "        await ports.store.keep(claimed)\n",
            "        await ports.store.keep(claimed)\n        sent = ()\n",
        ),
        (do.insert_first("items = items[:1]"), "    claimed =", "    items = items[:1]\n    claimed ="),
        (
            do.insert_first("await ports.store.keep(items)", inside=handler("Conflict")),
            "        claimed.abandon()\n",
            "        await ports.store.keep(items)\n        claimed.abandon()\n",
        ),
        (do.replace(receiver("abandon"), "ports.store"), "        claimed.abandon", "        ports.store.abandon"),
        (do.replace(right(comparison("fenced")), "ports"), "fenced is None", "fenced is ports"),
        (do.replace(left(comparison("fenced")), "old.token"), "claimed.fenced is", "claimed.fenced.token is"),
        (do.replace(lower_bound(iterated(loop("sent"))), "old + 1"), None, DoesNotApply),
        (do.replace(lower_bound(iterated(loop(argument("send", 0)))), "old + 1"), "sent[1:]", "sent[1 + 1:]"),
        (do.replace(index_of(assigned(named("items", nth=1))), "1"), None, DoesNotApply),
        (do.replace(index_of(element(assigned(named("id")), 0)), "-1"), "sent[0]", "sent[-1]"),
        (do.replace(produced(argument("send", 0)), "old.id"), None, DoesNotApply),
        (do.replace(produced(source_of(argument("send", 0))), "old.id"), "[item for", "[item.id for"),
        (do.replace(returned(), "one", one=result_of(named("id"))), "return (first, last)", "return last"),
        (do.replace_answer("begin", "items"), "await ports.store.begin(items)", "items"),
        (do.replace_statement("keep", "items.clear()"), "await ports.store.keep(claimed)", "items.clear()"),
        (do.keep_only(named("due"), of=condition("due")), "item.due and item.pending", "item.due"),
        (do.compare(comparison("fenced"), "is not", "Failed"), "is None", "is not Failed"),
        (do.always(guard(raised("Failed"))), "claimed.fenced is None", "True"),
        (do.never(condition("fenced")), "claimed.fenced is None", "False"),
        (do.negate(condition("fenced")), "claimed.fenced is None", "not claimed.fenced is None"),
        (do.first_only(iterated(source_of(argument("send", 0)))), "in claimed.new ", "in claimed.new[:1] "),
        (do.add_argument("begin", "", "ports"), "begin(items)", "begin(items, ports)"),
        (
            do.add_argument("begin", "late", "one", one=each(loop(argument("send", 0)))),
            "begin(items)",
            "begin(items, late=item)",
        ),
        (do.add_element(argument("ack", 1), 0, "ports"), "(claimed, 1)", "(ports, claimed, 1)"),
        (do.ignore_answer("begin"), "claimed = await", "await"),
        (
            do.swallow("keep", "Failed", "claim.clear()", claim=argument("keep", 0)),
            "        await ports.store.keep(claimed)\n",
            "        try:\n            await ports.store.keep(claimed)\n        except Failed:\n            claimed.clear()\n",
        ),
        (
            do.add_handler(attempt("send"), "Failed", "return ()"),
            "    except (Failed",
            "    except Failed:\n        return ()\n    except (Failed",
        ),
        (
            do.enclose("keep", "ports.lock()"),
            "        await ports.store.keep(claimed)\n",
            "        with ports.lock():\n            await ports.store.keep(claimed)\n",
        ),
        (do.add_parameter("late=0"), "serve(items, ports)", "serve(items, ports, late=0)"),
        (do.add_parameter("late", before="ports"), "serve(items, ports)", "serve(items, late, ports)"),
        (do.add_parameter("*, late=0"), "serve(items, ports)", "serve(items, ports, *, late=0)"),
        (do.drop(statement("begin")), "    claimed = await ports.store.begin(items)\n", ""),
        (do.replace(argument(call("ack", within=then(condition("fenced"))), 0), "1"), None, DoesNotApply),
        (do.replace(root(named("late")), "ports"), "late=claimed.late", "late=ports.late"),
        (do.replace(answer(call("keep", having="store")), "items"), "await ports.store.keep(claimed)", "items"),
    ],
    ids=lambda value: value.words if isinstance(value, EditOperation) else "",
)
def test_an_operation_does_what_it_says(operation: EditOperation, before: str | None, after: str | type[DoesNotApply]) -> None:
    """Nothing else changes."""
    code = f"from errors import Failed\n{CODE}"
    if before is None or not isinstance(after, str):
        with pytest.raises(DoesNotApply):
            mutated(code, [change("code", "serve", operation)])
        return
    plain = ast.unparse(ast.parse(code))
    assert plain.count(before) == 1
    assert ast.unparse(mutated(code, [change("code", "serve", operation)])) == plain.replace(before, after)


def test_classes_and_modules_can_be_added_to() -> None:
    """Fields, methods, functions, and what they import."""
    changes = [
        change("code", "Conflict", do.add_field("late: int = 0", after="key"), do.define("def once(self): return self.late")),
        change("code", "", do.imports("errors", "Failed"), do.define("def fail(): raise Failed")),
        change("code", "Conflict.again", do.replace_body("return fail()")),
    ]
    names = {"errors": "Failed"}
    tree = mutated(f"import {', '.join(names)}\n{CONFLICT}", changes)
    text = ast.unparse(tree)
    assert text.splitlines()[0] == "from errors import Failed"
    assert "key: str = ''\n    late: int = 0\n" in text
    assert "return fail()" in text
    assert "return self.key" not in text
    assert text.endswith("def fail():\n    raise Failed")


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        pytest.param(do.drop("keeps"), "the call to `keeps` is there 0 times", id="gone"),
        pytest.param(do.drop(named("items")), "the use of `items` is there 2 times", id="not unique"),
        pytest.param(do.drop(call("ack", nth=1)), "the second call to `ack` is there 0 times", id="not so many"),
        pytest.param(do.drop("begin"), "its answer is used", id="used"),
        pytest.param(do.drop_argument("begin", 1), "no second argument of the call to `begin`", id="no such argument"),
        pytest.param(do.drop_filter(condition("fenced")), "not the condition of a comprehension", id="no comprehension"),
        pytest.param(do.swap("begin", "keep"), "not in one block", id="two blocks"),
        pytest.param(do.keep_only("begin", of=condition("fenced")), "not a part of", id="no part"),
        pytest.param(do.compare(condition("due"), "is", "None"), "not a single comparison", id="no comparison"),
        pytest.param(do.ignore_answer("keep"), "is not assigned", id="no answer"),
        pytest.param(do.insert_first("claimed.abandon()"), "new code uses claimed", id="a local variable quoted"),
        pytest.param(
            do.insert_first("claimed = 1"), "new code overwrites the local variable claimed", id="a local overwritten"
        ),
        pytest.param(do.swallow("keep", "Unknown"), "new code uses Unknown", id="not imported"),
        pytest.param(do.add_parameter("late", before="lost"), "no parameter `lost`", id="no such parameter"),
        pytest.param(do.add_field("late: int", after="lost"), "0 fields `lost`", id="no such field"),
    ],
)
def test_an_operation_whose_target_is_not_there_does_not_apply(operation: EditOperation, words: str) -> None:
    """The message names the module, the function, and what is missing."""
    with pytest.raises(DoesNotApply) as refused:
        mutated(CODE, [change("code", "serve", operation)])
    assert str(refused.value).startswith("code serve: ")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        (call("ack"), "drops the call to `ack` in `finish`"),
        (call("ack", nth=-1), "drops the last call to `ack` in `finish`"),
        (call("retry", passing="held"), "drops the call to `retry` that passes `held` in `finish`"),
        (point("commit"), "drops the crash point `commit` in `finish`"),
        (branch(condition("fenced")), "drops the `if` with the condition on `fenced` in `finish`"),
    ],
)
def test_a_change_is_told_in_plain_words(where: CodePlace, words: str) -> None:
    """For `onceonly verify --list`."""
    assert change("algorithms.outbox", "finish", do.drop(where)).words == words


def of_module(mutant: Mutant, module: str) -> list[CodeChange]:
    """Return the changes of one module."""
    return [part for part in mutant.changes if part.module == module]


class Renamed(ast.NodeTransformer):
    """Renames the local variables of every function, but no parameters; those of a comprehension are its own."""

    def __init__(self, name: Callable[[str, int], str]) -> None:
        """Use this to make a name of an old one and a number."""
        self._name = name
        self._number = 0
        self._parameters: set[str] = set()
        self._names: list[dict[str, str]] = []

    def visit(self, node: ast.AST) -> ast.AST:
        """Rename what is below a node, in the scope that it opens."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not self._names:  # a nested one shares the names
            self._number = 0
            self._parameters = {part.arg for part in ast.walk(node) if isinstance(part, ast.arg)}
            return self._within(node, stored(node))
        if isinstance(node, COMPREHENSIONS) and self._names:
            return self._within(node, targets(node))
        if isinstance(node, ast.Name):
            node.id = self._new(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            node.name = self._new(node.name)
        elif isinstance(node, ast.Nonlocal):
            node.names = [self._new(name) for name in node.names]
        return self.generic_visit(node)

    def _within(self, node: ast.AST, names: Iterable[str]) -> ast.AST:
        fresh: dict[str, str] = {}
        for name in names:
            if name not in self._parameters and name not in fresh:
                fresh[name] = self._name(name, self._number)
                self._number += 1
        self._names.append(fresh)
        self.generic_visit(node)
        self._names.pop()
        return node

    def _new(self, name: str) -> str:
        return next((names[name] for names in reversed(self._names) if name in names), name)


def targets(node: ast.AST) -> list[str]:
    """Return the variables of a comprehension."""
    names = [part for generator in getattr(node, "generators", ()) for part in ast.walk(generator.target)]
    return [part.id for part in names if isinstance(part, ast.Name)]


def stored(node: ast.AST) -> list[str]:
    """Return the variables that a node assigns, without those of comprehensions, in the order in which they appear."""
    if isinstance(node, ast.comprehension):
        return stored(node.iter)
    own = [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
    own += [node.name] if isinstance(node, ast.ExceptHandler) and node.name else []
    return own + [name for child in ast.iter_child_nodes(node) for name in stored(child)]


def numbered(tree: ast.Module) -> str:
    """Return the text of a module whose local variables are numbered as they appear."""
    return ast.unparse(Renamed(lambda _, number: f"local_{number}").visit(tree))
