"""The page about things runs: its kind of thing keeps every promise, and its suite would say so if it did not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from onceonly.testing.suite import rules
from onceonly.testing.things_suite import ThingsSuite

PAGE = (Path(__file__).parent.parent / "docs" / "effects.md").read_text(encoding="utf-8")


@pytest.fixture(name="folder")
def folder_with_the_archive(tmp_path: Path) -> Path:
    """Write the page's Python blocks into the files that they name."""
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / block.splitlines()[0].removeprefix("# ")).write_text(block)
    return tmp_path


def run(folder: Path) -> str:
    """Run the page's command, with this interpreter; gives what it printed."""
    (command,) = re.findall(r"```console\n\$ python (.*?)\n```", PAGE)
    done = subprocess.run(
        [sys.executable, *command.split()], cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )
    return done.stdout + done.stderr


def test_the_pages_kind_of_thing_keeps_every_promise(folder: Path) -> None:
    """As a reader would see it."""
    assert f"{len(rules(ThingsSuite))} passed" in run(folder)


def test_the_pages_suite_finds_a_broken_kind(folder: Path) -> None:
    """Without what makes a second call harmless, it says which rules are broken."""
    archive = folder / "archive.py"
    archive.write_text(archive.read_text().replace(" ON CONFLICT DO NOTHING", ""))
    printed = run(folder)
    assert "FAILED test_archive.py::TestArchive::test_making_the_same_again_is_fine" in printed
    assert re.search(r"\d failed, \d+ passed", printed)
