"""The tutorial, word for word: its files are written, its commands run, and what it promises is what they print."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from onceonly.assembly import temporary_transport
from onceonly.ports.transport import Topology
from tests import ROOT
from tests.servers.available import RABBITMQ, need, postgresql_database

PAGES = sorted((ROOT / "docs" / "tutorial").glob("[0-9]-*.md"))
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FILE = re.compile(r"# ((?:\w+/)*\w+\.py)\n")
_EXPORT = re.compile(r"^export ((?:\w+=\S+ ?)+)$", re.MULTILINE)


class Block(NamedTuple):
    """A block of code: `python` is a file with its name in the first line, `sh` is run, `text` is the end of what it prints.

    A `console` block is not run: it installs the library.
    """

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text(encoding="utf-8"))]


class Reader:
    """Someone who follows the tutorial in a folder. What a page exports is replaced by `variables`."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self._folder = folder
        self._variables = variables
        self._exported: set[str] = set()
        self._printed = ""

    def follow(self, page: Path) -> None:
        """Write files, run commands, and compare what they print."""
        for block in blocks(page):
            if block.language == "python":
                self._write(block.text)
            elif block.language == "sh":
                self._run(block.text)
            elif block.language == "text":
                self._compare(block.text)
            else:
                assert block.language == "console"

    def _write(self, text: str) -> None:
        found = _FILE.match(text)
        assert found is not None, text
        place = self._folder / found.group(1)
        place.parent.mkdir(exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def _run(self, commands: str) -> None:
        self._exported |= {each.partition("=")[0] for line in _EXPORT.findall(commands) for each in line.split()}
        own = {name: self._variables[name] for name in self._exported}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["/bin/bash", "-e", "-c", "\n".join(line for line in commands.splitlines() if not _EXPORT.match(line))],
            cwd=self._folder,
            env={**os.environ, "PATH": path, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=110,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        self._printed = done.stdout

    def _compare(self, promised: str) -> None:
        lines = _without_chance(promised).splitlines()
        assert _without_chance(self._printed).splitlines()[-len(lines) :] == lines


def _without_chance(text: str) -> str:
    """Replace what differs between runs: ids of processes, and the delay, which depends on whether a handler was running."""
    return re.sub(r"replaced_in=[\d.]+", "replaced_in=S", re.sub(r"pid=\d+", "pid=N", text))


@pytest.fixture(name="variables")
def servers_of_this_machine() -> Iterator[dict[str, str]]:
    """Return a database and a prefix, and remove what is in them."""
    broker = f"{need(RABBITMQ)}?prefix=tutorial-{uuid4().hex[:8]}-"
    with postgresql_database() as database:
        yield {"TUTORIAL_DATABASE": database, "TUTORIAL_BROKER": broker}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_reader_of_the_tutorial_sees_what_it_promises(tmp_path: Path, variables: dict[str, str]) -> None:
    """From the first file to the last dead letter, in one folder."""
    reader = Reader(tmp_path, variables)
    topologies = [Topology(endpoint="shop", events=("PlaceOrder",)), Topology(endpoint="invoices", events=("OrderPlaced",))]
    async with temporary_transport(variables["TUTORIAL_BROKER"], topologies):
        for page in PAGES:
            await asyncio.to_thread(reader.follow, page)


def test_a_promise_that_is_not_kept_is_found(tmp_path: Path) -> None:
    """Another line, and a command that fails."""
    page = tmp_path / "page.md"
    page.write_text("```sh\necho one\n```\n\n```text\ntwo\n```\n")
    with pytest.raises(AssertionError, match="two"):
        Reader(tmp_path, {}).follow(page)
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(AssertionError, match="false"):
        Reader(tmp_path, {}).follow(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_the_tutorial_leads_to_the_next(page: Path) -> None:
    """The last one leads to the guides."""
    following = PAGES[PAGES.index(page) + 1].name if page != PAGES[-1] else "../how-to/handler-tests.md"
    assert f"]({following})" in page.read_text(encoding="utf-8")
