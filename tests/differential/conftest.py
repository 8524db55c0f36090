"""Each database, opened once for a module."""

from collections.abc import Iterator

import pytest

from tests.differential.run import Runner
from tests.sql.every_database import PLACES


@pytest.fixture(scope="module", params=PLACES)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Open one, with both sides on it."""
    with Runner(request.param, _url(request, tmp_path_factory)) as opened:
        yield opened


@pytest.fixture(scope="module", params=PLACES)
def fresh(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """Open one where each transaction has a connection of its own."""
    with Runner(request.param, _url(request, tmp_path_factory), fresh=True) as opened:
        yield opened


def _url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('differential')}/shop.db"
    system, _, driver = request.param.partition("+")
    made: str = request.getfixturevalue(f"{system}_url")
    return f"{made.replace('postgresql:', f'postgresql+{driver}:')}?prefix=diff_"
