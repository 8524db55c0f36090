"""A constant that is a duration has its unit in its name, so that nobody adds seconds to milliseconds."""

import ast
import re
from collections.abc import Iterator

from tests import ROOT

FOLDERS = (ROOT / "src", ROOT / "packages")
UNITS = re.compile(r"(^|_)(SECONDS|MS|MINUTES|HOURS|DAYS)(_|$)")
SAYS_A_UNIT = re.compile(r"^(milli)?(seconds|minutes|hours)\b(?! since)", re.IGNORECASE)
WAITING = {"sleep", "timeout", "call_later", "wait_for"}
"""Functions whose first argument, or second, is a number of seconds."""


def constants(tree: ast.Module, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Return the constants of a module that are numbers, each with what is written beside and below it."""
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not isinstance(statement.value, ast.expr):
            continue
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        is_text = any(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in ast.walk(statement.value))
        is_number = any(
            isinstance(node, ast.Constant) and isinstance(node.value, int | float) for node in ast.walk(statement.value)
        )
        comment = lines[statement.lineno - 1].partition("  # ")[2]
        is_explained = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        below = str(following.value.value) if is_explained else ""  # type: ignore[union-attr]
        for name in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(name, ast.Name) and name.id.isupper() and is_number and not is_text:
                yield name.id, comment or below


def test_a_constant_that_is_a_duration_has_its_unit_in_its_name() -> None:
    """What is described as seconds, and what a function waits for."""
    nameless = set()
    for path in (found for folder in FOLDERS for found in folder.rglob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        described = dict(constants(tree, text.splitlines()))
        nameless |= {
            (path.name, name) for name, words in described.items() if SAYS_A_UNIT.match(words) and not UNITS.search(name)
        }
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            names = [argument.id for argument in call.args if isinstance(argument, ast.Name)] if called in WAITING else []
            nameless |= {(path.name, name) for name in names if name.isupper() and not UNITS.search(name)}
    assert nameless == set()
