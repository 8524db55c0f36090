"""A key in a transaction that the caller owns, on SQLite."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import assert_type

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session

from onceonly.endpoint.enlisted_key import EnlistedKey
from onceonly.endpoint.sender import Outgoing
from onceonly.errors import ConflictError, InvalidEffect, SetupError
from onceonly.sql.database import Database
from tests.sql.enlist_harness import OrderPlaced, Shop, endpoint, opened_shop, synchronous
from tests.sql.enlisted_key_scenarios import KINDS, EnlistedKeyScenarios, caller_of
from tests.sql.harness import Order, url


@pytest.fixture
async def shop(database: Database, file: Path) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the file."""
    async with opened_shop(url(file)) as shop:
        yield shop


class TestOnSQLite(EnlistedKeyScenarios):
    """All of them."""

    async def test_the_drivers_own_transactions_are_enough(self, shop: Shop, file: Path) -> None:
        """Python's sqlite3 begins with the first statement that writes, which is that of the key."""
        sessions = synchronous(f"sqlite:///{file}")
        for expected in (False, True):
            with sessions.begin() as session:
                entry = shop.endpoint.enlist(session, key="k1")
                assert entry.is_known == expected
                if not entry.is_known:
                    session.add(Order(id="A"))
                    entry.answer = 1
            assert entry.answer == 1
        with sessions() as session:
            shop.endpoint.enlist(session, key="k2")
            session.rollback()
            assert not shop.endpoint.enlist(session, key="k2").is_known
        sessions.kw["bind"].dispose()

    async def test_a_connection_that_commits_each_statement_is_refused_and_keeps_no_key(self, shop: Shop, file: Path) -> None:
        """Its driver begins no transaction, and nobody else does."""
        engine = create_engine(f"sqlite:///{file}", connect_args={"isolation_level": None})
        for _ in range(2):
            with Session(engine) as session, pytest.raises(SetupError, match="autocommit mode"):
                shop.endpoint.enlist(session, key="k1")
        engine.dispose()
        async with shop.endpoint.transaction(idempotency_key="k1") as tx:
            assert not tx.is_known

    async def test_a_snapshot_that_is_older_than_the_key_is_a_conflict(self, shop: Shop) -> None:
        """SQLite refuses to write in a transaction that has read, once another one was committed."""
        for kind in KINDS:
            async with caller_of(shop, kind) as caller, caller.session() as owned:
                await owned.call("execute", select(Order.id))
                await caller.place(kind, key=kind)
                with pytest.raises(ConflictError, match="roll back and try again"):
                    await owned.take(kind)
                await owned.call("rollback")
                assert (await owned.take(kind)).is_known
                await owned.call("rollback")

    async def test_a_session_of_another_database_is_refused(self, shop: Shop, tmp_path: Path) -> None:
        """Another engine on the same file is not another database."""
        other = create_engine(f"sqlite:///{tmp_path}/other.db")
        with Session(other) as session, pytest.raises(SetupError, match="would not find"):
            shop.endpoint.enlist(session, key="k1")

    async def test_more_messages_than_a_key_can_name_are_refused_at_the_call(
        self, shop: Shop, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Those that were sent before are committed."""
        monkeypatch.setattr("onceonly.sql.store.enlisted_keys.MOST_RECORDS", 2)
        async with caller_of(shop, "async") as caller, caller.session() as owned:
            entry = await owned.take()
            for order in ("A", "B"):
                entry.publish(OrderPlaced(order))
            with pytest.raises(InvalidEffect, match="can send 2 messages"):
                entry.publish(OrderPlaced("C"))
            await owned.call("commit")
            assert await entry.dispatch()
        assert await shop.bodies(2) == ["A", "B"]


def test_type_checkers_tell_the_kinds_of_sessions_apart(tmp_path: Path) -> None:
    """Mypy reads this: an entry at once, one to await, or what `enlist` returns without a key."""
    shop = endpoint(f"sqlite:///{tmp_path}/shop.db", "memory://types")

    def synchronous_one(session: Session, scoped: scoped_session[Session]) -> None:
        assert_type(shop.enlist(session, key="k"), EnlistedKey)
        assert_type(shop.enlist(scoped, key="k", request={}, wait=1.0), EnlistedKey)
        assert_type(shop.enlist(session), Outgoing)

    async def asynchronous_one(session: AsyncSession) -> None:
        assert_type(await shop.enlist(session, key="k"), EnlistedKey)
        assert_type(shop.enlist(session), Outgoing)

    assert (synchronous_one.__name__, asynchronous_one.__name__) == ("synchronous_one", "asynchronous_one")
