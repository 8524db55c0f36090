"""The page about objects in RabbitMQ has the name of every object that the code can declare, and no other."""

import re

from onceonly.adapters.rabbitmq.names import LEVELS, RabbitMQNames, command, event
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "rabbitmq-objects.md").read_text(encoding="utf-8")
ARGUMENTS = {"exchange": "X", "queue": "shop", "inbox": "shop", "missing": "shop", "unsubscribed_of": "shop"}
WITHOUT_OBJECTS = {"levels_begin", "own"}
"""How names begin."""


def names_of(names: RabbitMQNames) -> set[str]:
    """Return the names of a class: its properties, and its functions with the arguments of the page."""
    found = set()
    for attribute, value in vars(type(names)).items():
        if isinstance(value, property) and attribute not in WITHOUT_OBJECTS:
            found.add(getattr(names, attribute))
        elif attribute in ARGUMENTS:
            found.add(getattr(names, attribute)(ARGUMENTS[attribute]))
    return found


def test_every_object_has_its_name_on_the_page() -> None:
    """An administrator finds what an object in the broker is for."""
    assert sorted(name for name in names_of(RabbitMQNames()) if f"`{name}`" not in PAGE) == []


def test_the_levels_of_delay_are_on_the_page() -> None:
    """All of them."""
    own = RabbitMQNames()
    for words in (command("shop"), event("X")):
        first, last = own.level(words, 0), own.level(words, LEVELS - 1)
        assert f"`{first}` to `{last.removeprefix(first[:-3])}`" in PAGE


def test_the_page_names_no_other_object() -> None:
    """Neither in its first table nor in the one about deletions. Dots stand for a part of the name of a level."""
    own = RabbitMQNames()
    levels = {own.level(words, 0) for words in (command("shop"), event("X"))}
    known = {name for name in names_of(own) if name.startswith("onceonly:")} | levels
    named = set(re.findall(r"`(onceonly:[\w:.]+)`", PAGE))
    assert {name for name in named if "..." not in name} == known
