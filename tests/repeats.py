"""Which tests repeat what another test shows, by rules and not by lists of files.

`make test` leaves out what is marked `slow`; `make test-ci` leaves out what is also marked `repeated`. Every rule of a suite
stays in `make test`, on at least one system. `make test-quick` runs each test function once.
"""

from collections import defaultdict
from collections.abc import Sequence
from types import FunctionType

import pytest

from onceonly_conformance import on_documents
from onceonly_conformance.suite import Suite

OVER_DOCUMENTS = tuple(
    suite
    for suite in vars(on_documents).values()
    if isinstance(suite, type) and issubclass(suite, Suite) and suite.__module__ == on_documents.__name__
)
"""The suites of one class over the `Documents` port. The port has a suite of its own, which runs on every service."""
ALWAYS = frozenset({"memory", "postgresql"})
"""The services of these suites in `make test`: the one of the model checker, and a server."""
IN_CI = frozenset({"sqlite", "mariadb", "redis", "dynamodb", "azure-table"})
"""Those in `make test-ci`: the other databases, and a service of each kind with the smallest limits."""

EMULATED = frozenset(
    {
        "ministack_endpoint",
        "azurite_storage",
        "cosmos_account",
        "cosmos_standin",
        "mongodb_server",
        "mongodb_transactions",
        "kafka_url",
    }
)
"""Fixtures of stand-ins for clouds and brokers. `make test-ci` binds suites to them, `make test` to databases and brokers."""

TWINS = {
    "starlette": ("fastapi",),
    "flask": ("wsgi",),
    "postgresql+psycopg": ("postgresql",),
    "psycopg": ("asyncpg",),
    "mariadb": ("postgresql+asyncpg", "postgresql"),
}
"""A test on the first is left out of `make test` if it is there on one of the others: on PostgreSQL, with asyncpg.

An application of FastAPI is one of Starlette, and one of Flask is one of WSGI.
"""
CHECKER = "tests/verify/"
"""Tests of the model checker, whose checks and mutants `make verify` runs: `make test-ci` has those that are not slow."""
FAULTS = "tests/faults/"
"""What fails here are the servers, so each of them is in every run."""


def mark_repeats(items: Sequence[pytest.Item]) -> None:
    """Mark what `make test` and `make test-ci` leave out."""
    names = {item.nodeid for item in items}
    functions: defaultdict[tuple[object, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if item.nodeid.startswith(CHECKER):
            item.add_marker(pytest.mark.repeated if _is_slow(item) else pytest.mark.slow)
        elif isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, OVER_DOCUMENTS):
            _mark(item, item.cls.service)
        elif _has_twin(item, names) or _is_suite_on_emulator(item):
            item.add_marker(pytest.mark.slow)
        elif isinstance(item, pytest.Function) and not (_is_slow(item) or item.nodeid.startswith(FAULTS)):
            functions[item.parent, item.originalname].append(item)
    for each in functions.values():
        for item in combined(each):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.repeated)


def combined(items: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Return the tests of a function that combine anew what other tests of it have: each value of each parameter is there."""
    values = {
        item: {(name, id(value)) for name, value in item.callspec.params.items()} for item in items if hasattr(item, "callspec")
    }
    left, missing = list(values), set[tuple[str, int]]().union(*values.values())
    while missing:
        best = max(left, key=lambda item: len(values[item] & missing))  # the first of them
        left.remove(best)
        missing -= values[best]
    return left


def quick(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Choose each test function once, with its first parameters, and each rule on the first system that needs no server.

    What a test asks for decides: a fixture of `tests/conftest.py` is a server, and `tmp_path` is for databases in files. A test
    that reaches a server in another way is skipped when it does so.
    """
    chosen: dict[FunctionType, pytest.Item] = {}
    for item in items:
        if isinstance(item, pytest.Function) and not (_is_slow(item) or _needs_more_than_memory(item)):
            function = getattr(item.function, "__func__", item.function)
            chosen.setdefault(function, item)
    return list(chosen.values())


def _is_slow(item: pytest.Item) -> bool:
    return any(mark.name in {"slow", "soak"} for mark in item.iter_markers())


def _needs_more_than_memory(item: pytest.Function) -> bool:
    if "tmp_path" in item.fixturenames:
        return True
    definitions = (each for name in item.fixturenames for each in item._fixtureinfo.name2fixturedefs.get(name, ()))
    return any(each.baseid == "tests" and not each.argname.startswith("_") for each in definitions)


def _mark(item: pytest.Item, service: str) -> None:
    if service not in ALWAYS:
        item.add_marker(pytest.mark.slow)
        if service not in IN_CI:
            item.add_marker(pytest.mark.repeated)


def _is_suite_on_emulator(item: pytest.Item) -> bool:
    is_suite = isinstance(item, pytest.Function) and item.cls is not None and issubclass(item.cls, Suite)
    return is_suite and not EMULATED.isdisjoint(item.fixturenames)


def _has_twin(item: pytest.Item, names: set[str]) -> bool:
    if item.nodeid.startswith(FAULTS):
        return False
    found = [(later, first) for later, firsts in TWINS.items() if later in item.name for first in firsts]
    return any(item.nodeid.replace(later, first) in names for later, first in found)
