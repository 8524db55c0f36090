"""Mutants that no rule has to catch, each with the reason, and mutants that survive although a rule should catch them."""

import re
from functools import cache
from pathlib import Path

EQUIVALENT = Path(__file__).with_name("equivalent.txt")
"""Mutants that keep every promise of the ports: on each line a regular expression of names, a tab, and a proof."""

OUTSIDE = Path(__file__).with_name("outside.txt")
"""Mutants that break no promise of a port that a suite is about: on each line a regular expression, a tab, and the reason."""

SURVIVING = Path(__file__).with_name("surviving.txt")
"""The names of the mutants that the last run did not catch, one on each line."""


def reason_for(adapter: str, name: str, listed: Path) -> str:
    """Return the reason why a mutant is listed, or an empty string. A pattern may begin with the name of the adapter."""
    return next((reason for pattern, reason in reasons(listed) if pattern.search(f"{adapter} {name}")), "")


@cache
def reasons(listed: Path) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Read all patterns and reasons of a list."""
    lines = [line.partition("\t") for line in listed.read_text(encoding="utf-8").splitlines()]
    return tuple((re.compile(pattern), reason) for pattern, _, reason in lines)


def surviving() -> frozenset[str]:
    """Read the names of the mutants that are known to survive."""
    return frozenset(SURVIVING.read_text(encoding="utf-8").splitlines())
