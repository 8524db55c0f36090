"""Every public name has an entry in the reference, and nothing that users read imports a private one."""

import ast
import importlib
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

DOCS = ROOT / "docs"
GENERATE = runpy.run_path(str(DOCS / "generate.py"))
PUBLIC: dict[str, str] = GENERATE["PUBLIC"]
READ_BY_USERS = [
    ROOT / "README.md",
    *sorted(DOCS.glob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "tests" / "plugins" / "toy").rglob("*.py")),
]
FENCE = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_no_page_is_left_over() -> None:
    """Each page belongs to a public module."""
    assert {path.stem for path in (DOCS / "reference").iterdir()} == {"index", *PUBLIC}


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_an_entry_with_words(module: str) -> None:
    """A heading, its form, and what it is for."""
    page = (DOCS / "reference" / f"{module}.md").read_text(encoding="utf-8")
    entries = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    names = importlib.import_module(module).__all__
    assert sorted(entries) == sorted(names)
    bare = re.compile(r"^#.*$|```.*?```", re.MULTILINE | re.DOTALL)
    assert [name for name, text in entries.items() if not bare.sub("", text).strip()] == []


@pytest.mark.parametrize("path", READ_BY_USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_users_read_imports_public_names_only(path: Path) -> None:
    """Snippets in pages, and programs."""
    text = path.read_text(encoding="utf-8")
    private = [f"{module}: {name}" for module, name in imported(text, path) if not is_public(module, name)]
    assert private == []


def test_a_private_import_is_found() -> None:
    """Of a module that is not listed, and of a name that is not public."""
    program = (
        "import onceonly.sql.queue\nfrom onceonly import Endpoint, systems, History_\nfrom onceonly.systems import full_name\n"
    )
    found = [(module, name) for module, name in imported(program, Path("program.py")) if not is_public(module, name)]
    assert found == [("onceonly.sql.queue", ""), ("onceonly", "History_"), ("onceonly.systems", "full_name")]


def imported(text: str, path: Path) -> Iterator[tuple[str, str]]:
    """Give the modules and names of this package that a program, or the snippets of a page, import."""
    for program in [text] if path.suffix == ".py" else FENCE.findall(text):
        for node in ast.walk(parsed(program)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onceonly":
                yield from ((str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "onceonly")


def parsed(program: str) -> Any:
    """Parse a snippet; one that is not a whole program has its imports at its top."""
    try:
        return ast.parse(program)
    except SyntaxError:
        lines = [line for line in program.splitlines() if re.match(r"(from|import) \S+[^(]*$", line)]
        return ast.parse("\n".join(lines))


def is_public(module: str, name: str) -> bool:
    """Report whether a name, or with no name a module, is public."""
    if f"{module}.{name}" in PUBLIC:
        return True
    return module in PUBLIC and (not name or name in importlib.import_module(module).__all__)
