"""The pages for contributors match the code: cited sections, paths, names, layers, ports and crash points exist."""

import re
import tomllib
from pathlib import Path

import pytest

from onceonly.runtime.observe.crash import CRASH_POINTS
from tests import ROOT

SOURCES = [ROOT, ROOT / "src" / "onceonly", *sorted(ROOT.glob("packages/*/src/*"))]
CODE = [path for folder in ("src", "packages") for path in sorted((ROOT / folder).rglob("*.py"))]
ARCHITECTURE, GLOSSARY, PROTOCOLS = (
    ROOT / "docs" / "explanation" / f"{name}.md" for name in ("architecture", "glossary", "protocols")
)
PAGES = [ROOT / "CONTRIBUTING.md", ARCHITECTURE, GLOSSARY, PROTOCOLS, *sorted((ROOT / "docs" / "decisions").glob("*.md"))]
SECTION = re.compile(r"(\S*)\s+\(?sections?\s+(\d+(?:(?:,\s+|\s+and\s+|\s+to\s+)\d+)*)(?!\.?\d)", re.IGNORECASE)


def resolved(path: str) -> list[Path]:
    """Return the files or folders that a page may mean by a path; NAME stands for any system."""
    pattern = path.replace("NAME", "*").rstrip("/")
    return [found for source in SOURCES for found in source.glob(pattern)]


def test_every_cited_section_of_the_protocols_exists() -> None:
    """Docstrings say "protocols, section 5", and docs/explanation/protocols.md has that section."""
    there = set(re.findall(r"^## (\d+)\. ", PROTOCOLS.read_text(encoding="utf-8"), re.MULTILINE))
    wrong = [
        f"{path.relative_to(ROOT)}: {before} section {numbers}"
        for path in CODE
        for before, numbers in SECTION.findall(path.read_text(encoding="utf-8"))
        if before.lower().lstrip("(") not in {"protocols,", "protocols'"} or not there.issuperset(re.findall(r"\d+", numbers))
    ]
    assert wrong == []


def test_the_sections_of_the_protocols_are_numbered_in_order() -> None:
    """A citation stays right when a section is added at the end."""
    numbers = re.findall(r"^## (\d+)\. ", PROTOCOLS.read_text(encoding="utf-8"), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(numbers) + 1)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_path_on_a_page_exists(page: Path) -> None:
    """Relative to the repository, to the library or to the checker. A path with NAME matches some system."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    paths = set(re.findall(r"`([\w./-]+(?:\.py|\.md|\.toml|\.txt|/))`", text))
    assert sorted(path for path in paths if not resolved(path)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_name_that_a_page_finds_in_a_module_is_there(page: Path) -> None:
    """Such as "`process` in `algorithms/outbox.py`"."""
    found = re.findall(r"((?:`\w+`(?:, | and )?)+) in `([\w/]+\.py)`", page.read_text(encoding="utf-8"))
    for listed, path in found:
        code = resolved(path)[0].read_text(encoding="utf-8")
        for name in re.findall(r"`(\w+)`", listed):
            assert re.search(rf"\b(?:def|class) {name}\b", code), f"{name} in {path}"


def test_the_glossary_needs_no_second_name_for_the_code() -> None:
    """The code has the glossary's words: an entry does not add `older` in the code."""
    assert re.findall(r"`(\w+)`\s+in\s+the\s+code", GLOSSARY.read_text(encoding="utf-8")) == []


def test_the_glossary_is_sorted() -> None:
    """In each of its two parts."""
    for part in GLOSSARY.read_text(encoding="utf-8").split("\n## ")[1:]:
        terms = [term.lower() for term in re.findall(r"^\* \*\*(.+?)\*\*", part, re.MULTILINE)]
        assert terms == sorted(terms)


def test_the_architecture_lists_the_layers_of_the_import_contract() -> None:
    """In the same order; optional layers are left out until they exist."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["type"] == "layers")
    wanted = [name for layer in layers for name in re.findall(r"(?<![(\w])\w+", layer)]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| [^|]+ \| [^|]+ \|$", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"\w+", row) if name.islower()]
    assert listed == wanted


def test_the_architecture_lists_every_port() -> None:
    """Each module with a protocol of it."""
    rows = re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| `(ports/\w+\.py)` \|", ARCHITECTURE.read_text(encoding="utf-8"), re.MULTILINE
    )
    modules = {f"ports/{path.name}" for path in (ROOT / "src" / "onceonly" / "ports").glob("*.py") if path.stem != "__init__"}
    assert {path for _, path in rows} == modules
    for listed, path in rows:
        code = resolved(path)[0].read_text(encoding="utf-8")
        assert [name for name in re.findall(r"\w+", listed) if f"class {name}(" not in code] == []


def test_the_architecture_names_crash_points_that_exist() -> None:
    """The path of a message has those that it passes, in their order."""
    named = re.findall(r"`((?:before|after)-[\w-]+)`", ARCHITECTURE.read_text(encoding="utf-8"))
    assert named == [point for point in CRASH_POINTS if point in named]


def test_every_decision_begins_with_what_holds_today() -> None:
    """And each number has one row in the list, in order."""
    decisions = ROOT / "docs" / "decisions"
    pages = sorted(decisions.glob("0*.md"))
    assert [
        page.name for page in pages if not page.read_text(encoding="utf-8").split("\n\n")[1].startswith("**Today.** ")
    ] == []
    rows = re.findall(
        r"^\| (?:\[(\d{4})\]\((\S+)\)|(\d{4})) \| (.*) \|$", (decisions / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert [linked or merged for linked, _, merged, _ in rows] == [f"{number:04}" for number in range(1, len(rows) + 1)]
    assert [name for _, name, _, _ in rows if name] == [page.name for page in pages]
    for page in pages:
        (title,) = (words for _, name, _, words in rows if name == page.name)
        assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]} {title}\n")
    assert [words for _, name, _, words in rows if not name and "merged into [" not in words and words != "Not used"] == []
