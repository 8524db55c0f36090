"""Reads that the dashboard gives up after two seconds end in the database as well, so that they do not add up there."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from onceonly.assembly import open_database
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA, SqlDeadLetters
from onceonly.sql.store.tables import tables
from onceonly.sql.urls import read_url
from onceonly_dashboard import dashboard, endpoint_probes, loopback_only
from onceonly_dashboard.app import Dashboard
from tests.dashboard.serving import endpoint
from tests.sql.emptying import empty

SLOW = {
    "mariadb": "SELECT BENCHMARK(2000000000, SHA2('given_up_1', 512))",  # SLEEP would notice that its connection is closed
    "postgresql": "SELECT pg_sleep(3600), 'given_up_1'",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
}
RUNNING = {
    "mariadb": "SELECT id FROM information_schema.processlist WHERE info LIKE '%given\\_up\\_1%' AND id <> CONNECTION_ID()",
    "postgresql": "SELECT pid FROM pg_stat_activity"
    " WHERE query LIKE '%given\\_up\\_1%' AND state = 'active' AND pid <> pg_backend_pid()",
}
END = {"mariadb": "KILL {}", "postgresql": "SELECT pg_terminate_backend({})"}


class Server:
    """A database server, as its administrator sees it."""

    def __init__(self, engine: AsyncEngine, kind: str) -> None:
        self._engine, self._kind = engine, kind

    async def running(self) -> list[int]:
        """Return the numbers of the connections that execute the slow statement."""
        async with self._engine.connect() as connection:
            return list((await connection.execute(text(RUNNING[self._kind]))).scalars())

    async def end_all(self) -> None:
        """End what a test that failed has left."""
        for number in await self.running():
            async with self._engine.connect() as connection:
                await connection.execute(text(END[self._kind].format(number)))


@asynccontextmanager
async def engine_of(url: str) -> AsyncIterator[AsyncEngine]:
    """Open an engine as an application does."""
    driver = {"mysql": "mysql+asyncmy", "postgresql": "postgresql+asyncpg"}
    plain = read_url(url).url
    engine = create_async_engine(plain.set(drivername=driver[plain.get_backend_name()]))
    try:
        yield engine
    finally:
        await engine.dispose()


@pytest.fixture
def url(kind: str, request: pytest.FixtureRequest) -> str:
    """Return the URL of a database."""
    return str(request.getfixturevalue(f"{kind}_url"))


def slow_until(seen: asyncio.Event, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the probe of dead letters execute the slow statement until the event is set."""
    measure = SqlDeadLetters.measure_letters

    async def slow(self: Any, endpoint: str, limit: int) -> Any:
        if not seen.is_set():
            async with self._database.reading() as connection:
                await connection.execute(text(SLOW[kind]))
            raise AssertionError("the statement has ended by itself")
        return await measure(self, endpoint, limit)

    monkeypatch.setattr(SqlDeadLetters, "measure_letters", slow)
    monkeypatch.setattr(endpoint_probes, "LETTERS_SECONDS", 0.01)


def shown(store: Any) -> Dashboard:
    """Return a dashboard of an endpoint with this store."""
    app = dashboard(endpoint(store=store), auth=loopback_only())
    assert isinstance(app, Dashboard)
    return app


@pytest.mark.parametrize("whose", ["url", "engine"])
@pytest.mark.parametrize("kind", ["mariadb", "postgresql"])
async def test_a_read_that_is_given_up_ends_in_the_server(
    monkeypatch: pytest.MonkeyPatch, kind: str, whose: str, url: str
) -> None:
    """Also on the connections of the application's own engine. Then the page recovers."""
    async with open_database(url) as database:
        await create(database, SCHEMA)
        await empty(database, [tables(database.prefix, database.schema).dead_letters])  # other tests use the database
    seen = asyncio.Event()
    slow_until(seen, kind, monkeypatch)
    async with engine_of(url) as looking, engine_of(url) as own:
        server, app = Server(looking, kind), shown(own if whose == "engine" else url)
        probe = app.services.endpoints["shop"].letters
        try:
            async with asyncio.timeout(120), app.sampler.running(app.environment.clock.now()):
                while not await server.running():  # noqa: ASYNC110 - a server has no event
                    await asyncio.sleep(0.02)
                seen.set()
                while await server.running():  # noqa: ASYNC110 - the same
                    await asyncio.sleep(0.02)
                await probe.wait_for(probe.rounds + 1)
                assert probe.value == 0
        finally:
            await server.end_all()


async def test_a_read_that_is_given_up_ends_in_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its connection can be closed, so the page recovers."""
    url, seen = f"sqlite:///{tmp_path}/shop.db", asyncio.Event()
    async with open_database(url) as database:
        await create(database, SCHEMA)
    slow_until(seen, "sqlite", monkeypatch)
    app = shown(url)
    probe = app.services.endpoints["shop"].letters
    async with asyncio.timeout(120), app.sampler.running(app.environment.clock.now()):
        await probe.wait_for(1)
        assert probe.outage is not None
        assert "no answer" in probe.outage.reason
        seen.set()
        await probe.wait_for(2)
        assert probe.value == 0
