"""The page about artifacts runs: its package plugs in, its program uses it, and its suite finds a broken one."""

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from onceonly_conformance import ArtifactStoreSuite, ProjectionSuite
from onceonly_conformance.suite import rules
from tests import ROOT
from tests.plugins.packages import Shell, install

PAGE = (ROOT / "docs" / "explanation" / "effects.md").read_text(encoding="utf-8")
PACKAGE = ("pyproject.toml", "archive.py")
FOLDER = "/var/lib/shop"


@pytest.fixture(name="shell")
def folder_with_the_pages_files(tmp_path: Path) -> Shell:
    """Write the page's blocks into the files that they name. Its folder for data is one of the test's own."""
    shell = Shell(tmp_path / "work", tmp_path / "packages")
    for folder in (shell.folder, tmp_path / "archive", tmp_path / "data"):
        folder.mkdir()
    for block in re.findall(r"```(?:python|toml)\n(.*?)```", PAGE, re.DOTALL):
        name = block.splitlines()[0].removeprefix("# ")
        folder = tmp_path / "archive" if name in PACKAGE else shell.folder
        (folder / name).write_text(block.replace(FOLDER, str(tmp_path / "data")))
    return shell


def commands() -> list[list[str]]:
    """Return the arguments of the page's commands, those that only write a file apart."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    return [line.split()[2:] for block in blocks for line in block.splitlines() if line.startswith("$ python")]


def run_suite(shell: Shell, *, expected: int = 0) -> str:
    """Run the page's last command; gives what it printed."""
    return shell.run(*commands()[-1], expected=expected)


@pytest.mark.slow
def test_the_pages_program_creates_one_artifact_for_a_message_that_came_twice(shell: Shell, tmp_path: Path) -> None:
    """With the page's commands; the package is installed into a folder and without the network."""
    (installs, *others, _tests) = commands()
    assert installs == ["-m", "pip", "install", "."]
    install(tmp_path / "archive", shell.packages)
    (shell.folder / "orders.jsonl").write_text('{"order_id": "A-1"}\n')
    for command in others:
        shell.run(*command)
    with closing(sqlite3.connect(tmp_path / "data" / "archive.db")) as archive:
        assert archive.execute("SELECT data FROM artifacts").fetchall() == [(b"Invoice for A-1",)]


@pytest.mark.slow
def test_the_pages_kind_of_artifact_keeps_every_promise(shell: Shell, tmp_path: Path) -> None:
    """As a reader would see it; the suite needs the module, not the package."""
    shell.packages = tmp_path / "archive"
    assert f"{len(rules(ArtifactStoreSuite))} passed" in run_suite(shell)


@pytest.mark.slow
def test_the_pages_suite_finds_a_broken_kind(shell: Shell, tmp_path: Path) -> None:
    """Without what makes a second call harmless, it says which rules are broken."""
    shell.packages = tmp_path / "archive"
    archive = shell.packages / "archive.py"
    archive.write_text(archive.read_text().replace(" ON CONFLICT DO NOTHING", ""))
    printed = run_suite(shell, expected=1)
    assert "FAILED test_archive.py::TestArchive::test_making_the_same_again_is_fine" in printed
    assert re.search(r"\d failed, \d+ passed", printed)


@pytest.mark.slow
def test_the_pages_projection_keeps_every_promise(shell: Shell) -> None:
    """As a reader would see it."""
    printed = shell.run("-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_index.py")
    assert f"{len(rules(ProjectionSuite))} passed" in printed


def test_the_pages_handler_writes_its_projection(shell: Shell) -> None:
    """With the kit, as the page says, and what is stored looks as the page shows it."""
    program = """
import asyncio
from onceonly import testing
from onceonly.model.projection import ProjectedWrite
from onceonly.documents.projections import _body
from search import RenameUser, users

async def main():
    async with testing.run(users) as t:
        for name in ("Bob", "Ann"):
            await t.deliver(RenameUser("7", name), copies=2)
        print(await t.projection("cache"))
    print(_body(ProjectedWrite("cache", "user:7", 7, b'{"name":"Ann"}', "application/json"), 0).decode())

asyncio.run(main())
"""
    values, stored = shell.run("-c", program).splitlines()
    assert values == str({"user:7": b'{"name":"Ann"}'})
    assert json.loads(stored) == json.loads(re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)[0])
