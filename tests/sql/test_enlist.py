"""Publishing inside a user's own transaction, on SQLite."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

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


def has_written(file: Path) -> bool:
    """Commit a write on another connection, unless it had to wait."""
    with closing(sqlite3.connect(file, timeout=0)) as other:
        try:
            with other:
                other.execute("CREATE TABLE other (number INTEGER)")
        except sqlite3.OperationalError:
            return False
    return True


class TestOnSQLite(EnlistScenarios):
    """All of them, and those of synchronous sessions."""

    async def test_a_writer_beside_the_first_transaction_does_not_end_it(self, shop: Shop, file: Path) -> None:
        """SQLite refuses to write in a transaction that has read, and then another one was committed."""
        tried: list[str] = []

        def write(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO onceonly_records"):
                tried.append("wrote" if has_written(file) else "waited")

        event.listen(shop.engine.sync_engine, "before_cursor_execute", write)
        await shop.place("A")
        assert (tried, await shop.orders()) == (["waited"], ["A"])

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
