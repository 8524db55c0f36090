"""A fail-over to a replica that lacks commits, or a restore: noticed and logged by the processes that live on."""

import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from onceonly.model.errors import RetryableError
from onceonly.sql import database as module
from onceonly.sql.database import Database
from onceonly.sql.database_history import DatabaseHistory, HistoryWatch
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlStore
from tests.log_events import events
from tests.servers.available import OwnPostgresql, on_mariadb, on_postgresql, own_postgresql
from tests.servers.forwarding import Door
from tests.servers.mariadb import own_mariadb
from tests.sql.harness import handle, look, message, opened, records

LOST = "ALARM: database went back in time, commits are lost"
MOVED = "database failed over, commits may be lost"


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the events about histories."""
    return [event for event in events(caplog.records) if event in {LOST, MOVED}]


@pytest.fixture(autouse=True)
def _looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look before each transaction, so that no test waits."""
    monkeypatch.setattr(module, "CHECK_INTERVAL_SECONDS", 0)


@pytest.fixture(scope="module")
def primary() -> Iterator[OwnPostgresql]:
    """Start a server."""
    with own_postgresql() as server:
        server.start()
        yield server


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (DatabaseHistory("timeline 1", {"": 200}), []),
        (DatabaseHistory("timeline 1", {"": 100}), []),
        (DatabaseHistory("timeline 1", {"": 99}), [LOST]),
        (DatabaseHistory("timeline 2", {"": 100}), [MOVED]),
        (DatabaseHistory("timeline 2", {"": 99}), [LOST]),
        (DatabaseHistory("timeline 1", {"": 99}, system="another"), [MOVED]),
        (DatabaseHistory("timeline 1", {}), [LOST]),
        (None, []),
    ],
)
def test_what_is_logged(caplog: pytest.LogCaptureFixture, now: DatabaseHistory | None, said: list[str]) -> None:
    """Once; the next look compares with what was found."""
    caplog.set_level(logging.WARNING)
    watch = HistoryWatch("postgresql://db/shop")
    for each in (None, DatabaseHistory("timeline 1", {"": 100}), now, now):
        watch.seen(each)
    assert logged(caplog) == said


async def reaching(store: SqlStore) -> None:
    """Use a server until it answers: connections that were cut off are noticed one by one."""
    while True:
        with suppress(RetryableError):
            await look(store, message("none"))
            return


async def test_a_replica_that_lacks_commits_is_noticed_when_it_is_promoted(
    primary: OwnPostgresql, caplog: pytest.LogCaptureFixture
) -> None:
    """The message that it lacks is new there, and the log says why. A crash and a restart of one server say nothing."""
    caplog.set_level(logging.WARNING)
    door = Door(primary.url)
    with door.opened():
        async with opened(door.url, tables=True) as database:
            store = SqlStore(database, "shop")
            await handle(store, message("both"))
            primary.stop("immediate")
            primary.start()
            await reaching(store)
            with own_postgresql(primary) as replica:
                for number in range(50):
                    await handle(store, message(f"lost-{number}"))
                await on_postgresql("SELECT pg_switch_wal()", url=primary.url)  # what the copy writes itself is less
                await handle(store, message("lost"))
                await reaching(store)
                assert logged(caplog) == []
                primary.stop("immediate")
                replica.start(standby=True)
                replica.promote()
                door.lead_to(replica.url)
                await reaching(store)
                assert await look(store, message("both"), message("lost")) == {"new": ["lost"], "done": ["both"]}
                assert logged(caplog) == [LOST]
                await database.close()
    primary.start()


@pytest.mark.slow
async def test_a_replica_that_lacks_nothing_is_noticed_as_one_that_may(
    primary: OwnPostgresql, caplog: pytest.LogCaptureFixture
) -> None:
    """No function of the server tells where the new timeline began."""
    caplog.set_level(logging.WARNING)
    door = Door(primary.url)
    with door.opened(), own_postgresql(primary) as replica:
        replica.start(standby=True)
        async with opened(door.url, tables=True) as database:
            store = SqlStore(database, "shop")
            await handle(store, message("kept"))
            primary.stop("fast")  # waits until the replica has all
            replica.promote()
            door.lead_to(replica.url)
            await reaching(store)
            assert await look(store, message("kept")) == {"done": ["kept"]}
            assert logged(caplog) == [MOVED]
            await database.close()
    primary.start()


async def test_a_user_without_rights_asks_for_less(primary: OwnPostgresql) -> None:
    """Any user may call the functions, unless an administrator has revoked it. Then as much is compared as it may see."""
    plain = primary.url.replace("onceonly@", "plain@")
    await on_postgresql("CREATE ROLE plain LOGIN", url=primary.url)
    revoked = ("pg_control_system()", "pg_walfile_name(pg_lsn)", "pg_control_checkpoint()", "pg_current_wal_flush_lsn()")
    found = []
    for function in ("", *revoked):
        if function:
            await on_postgresql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC", url=primary.url)
        async with opened(plain) as database:
            found.append(await told(database))
    full, no_system, no_timeline, still_none, nothing = found
    assert full is not None
    assert full.name.startswith("timeline")
    assert full.system
    assert no_system is not None
    assert (no_system.name, no_system.system) == (full.name, "")
    for each in (no_timeline, still_none):
        assert each is not None
        assert (each.name, each.system) == ("server", "")
        assert each.positions[""] >= full.positions[""]
    assert nothing is None


async def told(database: Database) -> DatabaseHistory | None:
    """Ask the server."""
    async with database.reading():
        return await database.dialect.history(database.engine)


@pytest.mark.slow
async def test_a_mariadb_replica_that_lacks_commits_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the number of the server and by GTIDs, which count the commits of each domain."""
    caplog.set_level(logging.WARNING)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with own_mariadb(tmp_path / "a") as first, own_mariadb(tmp_path / "b", "--server-id=2", "--log-slave-updates") as second:
        door = Door(first)
        with door.opened():
            async with opened(door.url) as database:
                await create(database, SCHEMA)
                store = SqlStore(database, "shop")
                await claimed(store, "both")
                port = first.rpartition(":")[2].partition("/")[0]
                await on_mariadb(
                    f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={port}, MASTER_USER='root',"
                    " MASTER_USE_GTID=slave_pos",
                    "START SLAVE",
                    f"SELECT MASTER_GTID_WAIT('{await position(database)}', 20)",
                    "STOP SLAVE",
                    "RESET SLAVE ALL",
                    url=second,
                )
                await claimed(store, "lost")
                await reaching(store)
                assert logged(caplog) == []
                door.lead_to(second)
                await database.engine.dispose()
                await reaching(store)
                assert await look(store, message("both"), message("lost")) == {"new": ["lost"], "done": ["both"]}
                assert logged(caplog) == [LOST]


async def claimed(store: SqlStore, name: str) -> None:
    """Handle a message without a change of the user's."""
    unit = await store.begin([message(name)])
    await unit.commit(records(message(name)))


async def position(database: Database) -> str:
    """Read what the server has committed."""
    found = await told(database)
    assert found is not None
    return found.shown
