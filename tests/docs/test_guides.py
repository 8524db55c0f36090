"""The guides: every command that a page shows exists with its options, and the programs for a move work."""

import re
import shlex
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.test_documentation import run_shell, snippet
from tests.docs.test_how_to import parsed

DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.glob("*/*.md") if page.parent.name != "decisions")


def command_in(line: str) -> list[str]:
    """Return the arguments of `onceonly` in a line, up to a pipe, a redirection or a comment."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    program, *words = [*lexer, ""]
    end = next((number for number, word in enumerate(words) if set(word) <= set("|&;<>")), len(words))
    return [shlex.join(words[:end])] if program == "onceonly" else []


def commands() -> list[tuple[str, str]]:
    """Return the commands of `onceonly` in the consoles of all pages."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:console|sh)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in re.sub(r"\\\n\s*", "", block).splitlines():
                found += [(str(page.relative_to(DOCS)), each) for each in command_in(line.strip().removeprefix("$ "))]
    return found


@pytest.mark.parametrize(("page", "command"), commands())
def test_a_command_on_a_page_exists(page: str, command: str) -> None:
    """With its arguments and options."""
    assert parsed(shlex.split(command)), page


def test_there_are_commands_on_many_pages() -> None:
    """So the test above looks at them."""
    assert len({page for page, _ in commands()}) > 10


@pytest.mark.slow
def test_moved_claims_are_known_in_the_new_store(tmp_path: Path) -> None:
    """The program of the page about the move: what was handled is recognized, and no claim is copied twice."""
    (tmp_path / "shop.py").write_text(snippet(ROOT / "README.md", "# shop.py"))
    (tmp_path / "move_claims.py").write_text(snippet(DOCS / "how-to" / "moving.md", "# move_claims.py"))
    order = """echo '{"order_id": "A-1", "total": 30}' > orders.jsonl"""
    send = f"{order}\nonceonly send orders.jsonl --to shop:shop --type PlaceOrder --id-from order_id"
    move = "python move_claims.py sqlite+aiosqlite:///shop.db sqlite+aiosqlite:///new.db"
    run_shell(tmp_path, f"{send}\nonceonly run shop:shop --drain")
    run_shell(tmp_path, f"onceonly schema create sqlite:///new.db --component store\n{move}")
    printed = run_shell(tmp_path, f"{send}\nonceonly run shop:shop --drain --store sqlite:///new.db").stderr
    assert "0 handled, 1 known" in printed.splitlines()[-1], printed
    again = run_shell(tmp_path, f"{move} || echo refused")
    assert "refused" in again.stdout
    assert "IntegrityError" in again.stderr
