"""The page about objects in RabbitMQ has the name of every object that the code can declare, and no other."""

import re
from typing import Any

import pytest

from onceonly.adapters.rabbitmq.names import LEVELS, PreviousNames, TopologyNames, command, event
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "rabbitmq-objects.md").read_text(encoding="utf-8")
ARGUMENTS = {"exchange": "X", "queue": "shop", "inbox": "shop", "missing": "shop", "unsubscribed_of": "shop"}
WITHOUT_OBJECTS = {"levels_begin", "own"}
"""How names begin."""


def names_of(names: Any) -> set[str]:
    """Return the names of a class: its properties, and its functions with the arguments of the page."""
    found = set()
    for attribute, value in vars(type(names)).items():
        if isinstance(value, property) and attribute not in {*WITHOUT_OBJECTS, "previous"}:
            found.add(getattr(names, attribute))
        elif attribute in ARGUMENTS:
            found.add(getattr(names, attribute)(ARGUMENTS[attribute]))
    return found


@pytest.mark.parametrize("names", [TopologyNames(), PreviousNames()], ids=["own", "previous"])
def test_every_object_has_its_name_on_the_page(names: Any) -> None:
    """Of this version, and of the one before."""
    assert sorted(name for name in names_of(names) if f"`{name}`" not in PAGE) == []


def test_the_levels_of_delay_are_on_the_page() -> None:
    """All of them."""
    own = TopologyNames()
    for words in (command("shop"), event("X")):
        first, last = own.level(words, 0), own.level(words, LEVELS - 1)
        assert f"`{first}` to `{last.removeprefix(first[:-3])}`" in PAGE
    assert f"`{PreviousNames().level(0)}` to `{PreviousNames().level(LEVELS - 1)}`" in PAGE


def test_the_page_names_no_other_object() -> None:
    """Neither in its first table nor in the one about deletions. Dots stand for a part of the name of a level."""
    own = TopologyNames()
    levels = {own.level(words, 0) for words in (command("shop"), event("X"))}
    known = {name for name in names_of(own) if name.startswith("onceonly:")} | levels
    named = set(re.findall(r"`(onceonly:[\w:.]+)`", PAGE))
    assert {name for name in named if "..." not in name} == known
