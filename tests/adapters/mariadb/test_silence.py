"""A MariaDB connection that no longer answers: no wait is endless, and the server keeps no locks of a lost connection."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from onceonly import Endpoint
from onceonly.adapters.mariadb import watch as mariadb_watch
from onceonly.adapters.mariadb.watch import SideConnections
from onceonly.model.errors import CommitFailed, OutcomeUnknown, RetryableError
from onceonly.sql import silence
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from tests.adapters.mariadb.harness import A, B, place, run
from tests.servers.available import free_port
from tests.servers.swallowing import swallowing
from tests.sql.harness import add, attempt, handle, look, opened, orders, records

pytestmark = pytest.mark.slow

ENDS = 20.0  # seconds; today these waits end after about one and a half
LOST = pytest.mark.parametrize("lost", ["up", "down", "both"])


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubt sooner than in production."""
    monkeypatch.setattr(silence, "SILENCE_SECONDS", 0.2)
    monkeypatch.setattr(silence, "RECHECK_SECONDS", 0.1)
    monkeypatch.setattr(mariadb_watch, "CLOSE_SECONDS", 0.3)


def sides(lost: str, *, new: bool) -> dict[str, bool]:
    """Return the sides on which bytes are swallowed."""
    return {"up": lost != "down", "down": lost != "up", "new": new}


@LOST
@pytest.mark.parametrize("when", ["idle", "statement", "commit", "rollback"])
async def test_bytes_swallowed_on_open_connections_end_one_attempt(url: str, database: Database, when: str, lost: str) -> None:
    """The statement fails, the next attempt works, and other processes find no lock of the lost connection."""
    async with swallowing(url) as (swallower, through), opened(place(through)) as through_it:
        mine, store = SqlStore(through_it, "shop"), SqlStore(database, "shop")
        await handle(mine, B)
        unit = await mine.begin([A])
        await add(unit, "a")
        if when == "idle":
            unit.abandon()
            await through_it.settle()
        elif when == "commit":
            await attempt(unit, lambda: run(unit, "SELECT 1"))
        swallower.swallow(**sides(lost, new=False))
        async with asyncio.timeout(ENDS):
            if when == "idle":
                with pytest.raises(RetryableError):
                    await mine.begin([A])
            elif when == "statement":
                with pytest.raises(CommitFailed):
                    await attempt(unit, lambda: run(unit, "SELECT 1"))
                unit.abandon()
            elif when == "commit":
                with pytest.raises(RetryableError):
                    await unit.commit(records(A))
            else:
                unit.abandon()
            await through_it.settle()
            assert list(await look(store, A)) in (["new"], ["done"])  # another process waits for no lock
            assert list(await look(mine, A)) in (["new"], ["done"])
        swallower.pass_on()
        await through_it.settle()
        assert through_it.engine.pool.checkedout() == 0
        if await look(mine, A) == {"new": ["a"]}:
            assert "a" not in await orders(database)


async def test_an_answer_to_a_commit_that_was_swallowed_is_unknown(url: str, database: Database) -> None:
    """The commit was applied: only the claim tells."""
    async with swallowing(url) as (swallower, through), opened(place(through)) as through_it:
        store = SqlStore(through_it, "shop")
        unit = await store.begin([A])
        await add(unit, "a")
        await attempt(unit, lambda: run(unit, "SELECT 1"))

        def answer_of_commit() -> None:
            swallower.swallow(up=False, new=False)

        transaction = unit._transaction
        said = transaction._dialect.commit

        def commit(*arguments: object) -> None:
            answer_of_commit()
            said(*arguments)  # type: ignore[arg-type]

        transaction._dialect.commit = commit  # type: ignore[method-assign]
        async with asyncio.timeout(ENDS):
            with pytest.raises(OutcomeUnknown):
                await unit.commit(records(A))
        transaction._dialect.commit = said  # type: ignore[method-assign]
        assert await look(store, A) == {"done": ["a"]}
        assert await orders(database) == ["a"]


@LOST
async def test_a_server_that_swallows_everything_is_away(monkeypatch: pytest.MonkeyPatch, url: str, lost: str) -> None:
    """Also for the connection by which a silent one is checked."""
    monkeypatch.setattr(silence, "CHECK_SECONDS", 0.3)
    async with swallowing(url) as (swallower, through), opened(place(through)) as through_it:
        mine = SqlStore(through_it, "shop")
        await handle(mine, B)
        unit = await mine.begin([A])
        swallower.swallow(**sides(lost, new=True))
        async with asyncio.timeout(ENDS):
            with pytest.raises(CommitFailed):
                await attempt(unit, lambda: run(unit, "SELECT 1"))
            unit.abandon()
            await through_it.settle()
        swallower.pass_on()
        assert await look(mine, B) == {"done": ["b"]}


async def test_closing_what_is_silent_ends(url: str) -> None:
    """A stop closes connections on which nobody answers any more."""
    async with swallowing(url) as (swallower, through), opened(place(through)) as database:
        await handle(SqlStore(database, "shop"), B)
        swallower.swallow()
        async with asyncio.timeout(ENDS):
            await database.close()


@pytest.mark.slow
async def test_a_long_statement_is_left_alone(store: SqlStore) -> None:
    """However often its connection is checked: the server says that it works."""
    unit = await store.begin([A])
    await attempt(unit, lambda: run(unit, "SELECT SLEEP(1.5)"))
    await unit.commit(records(A))
    assert await look(store, A) == {"done": ["a"]}


async def test_waiting_for_another_unit_is_left_alone(store: SqlStore) -> None:
    """A claim that waits for one under way is no lost connection."""
    first = await store.begin([A])
    waiting = asyncio.create_task(store.begin([A]))
    await asyncio.wait([waiting], timeout=1.5)
    await first.commit(records(A))
    second = await waiting
    assert [each.id for each in second.found.done] == ["a"]
    second.abandon()


async def test_behind_a_proxy_with_numbers_of_its_own_nobody_is_asked_or_ended(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """The number may be another client's there; a statement has a fixed limit instead."""
    monkeypatch.setattr(silence, "LONGEST_STATEMENT_SECONDS", 0.5)
    asked: list[str] = []
    monkeypatch.setattr(SideConnections, "end", lambda *_: asked.append("end"))
    async with swallowing(url) as (swallower, through), opened(place(through)) as through_it:
        mine = SqlStore(through_it, "shop")
        await handle(mine, B)
        assert through_it.dialect._side.is_direct  # type: ignore[attr-defined]
        through_it.dialect._side.is_direct = False  # type: ignore[attr-defined]
        unit = await mine.begin([A])
        swallower.swallow(new=False)
        async with asyncio.timeout(ENDS):
            with pytest.raises(CommitFailed):
                await attempt(unit, lambda: run(unit, "SELECT 1"))
        unit.abandon()
        assert asked == []


async def test_a_server_that_refuses_the_check_is_alive(url: str) -> None:
    """It has too many connections, say: no reason to give up those that it serves."""
    side = SideConnections()
    server = make_url(url)
    wrong = {"host": server.host, "port": server.port, "user": "nobody", "password": b"wrong"}
    assert await side.is_busy(wrong, 1)
    assert not await side.is_busy({"host": "127.0.0.1", "port": free_port(), "user": "nobody"}, 1)


async def test_a_host_that_vanishes_keeps_its_locks_no_longer_than_handlers_may_be_silent(url: str, store: SqlStore) -> None:
    """The server ends the transaction of a client that says nothing; the others' claims wait for no host."""
    async with opened(place(url)) as gone:
        gone.dialect.expect(0.5)
        vanished = await SqlStore(gone, "shop").begin([A])
        await add(vanished, "a")
        await attempt(vanished, lambda: run(vanished, "SELECT 1"))
        unit = await store.begin([A])  # waits for the claim of the one that is gone; the lock time-out is five seconds
        assert [each.id for each in unit.found.new] == ["a"]
        await unit.commit(records(A))
        with pytest.raises(RetryableError):
            await vanished.commit(records(A))


async def test_a_user_s_engine_keeps_its_settings(url: str) -> None:
    """Its sessions are the user's, and may be silent for as long as they like."""
    engine = create_async_engine(make_url(url).set(drivername="mysql+asyncmy"))
    async with opened(engine) as database:
        database.dialect.expect(1)
        async with database.writing() as connection:
            assert (await connection.exec_driver_sql("SELECT @@idle_transaction_timeout")).scalar_one() == 0
    await engine.dispose()


@pytest.mark.usefixtures("database")
async def test_a_transaction_in_a_process_that_opened_nothing_has_a_limit(url: str) -> None:
    """Its process may be stopped for ever, while it holds the lock of its key."""
    shop = Endpoint("shop", store=place(url), transport=place(url))
    async with shop.transaction(idempotency_key="k1") as tx:
        assert await tx.sql.scalar(text("SELECT @@idle_transaction_timeout")) == 35
