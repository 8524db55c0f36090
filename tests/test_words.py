"""One word for one thing: class, value, function and module share the field's term, and no class name has two meanings."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")])
OLD_WORDS = {
    *("chance", "chores", "doubt", "doubted", "envelopes", "errand", "gave_up", "let_go", "look_at_one", "means"),
    *("meets_pooler", "nobody_knows", "nobodys", "parcel", "parcels", "seal", "set_apart", "surroundings", "tells_last"),
    *("unheard", "upkeep", "verdict", "way_back", "ways", "went_bad", "wish"),
}
"""Names that once stood for what has another name now, without underscores before them."""
MOST_VERBS = 12
"""Modules may end in -ing where that is a noun, such as `ring` or `tracing`."""


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by its path."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}


def names_in(tree: ast.AST) -> Iterator[str]:
    """Yield the names of values, arguments, attributes, functions and classes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def is_protocol(node: ast.ClassDef) -> bool:
    """Tell whether this class is a protocol, which its implementations may share the name of."""
    return any("Protocol" in ast.unparse(base) for base in node.bases)


def test_no_value_has_an_old_name() -> None:
    """The tables of what was renamed are in the history; here are their words that have no other use."""
    found = [(path, name) for path, tree in trees().items() for name in names_in(tree) if name.strip("_").lower() in OLD_WORDS]
    assert sorted(set(found)) == []


def test_no_class_name_has_two_meanings() -> None:
    """Protocols and their implementations aside, the names that Django wants migrations and commands to have, and its models.

    Django makes addresses and permissions of the names of models, which people see.
    """
    places = defaultdict(set)
    for path, tree in trees().items():
        if path.endswith("/django/models.py"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not is_protocol(node) and node.name not in {"Migration", "Command"}:
                places[node.name].add(path)
    assert {name: sorted(where) for name, where in places.items() if len(where) > 1} == {}


def test_modules_are_nouns() -> None:
    """A module is called after what it holds."""
    found = [path for path in trees() if path.startswith("src/") and path.endswith("ing.py")]
    assert len(found) <= MOST_VERBS, found
