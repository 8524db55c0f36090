"""A key in a transaction that the caller owns, on servers: isolation levels, and commits whose answer is lost."""

import asyncio

import pytest
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from onceonly.errors import ConflictError
from onceonly.sql.database import Database
from tests.servers.cutting_commits import cutting
from tests.sql.enlist_harness import OrderPlaced, Shop, opened_shop
from tests.sql.enlisted_key_scenarios import KINDS, EnlistedKeyScenarios, caller_of, tables_of

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")


class ServerKeyScenarios(EnlistedKeyScenarios):
    """All of them, and those of servers."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("level", LEVELS)
    async def test_a_snapshot_that_is_older_than_the_key_does_not_take_it(self, shop: Shop, kind: str, level: str) -> None:
        """It is a conflict, or known. It is never new."""
        async with caller_of(shop, kind, isolation_level=level) as caller, caller.session() as owned:
            await owned.call("execute", select(tables_of(shop).tokens.c.key))  # nothing writes there
            await caller.place("A")
            try:
                assert (await owned.take()).is_known
            except ConflictError:
                assert level != "READ COMMITTED"
            await owned.call("rollback")
            assert (await owned.take()).answer == {"placed": "A"}

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("level", LEVELS)
    async def test_one_that_waits_for_the_holder_does_not_take_the_key(self, shop: Shop, kind: str, level: str) -> None:
        """Whatever the level, and whether the holder commits or not."""
        for how in ("commit", "rollback"):
            async with caller_of(shop, kind, isolation_level=level) as caller:
                async with caller.session() as holder, caller.session() as owned:
                    entry = await holder.take(how)
                    entry.answer = 1
                    waiting = asyncio.create_task(owned.take(how))
                    await asyncio.wait([waiting], timeout=0.2)
                    await holder.call(how)
                    try:
                        assert (await waiting).is_known == (how == "commit")
                    except ConflictError:
                        assert level != "READ COMMITTED"
                    await owned.call("rollback")
                async with caller.session() as owned:
                    assert (await owned.take(how)).is_known == (how == "commit")

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("cut", ["before", "after"])
    async def test_a_commit_whose_answer_is_lost_is_repeated_with_the_key(
        self, database: Database, shop: Shop, kind: str, cut: str
    ) -> None:
        """Whether the server has committed or not, the order is placed once. Without the key it would be placed twice."""
        async with (
            cutting(shop.store) as (cutter, through),
            opened_shop(through) as cut_shop,
            caller_of(cut_shop, kind) as caller,
        ):
            cutter.cut = cut
            with pytest.raises((SQLAlchemyError, OSError)):
                await caller.place("A")
            cutter.cut = ""
            entry = await caller.place("B")
            assert entry.is_known == (cut == "after")
            assert entry.answer == {"placed": "A" if cut == "after" else "B"}
            async with caller.session() as owned:
                cut_shop.endpoint.enlist(owned.session).publish(OrderPlaced("control"))
                owned.add("control")
                cutter.cut = cut
                with pytest.raises((SQLAlchemyError, OSError)):
                    await owned.call("commit")
                cutter.cut = ""
        placed = await shop.orders()
        assert [each for each in placed if each != "control"] == (["A"] if cut == "after" else ["B"])
        assert ("control" in placed) == (cut == "after")  # an application that repeats this one cannot know
