"""The page about the wire format: its attributes and limits are those of the code, and what it promises to producers holds."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from onceonly import Context, Endpoint, testing
from onceonly.formats.cloudevents import PREFIXES, take_apart
from onceonly.model.limits import LONGEST, limit_of
from tests import ROOT

PAGE = (ROOT / "docs" / "reference" / "wire-format.md").read_text(encoding="utf-8")
CODE = ("model", "formats", "endpoint", "algorithms")
"""The packages that name attributes."""


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the rows in a section."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def attributes(*headings: str) -> set[str]:
    """Return the names in the first cells of some sections."""
    return {name for heading in headings for row in rows(heading) for name in re.findall(r"`(\w+)`", row[0])}


def named_in(path: Path) -> Iterator[str]:
    """Return the attributes of this library that a module names."""
    yield from re.findall(r'"(onceonly[a-z]+)"', path.read_text(encoding="utf-8"))


READ = [prefix for row in rows("For producers") for prefix in re.findall(r"`((?:ce|cloudEvents)[-_:])`", row[0])]
"""The prefixes that the page names."""


@dataclass
class Placed:
    """A message of the test."""

    number: str


@dataclass
class Bill:
    """What its handler sends."""

    number: str


def test_every_attribute_of_this_library_is_on_the_page() -> None:
    """And no other one of that name."""
    files = [path for package in CODE for path in (ROOT / "src" / "onceonly" / package).rglob("*.py")]
    found = {name for path in files for name in named_in(path)}
    assert {name for name in attributes("For consumers") if name.startswith("onceonly")} == found


async def test_a_message_has_no_attribute_that_the_page_does_not_name() -> None:
    """What a handler sends, with all options."""
    shop = Endpoint("shop", store="memory://wire", transport="memory://wire")

    @shop.handler
    async def placed(order: Placed, context: Context) -> None:
        context.send(Bill(order.number), to="shop", key="k", expires=timedelta(hours=1))

    @shop.handler
    async def bill(_order: Bill) -> None:
        """Accept it."""

    async with testing.run(shop) as kit:
        await kit.deliver(Placed("7"))
        await kit.settle()
        (sent,) = kit.sent
    found = {"id", "source", "type", *(name for name, _ in sent.message.extensions)}
    assert {"causationid", "conversationid", "replyto", "onceonlyhops", "partitionkey", "expirytime"} <= found
    assert found <= attributes("For producers", "For consumers")


@pytest.mark.parametrize("prefix", READ)
def test_each_prefix_is_read(prefix: str) -> None:
    """As the table has it."""
    event = take_apart(((f"{prefix}id", "1"), (f"{prefix.upper()}TYPE", "Placed")), b"{}")
    assert (event.attributes["id"], event.attributes["type"]) == ("1", "Placed")


def test_the_prefixes_are_those_of_the_code() -> None:
    """All of them."""
    assert {prefix.lower() for prefix in READ} == set(PREFIXES)


def test_the_limits_are_those_of_the_code() -> None:
    """Of each attribute, and of one that has no row."""
    for names, longest in rows("Limits")[1:]:
        for name in re.findall(r"`(\w+)`", names) or ["anything"]:
            assert limit_of(name) == int(longest.replace(",", "")), name
    assert limit_of("anything") == LONGEST
