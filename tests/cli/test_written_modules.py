"""Tests that write modules of one name do not see each other's."""

import sys
from pathlib import Path

import pytest

from onceonly.cli.targets import load

PROGRAM = """
from onceonly import Endpoint
desk = Endpoint("{name}", store="memory://", transport="memory://")
"""


@pytest.mark.parametrize("name", ["first", "second"])
def test_a_module_is_the_one_that_this_test_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A command adds its working directory to the path and imports from there; neither outlasts the test."""
    (tmp_path / "written_twice.py").write_text(PROGRAM.format(name=name))
    monkeypatch.chdir(tmp_path)
    assert load("written_twice:desk").name == name
    assert [place for place in sys.path if place.startswith(str(tmp_path.parent))] == [str(tmp_path)]
