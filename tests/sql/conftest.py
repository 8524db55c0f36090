"""One new file for each test, with all tables."""

from pathlib import Path

import pytest

from tests.sql.every_database import PLACES, SERVERS
from tests.sql.harness import url
from tests.sql.sqlite_fixtures import database, file, store

__all__ = ["database", "file", "store"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, file: Path) -> str:
    """Name a place in each SQL database there is."""
    return place_named(request.param, request, file)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, file: Path) -> str:
    """Name a place on each server, where units wait for rows and not for all of the database."""
    return place_named(request.param, request, file)


def place_named(name: str, request: pytest.FixtureRequest, file: Path) -> str:
    """Return its URL."""
    if name == "sqlite":
        return url(file)
    system, _, driver = name.partition("+")
    made: str = request.getfixturevalue(f"{system}_url")
    return f"{made.replace('postgresql:', f'postgresql+{driver}:')}?prefix=every_"
