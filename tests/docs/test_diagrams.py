"""The diagrams: they are what their script draws, and every crash point has a place in one."""

import runpy
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from onceonly.runtime.observe.crash import CRASH_POINTS
from tests import ROOT

DIAGRAMS: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "generate" / "diagrams.py"))
DRAWN: dict[str, str] = DIAGRAMS["diagrams"]()
PAGE = (ROOT / "docs" / "explanation" / "how-it-works.md").read_text(encoding="utf-8")


def test_the_files_are_what_the_script_draws() -> None:
    """`make docs` would change nothing."""
    files = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "diagrams").iterdir()}
    assert files == DRAWN


def test_every_crash_point_has_one_place_in_the_diagrams() -> None:
    """On the main path, or in a release, a retry or a dead letter."""
    drawn = [point for crash in (*DIAGRAMS["CRASHES"], *DIAGRAMS["OTHER_CRASHES"]) for point in crash.points]
    assert sorted(drawn) == sorted(CRASH_POINTS)


def test_crash_points_that_are_drawn_together_have_the_same_effect() -> None:
    """What comes next, as the code describes it; a unit that is open holds different things."""
    for crash in DIAGRAMS["CRASHES"]:
        effects = {CRASH_POINTS[point].rpartition(":")[2] for point in crash.points}
        assert len(effects) == 1, crash.points


@pytest.mark.parametrize("name", DRAWN)
def test_a_diagram_is_valid_has_a_title_and_is_on_the_page(name: str) -> None:
    """It names no other host but that of the format."""
    root = ET.fromstring(DRAWN[name])  # noqa: S314 - the same
    tags = [each.tag.rpartition("}")[2] for each in root]
    assert tags[:2] == ["title", "desc"]
    assert DRAWN[name].count("http") == 1
    assert f"](../diagrams/{name})" in PAGE
