"""Publishing inside a user's own transaction, on SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onceonly.runtime.observe.observer import Point
from onceonly.sql.database import Database
from tests.sql.enlist_harness import Shop, opened_shop, synchronous
from tests.sql.enlist_scenarios import EnlistScenarios
from tests.sql.harness import url


@pytest.fixture
async def shop(database: Database, file: Path) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the file."""
    async with opened_shop(url(file)) as shop:
        yield shop


class TestOnSQLite(EnlistScenarios):
    """All of them, and those of synchronous sessions."""

    async def test_a_synchronous_session_works_as_well(self, shop: Shop, file: Path) -> None:
        """Committed, and rolled back."""
        sessions = synchronous(url(file))
        async with shop.running():
            with sessions.begin() as session:
                shop.add(session, "A")
            with sessions() as session:
                shop.add(session, "B")
                session.rollback()
            assert await shop.bodies(1) == ["A"]
            await shop.watch.until(Point.FORGET)
        assert (await shop.orders(), await shop.records()) == (["A"], ())
        sessions.kw["bind"].dispose()
