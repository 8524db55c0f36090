"""The page about tests lists the fuzz test of each path that reads foreign text: each exists, and none is missing."""

import ast
import re

from tests import ROOT

PAGE = ROOT / "docs" / "explanation" / "testing.md"


def listed() -> list[tuple[str, str]]:
    """Return the files and names in the table."""
    return re.findall(r"^\| .+ \| `(tests/[\w/]+\.py)::(\w+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def functions(file: str) -> set[str]:
    """Return the functions of a test file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_listed_test_exists() -> None:
    """By its file and its name, once."""
    rows = listed()
    assert len(rows) == len(set(rows)) > 40
    missing = [(file, name) for file, name in rows if not (ROOT / file).exists() or name not in functions(file)]
    assert not missing


def test_each_fuzz_test_is_listed() -> None:
    """A path that is read by a new test gets its row."""
    rows = set(listed())
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in functions(str(path.relative_to(ROOT)))
        if name.startswith("test_fuzz_")
    }
    assert found - rows == set()
