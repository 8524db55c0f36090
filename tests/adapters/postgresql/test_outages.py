"""What cannot be known is OutcomeUnknown: a connection cut before COMMIT and one cut after it look the same to every driver."""

import asyncio
from typing import Any

import asyncpg
import pytest
from sqlalchemy import event, insert, make_url, text
from sqlalchemy.exc import DBAPIError

from onceonly.model.errors import (
    CommitFailed,
    CommitRefused,
    ConflictError,
    LockTimeout,
    OnceOnlyError,
    OutcomeUnknown,
    StoreUnavailable,
)
from onceonly.sql.database import Database
from onceonly.sql.store import SqlStore
from onceonly.sql.translation import translated
from tests.servers.cutting_commits import cutting
from tests.sql.harness import Order, add, attempt, handle, look, message, opened, orders, records, session_of

SECRET = "geheim"  # noqa: S105 - nobody has it


@pytest.mark.parametrize(("moment", "found"), [("before", {"new": ["m1"]}), ("after", {"pending": ["m1"]})])
async def test_a_connection_cut_at_commit_is_unknown(
    url: str, store: SqlStore, moment: str, found: dict[str, list[str]]
) -> None:
    """Crash here: 1 COMMIT was said, 2 no answer comes, 3 only looking again tells; the store works on."""
    async with cutting(url) as (cutter, through), opened(through) as far:
        unit = await SqlStore(far, "shop").begin([message()])
        await add(unit, "a")
        cutter.cut = moment
        with pytest.raises(OutcomeUnknown):
            await unit.commit(records(message(), decided=True))
        cutter.cut = ""
        assert await until_found(store, found) == found
        assert await look(SqlStore(far, "shop"), message()) == found
        await handle(SqlStore(far, "shop"), message("m2"))
        await far.settle()
        assert far.engine.pool.checkedout() == 0


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_write_cut_at_commit_is_unknown(url: str, database: Database, moment: str) -> None:
    """Such as a send, an acknowledgement or a dead letter."""

    async def write(far: Database) -> None:
        async with far.writing() as connection:
            await connection.execute(insert(Order).values(id="a", total=1))

    async with cutting(url) as (cutter, through), opened(through) as far:
        assert await orders(far) == []
        cutter.cut = moment
        with pytest.raises(OutcomeUnknown):
            await write(far)
    assert await orders(database) == (["a"] if moment == "after" else [])


async def test_a_closed_connection_of_the_pool_is_replaced_before_its_use(database: Database, store: SqlStore) -> None:
    """All connections are closed after a restart. asyncpg has noticed that, so no unit fails."""
    if database.engine.dialect.driver != "asyncpg":
        pytest.skip("psycopg does not notice it before the next statement")
    drivers = set[Any]()
    event.listen(database.engine.sync_engine, "checkin", lambda adapted, _: drivers.add(adapted.driver_connection))
    await fill_pool(database, store)
    assert len(drivers) > 1
    await end_connections(database)
    async with asyncio.timeout(20):
        while not all(driver.is_closed() for driver in drivers):  # noqa: ASYNC110 - the driver reads the end of each stream
            await asyncio.sleep(0.01)
    units = [await store.begin([message(f"m{number}")]) for number in range(3)]
    for unit in units:
        unit.abandon()
    await handle(store, message("handled"))


async def fill_pool(database: Database, store: SqlStore) -> None:
    """Let the pool have three connections."""
    units = [await store.begin([message(f"m{number}")]) for number in range(3)]
    for unit in units:
        unit.abandon()
    await database.settle()


async def test_a_connection_that_the_server_ends_is_unknown_and_replaced(database: Database, store: SqlStore) -> None:
    """All connections of the pool are stale after a restart; the first that is noticed has the others replaced."""
    if database.engine.dialect.driver == "asyncpg":
        pytest.skip("asyncpg notices it before the next statement, see above")
    await fill_pool(database, store)
    await end_connections(database)
    with pytest.raises(OutcomeUnknown):
        await store.begin([message()])
    await handle(store, message())
    assert await orders(database) == ["m1"]


async def test_a_handler_whose_connection_is_ended_is_not_to_blame(database: Database, store: SqlStore) -> None:
    """It raised, but for the outage; and nothing of the unit can be committed, for COMMIT was not said."""
    unit = await store.begin([message()], isolated=True)

    async def handler() -> None:
        await end_connections(database)
        await session_of(unit.resources).execute(text("SELECT 1"))

    with pytest.raises(CommitFailed) as lost:
        await attempt(unit, handler)
    assert type(lost.value) is CommitFailed
    unit.abandon()
    assert await look(store, message()) == {"new": ["m1"]}


async def test_a_connection_that_is_lost_before_commit_is_said_has_failed(database: Database, store: SqlStore) -> None:
    """What the handler left is written first, and that finds out: nothing can have been committed."""
    unit = await store.begin([message()])
    session_of(unit.resources).add(Order(id="a", total=1))
    await end_connections(database)
    with pytest.raises(CommitFailed) as lost:
        await unit.commit(records(message()))
    assert type(lost.value) is CommitFailed
    assert await look(store, message()) == {"new": ["m1"]}


async def test_no_server_is_no_reason_to_know_anything(url: str) -> None:
    """Nobody listens there; neither does an error show the password."""
    nobody = make_url(url).set(password=SECRET, port=1).render_as_string(hide_password=False)
    async with opened(nobody) as database:
        with pytest.raises(OutcomeUnknown) as refused:
            await SqlStore(database, "shop").begin([message()])
    assert SECRET not in repr(refused.value)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 13])
async def test_a_cancelled_commit_leaves_a_usable_store(database: Database, store: SqlStore, steps: int) -> None:
    """It happened as a whole or not at all, and no connection is lost."""
    unit = await store.begin([message()])
    await add(unit, "a")
    committing = asyncio.create_task(unit.commit(records(message(), decided=True)))
    for _ in range(steps):
        await asyncio.sleep(0)
    committing.cancel()
    await asyncio.wait([committing])
    unit.abandon()
    found = await look(store, message())
    assert found in ({"new": ["m1"]}, {"pending": ["m1"]})
    assert (await orders(database) == ["a"]) is ("pending" in found)
    await handle(store, message("m2"))
    await database.settle()
    assert database.engine.pool.checkedout() == 0


async def test_errors_are_classified_by_an_allow_list(database: Database) -> None:
    """By their SQLSTATE: what they mean in a statement, and at COMMIT."""
    expected: dict[str, tuple[type[OnceOnlyError], type[OnceOnlyError]]] = {
        "40001": (ConflictError, ConflictError),
        "40P01": (ConflictError, ConflictError),
        "55P03": (LockTimeout, LockTimeout),
        "23505": (CommitRefused, CommitRefused),
        "25P02": (CommitRefused, CommitRefused),
        "P0001": (CommitRefused, CommitRefused),
        "22003": (CommitRefused, OutcomeUnknown),
        "42P01": (CommitRefused, OutcomeUnknown),
        "53100": (StoreUnavailable, OutcomeUnknown),
        "26000": (OutcomeUnknown, OutcomeUnknown),
        "42P05": (OutcomeUnknown, OutcomeUnknown),
        "25006": (StoreUnavailable, OutcomeUnknown),
        "40003": (OutcomeUnknown, OutcomeUnknown),
        "08006": (OutcomeUnknown, OutcomeUnknown),
        "57P01": (OutcomeUnknown, OutcomeUnknown),
        "57P03": (OutcomeUnknown, OutcomeUnknown),
        "XX000": (OutcomeUnknown, OutcomeUnknown),
        "58030": (OutcomeUnknown, OutcomeUnknown),
        "": (OutcomeUnknown, OutcomeUnknown),
    }

    def outcome(state: str, *, committing: bool) -> type[OnceOnlyError]:
        cause = type("ServerError", (Exception,), {"sqlstate": state or None})("what the server said")
        error = DBAPIError("COMMIT", None, cause)
        return type(translated(error, database.dialect, locked=ConflictError, refused=CommitRefused, committing=committing))

    assert {state: (outcome(state, committing=False), outcome(state, committing=True)) for state in expected} == expected


async def test_what_asyncpg_raises_when_it_has_lost_track_is_unknown(database: Database) -> None:
    """Its InternalClientError comes past SQLAlchemy."""
    if asyncpg.InternalClientError not in database.dialect.errors:
        pytest.skip("psycopg has no such error")

    def lose_track() -> None:
        with database.translate():
            raise asyncpg.InternalClientError("got result for unknown protocol state 3")

    with pytest.raises(OutcomeUnknown):
        lose_track()


async def end_connections(database: Database) -> None:
    """End every other connection to this database from the server's side, and wait until they are gone."""
    others = (
        "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'onceonly'"
    )
    outside = await asyncpg.connect(database.engine.url.set(drivername="postgresql").render_as_string(hide_password=False))
    try:
        await outside.execute(f"SELECT pg_terminate_backend(pid) {others}")
        async with asyncio.timeout(20):
            while await outside.fetchval(f"SELECT count(*) {others}"):
                pass
    finally:
        await outside.close()


async def until_found(store: SqlStore, expected: dict[str, list[str]]) -> dict[str, list[str]]:
    """Look until the server has noticed that the connection is gone; its claim is waited for meanwhile."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await look(store, message())
            except ConflictError:
                assert expected == {"new": ["m1"]}
