"""Publishing inside a user's own transaction, on PostgreSQL, with both drivers."""

from collections.abc import AsyncIterator

import pytest

from onceonly.runtime.observe.observer import Point
from onceonly.sql.database import Database
from tests.sql.enlist_harness import Shop, opened_shop, synchronous
from tests.sql.enlist_scenarios import EnlistScenarios


@pytest.fixture
async def shop(database: Database, url: str) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the database."""
    async with opened_shop(url) as shop:
        yield shop


class TestOnPostgresql(EnlistScenarios):
    """All of them, and those of synchronous sessions."""

    async def test_a_synchronous_session_works_as_well(self, shop: Shop, postgresql_url: str) -> None:
        """By whatever driver it comes."""
        sessions = synchronous(f"postgresql+psycopg:{postgresql_url.partition(':')[2]}")
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
