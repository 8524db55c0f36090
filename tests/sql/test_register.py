"""Register rows on SQL: opened before a unit, taken away by its commit, on every database."""

import asyncio

import pytest

from onceonly.model.artifact import Reservation
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.sql.dialect import Purpose
from onceonly.sql.store import ClaimMode, SqlRegister, SqlStore
from onceonly.sql.store.register import spend
from onceonly.sql.store.statements import StoreScope
from onceonly.sql.store.tables import tables
from onceonly_conformance.clock import START
from tests.sql.every_database import emptied, put, states
from tests.sql.harness import messages, opened, statements

M1, M2 = Identity("köln", "m1"), Identity("till", "m2\0")
A = Reservation(identity=M1, unit="", attempt="a", at=2)
B = Reservation(identity=M1, unit="", attempt="b/é", at=1)
C = Reservation(identity=M2, unit="order/17", attempt="c", at=3)
DELETE = {"sqlite": "DELETE FROM {}_register", "postgresql": "DELETE FROM {}_register", "mysql": "DELETE found FROM"}


def rows_of(asked: list[Message]) -> list[Reservation]:
    """Make a row for each message."""
    return [Reservation(identity=each.identity, unit="", attempt=f"attempt-{each.id}") for each in asked]


def records_of(rows: list[Reservation]) -> list[Record]:
    """Make the records that these rows permit."""
    return [Record(row.identity, attempt=row.attempt) for row in rows]


async def test_rows_are_found_by_message_and_unit(place: str) -> None:
    """Exactly as they were opened, and by their own endpoint only."""
    async with emptied(place) as database:
        register = SqlRegister(database, "shop")
        await register.open([A, B, C])
        await register.open([])
        assert sorted(await register.rows([M1]), key=lambda row: row.attempt) == [A, B]
        assert await register.rows([M1, M2], "order/17") == (C,)
        assert (await register.rows([M2]), await register.rows([])) == ((), ())
        assert await SqlRegister(database, "billing").rows([M1]) == ()


async def test_old_rows_are_listed_oldest_first(place: str) -> None:
    """Stamped with the time when they say none; at most as many as asked for, and by their own endpoint only."""
    async with emptied(place) as database:
        register = SqlRegister(database, "shop")
        await register.open([A, B, C, Reservation(identity=M1, unit="", attempt="late")])
        assert await register.old(3, 10) == (B, A)
        assert await register.old(START, 1) == (B,)
        assert [row.at for row in await register.old(START + 1, 10)] == [1, 2, 3, START]
        assert await SqlRegister(database, "billing").old(START, 10) == ()


async def test_cancelling_says_whether_there_is_a_row(place: str) -> None:
    """It stays, cancelled, until it is removed; only then there is none."""
    async with emptied(place) as database:
        register = SqlRegister(database, "shop")
        await register.open([A, B])
        assert [await register.cancel(A), await register.cancel(A), await register.cancel(C)] == [True, True, False]
        assert {row.attempt: row.cancelled for row in await register.rows([M1])} == {"a": True, "b/é": False}
        for row in (A, A, B, C):
            await register.remove(row)
        assert await register.rows([M1]) == (B,), "an open row is somebody's permission"
        assert await register.cancel(A) is False


async def test_an_attempt_is_opened_once(place: str) -> None:
    """Opened again a cancelled row would permit what was unmade."""
    async with emptied(place) as database:
        register = SqlRegister(database, "shop")
        await register.open([A])
        await register.cancel(A)
        with pytest.raises(ConflictError):
            await register.open([A])
        assert [row.cancelled for row in await register.rows([M1])] == [True]


@pytest.mark.parametrize("claim_mode", list(ClaimMode))
async def test_a_commit_takes_its_own_rows_away_in_one_statement(place: str, claim_mode: ClaimMode) -> None:
    """Whatever is kept; other rows stay."""
    asked = messages(100)
    async with emptied(place) as database:
        register, rows = SqlRegister(database, "shop"), rows_of(asked)
        await register.open([*rows, A])
        unit = await SqlStore(database, "shop", claim_mode=claim_mode).begin(asked)
        with statements(database) as heard:
            await unit.commit(records_of(rows))
        assert heard == [DELETE[database.dialect.name].format(database.prefix.removesuffix("_")), "COMMIT"]
        assert await register.old(1 << 52, 200) == (A,)
        assert await register.cancel(rows[0]) is False


@pytest.mark.parametrize("fate", ["cancelled", "gone"])
async def test_a_commit_without_its_row_is_a_conflict(place: str, fate: str) -> None:
    """Of one attempt is enough: nothing of the unit is committed, its entities neither, and no other row is lost."""
    asked = messages(3)
    async with emptied(place) as database:
        store, register, rows = SqlStore(database, "shop"), SqlRegister(database, "shop"), rows_of(asked)
        await register.open(rows)
        await register.cancel(rows[1])
        if fate == "gone":
            await register.remove(rows[1])
        unit = await store.begin(asked)
        with pytest.raises(ConflictError, match="cancelled"):
            await unit.commit(records_of(rows))
        unit.abandon()
        assert len(await register.old(1 << 52, 10)) == (3 if fate == "cancelled" else 2)
        found = await store.begin(asked)
        found.abandon()
        assert found.found.new == tuple(asked)
        await put(store, {"a": b"1"})
        assert await states(store, "a") == {"a": b"1"}


async def test_cancelling_waits_for_a_commit_under_way(server: str) -> None:
    """And then finds no row: what was made is published."""
    async with emptied(server) as database, opened(server) as other:
        await SqlRegister(database, "shop").open([A])
        scope = StoreScope(database, tables(database.prefix), "shop", ClaimMode.HISTORY)
        transaction = await database.open(Purpose.UNIT)
        await transaction.connection.run_sync(spend, scope, ["a"])
        cancelling = asyncio.create_task(SqlRegister(other, "shop").cancel(A))
        done, _ = await asyncio.wait([cancelling], timeout=0.2)
        assert not done
        await transaction.commit()
        assert await cancelling is False
