"""The documentation gives the number of rules in the conformance suites."""

import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import onceonly_conformance

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "verification.md"


def test_the_number_of_rules_is_true() -> None:
    """It counts each rule once, however many suites inherit it."""
    modules = [each.name for each in iter_modules(onceonly_conformance.__path__) if each.name.endswith("_suite")]
    suites = [found for name in modules for found in vars(import_module(f"onceonly_conformance.{name}")).values()]
    classes = {each for each in suites if isinstance(each, type)}
    count = sum(name.startswith("test_") for each in classes for name in vars(each))
    stated = re.findall(r"(\d+) rules, each proven to bite", PAGE.read_text(encoding="utf-8"))
    assert stated == [str(count)]
