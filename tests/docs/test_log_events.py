"""Log events: each has a constant message, and `docs/reference/log-events.md` lists it with its level and its fields."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from itertools import chain
from typing import NamedTuple

import pytest

from tests import ROOT

FOLDERS = (ROOT / "src", ROOT / "packages")
LEVELS = {"debug", "info", "warning", "error", "critical"}
METHODS = LEVELS | {"exception", "log", "warn", "fatal"}
LOGGER = re.compile(r"^logging$|(^|\.)(_|_\w+_)?log(ger)?$|getLogger\([^()]*\)\)?$")
UPPER_CASE = {"ALARM"}
"""Words of a message that are not in lower case."""


class Event(NamedTuple):
    """A log event, as a call logs it or as the page describes it. No level: the call computes it."""

    message: str
    level: str
    fields: AbstractSet[str]


def calls(node: ast.AST, scope: ast.AST) -> Iterator[tuple[ast.Call, ast.AST]]:
    """Find the calls that log below a node, each with the function that it is in."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and (is_logging(child.func) or is_failure_log(child)) and not logs_given_event(child):
            yield child, scope
        yield from calls(child, child if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else scope)


def is_logging(node: ast.AST) -> bool:
    """Decide whether this is a method of a logger that writes an entry."""
    return isinstance(node, ast.Attribute) and node.attr in METHODS and bool(LOGGER.search(ast.unparse(node.value)))


def is_failure_log(call: ast.Call) -> bool:
    """Decide whether this makes a `FailureLog`, which logs the event that it is given, at a level that it computes."""
    return ast.unparse(call.func) == "FailureLog"


def logs_given_event(call: ast.Call) -> bool:
    """Decide whether this is the call of `FailureLog` itself."""
    return "self._event" in map(ast.unparse, call.args)


def hidden(tree: ast.Module) -> Iterator[str]:
    """Find loggers and their methods under other names, whose calls `calls` cannot find."""
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if is_logging(node) and node not in called:
            yield f"the method of a logger is not called directly: {ast.unparse(node)}"
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = [ast.unparse(each) for each in (node.targets if isinstance(node, ast.Assign) else [node.target])]
            is_logger = ast.unparse(node.value).endswith(")") and LOGGER.search(ast.unparse(node.value))
            if is_logger and not all(map(LOGGER.search, targets)):
                yield f"a logger is not named _log, log, _logger or logger: {', '.join(targets)}"


def event(call: ast.Call, scope: ast.AST, tree: ast.Module) -> Event | str:
    """Read the event from a call; gives what is wrong with it otherwise."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    values = call.args[method == "log" or is_failure_log(call) :]
    if len(values) != 1 or not isinstance(values[0], ast.Constant) or not isinstance(values[0].value, str):
        return f"the message is not one string literal: {ast.unparse(call)}"
    message = values[0].value
    if any(sign in message for sign in "%;{") or message.endswith("."):
        return f"the message has a placeholder, a semicolon or a full stop: {message}"
    if any(word != word.lower() and word.strip(":,") not in UPPER_CASE for word in message.split()):
        return f"the message is not in lower case: {message}"
    if is_failure_log(call):
        return Event(message, "", frozenset({"endpoint", "reason"}))
    extra = [keyword.value for keyword in call.keywords if keyword.arg == "extra"]
    fields = frozenset(chain.from_iterable(keys(value, scope, tree) for value in extra))
    return Event(message, "" if method == "log" else {"exception": "error"}.get(method, method), fields)


def keys(value: ast.AST, scope: ast.AST, tree: ast.Module) -> Iterator[str]:
    """List the keys of a dictionary, as far as it is made of literals, `|`, variables and functions of the module."""
    match value:
        case ast.Dict():
            for key, inner in zip(value.keys, value.values, strict=True):
                if key is None:
                    yield from keys(inner, scope, tree)
                elif isinstance(key, ast.Constant):
                    yield str(key.value)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            yield from chain(keys(left, scope, tree), keys(right, scope, tree))
        case ast.Call():
            yield from (keyword.arg for keyword in value.keywords if keyword.arg is not None)
            name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
            yield from chain.from_iterable(keys(each, function, tree) for each, function in returned(name, tree))
        case ast.Name(id=name):
            for node in ast.walk(scope):
                if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                    yield from keys(node.value, scope, tree)


def returned(name: str, tree: ast.Module) -> Iterator[tuple[ast.expr, ast.AST]]:
    """List what the functions of this name return, each with its function."""
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name):
        yield from ((node.value, function) for node in ast.walk(function) if isinstance(node, ast.Return) and node.value)


def read(source: str) -> tuple[list[Event], list[str]]:
    """List the events of a module, and what is wrong with its calls."""
    tree = ast.parse(source)
    found = [event(call, scope, tree) for call, scope in calls(tree, tree)]
    wrong = [each for each in found if isinstance(each, str)]
    return [each for each in found if isinstance(each, Event)], [*wrong, *hidden(tree)]


@cache
def sources() -> dict[str, tuple[list[Event], list[str]]]:
    """Read the modules of the packages, those with the word "log"."""
    paths = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {name: read(text) for name, text in texts.items() if "log" in text}


def logged() -> list[Event]:
    """List all events that the packages log."""
    return [event for events, _ in sources().values() for event in events]


def described() -> list[Event]:
    """Read the table of the page; an event with several levels has none here."""
    page = (ROOT / "docs" / "reference" / "log-events.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| `")]
    found = []
    for message, levels, fields, _ in rows:
        named = [level.strip() for level in levels.split(",")]
        assert set(named) <= LEVELS, message
        found.append(Event(message.strip(" `"), named[0] if len(named) == 1 else "", frozenset(re.findall(r"`(\w+)`", fields))))
    return found


def test_every_event_has_a_constant_message() -> None:
    """One string literal in lower case, so that it can be searched and counted; what varies is in fields."""
    wrong = {name: complaints for name, (_, complaints) in sources().items() if complaints}
    assert wrong == {}


def test_no_two_events_have_the_same_message() -> None:
    """An alert on one would count the other."""
    assert [message for message, count in Counter(each.message for each in logged()).items() if count > 1] == []


def test_the_page_lists_every_event_with_its_level_and_fields() -> None:
    """And no other event."""
    assert sorted(described(), key=str) == sorted(logged(), key=str)


def test_every_logger_writes_its_fields_into_the_text() -> None:
    """`EventLogger` does, whatever formatter the application has."""
    bare = re.compile(r"""(?<!EventLogger\()logging\.getLogger\(["']onceonly""")
    allowed = {"src/onceonly/runtime/observe/logs.py"}  # wraps the logger that it is given
    files = [path for folder in FOLDERS for path in folder.rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if bare.search(path.read_text())}
    assert found == allowed


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('_log.warning("worker %s", what)', "not one string literal"),
        ('_log.warning(f"worker {what}")', "not one string literal"),
        ("_log.log(level, words, extra=extra)", "not one string literal"),
        ('self._logger.info("worker " + what)', "not one string literal"),
        ('_worker_log.info("worker " + what)', "not one string literal"),
        ("FailureLog(_log, words, endpoint=name)", "not one string literal"),
        ('logging.getLogger("onceonly").exception(words)', "not one string literal"),
        ("logging.warning(words)", "not one string literal"),
        ('_log.error("worker %(name)s", extra=extra)', "placeholder"),
        ('_log.error("worker failed; please wait")', "semicolon"),
        ('_log.error("Worker failed")', "not in lower case"),
        ("tell = _log.warning", "not called directly"),
        ('told = logging.getLogger("onceonly")', "not named"),
        ('told = EventLogger(logging.getLogger("onceonly"))', "not named"),
    ],
)
def test_a_message_that_varies_is_found(source: str, complaint: str) -> None:
    """In each of the ways in which a call can have one."""
    (wrong,) = read(source)[1]
    assert complaint in wrong


def test_the_fields_of_an_event_are_found() -> None:
    """In a literal, a variable, and what functions of the module return."""
    source = """
def tell(self, event, **fields):
    extra = {"endpoint": self.name, **fields} | _about(event)
    _log.log(level, "worker stopped", extra=extra | self._extra(count=1))

def _about(event):
    return {} if event is None else {"id": event.id}

def _extra(self, **fields):
    if fields:
        return {"reason": "", **fields}
    return {"host": ""}
"""
    assert read(source) == ([Event("worker stopped", "", {"endpoint", "reason", "host", "count"})], [])
