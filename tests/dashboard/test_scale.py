"""The pages beside a million records, claims and messages and a hundred thousand dead letters: what their statements read."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from sqlalchemy import text

from benchmarks.scale import ENDPOINT, OTHER, SOURCE, Scale, fill
from onceonly import Endpoint
from onceonly.runtime.environment import LIVE
from onceonly.sql.database import Database, open_database
from onceonly.sql.queue import SCHEMA as QUEUE
from onceonly.sql.schema import drop
from onceonly.sql.store import SCHEMA as STORE
from onceonly.sql.store import dead_letters as letters_module
from onceonly_dashboard import dashboard, endpoint_probes, loopback_only
from onceonly_dashboard.views import letters as letters_view
from tests.dashboard.serving import endpoint, sampled
from tests.dashboard.test_gate import open_client
from tests.sql.statement_work import Sent, sent_statements, work_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MOST_SORTED = 1_000
LISTED = 1_001
"""Rows of a list, with one more that shows that there are more."""
LIMIT = 3_000
"""The limit of counts and searches in this test: less than there is of anything that is counted."""
ALLOWANCE = 100
"""Rows that a limited statement reads beyond its limit: of another endpoint between its own, or the last one twice."""
READING = ("SELECT", "SHOW", "DESCRIBE", "SET", "PRAGMA", "BEGIN", "ROLLBACK", "COMMIT")


@dataclass
class Place:
    """A database that is full."""

    url: str

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Database]:
        """Open it for a test."""
        database = await open_database(self.url, clock=LIVE.clock)
        try:
            yield database
        finally:
            await database.close()

    def endpoints(self) -> list[Endpoint]:
        """Make the endpoints that use it."""
        return [endpoint(name, store=self.url, transport=self.url) for name in (ENDPOINT, OTHER)]


@pytest.fixture(scope="module", params=["postgresql", "mariadb", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Fill a database, once for all tests, and drop its tables."""
    if request.param == "sqlite":
        place = Place(f"sqlite:///{tmp_path_factory.mktemp('scale')}/scale.db")
    else:
        place = Place(f"{request.getfixturevalue(f'{request.param}_url')}?prefix=scale_")

    async def within(work: Callable[[Database], Coroutine[Any, Any, None]]) -> None:
        async with place.opened() as database:
            await work(database)

    asyncio.run(within(lambda database: fill(database, Scale())))
    try:
        yield place
    finally:
        asyncio.run(within(lambda database: drop(database, STORE, QUEUE)))


async def visited(client: httpx.AsyncClient) -> dict[str, Any]:
    """Open every page that reads messages, and return their data by path."""
    found: dict[str, Any] = {}

    async def get(path: str) -> Any:
        response = await client.get(path, headers={"accept": "application/json"})
        assert response.status_code == 200, (path, response.text)
        found[path] = response.json()
        return found[path]

    groups = (await get("/dead"))["endpoints"][0]["groups"]
    group = f"/dead/g/{groups[0]['key']}?endpoint={ENDPOINT}"
    for each in (group, f"/dead/g/all?endpoint={ENDPOINT}", f"/dead/g/all?endpoint={OTHER}"):
        page = await get(each)
        await get(f"{each}&after={page['after']}")
    for type_ in ("PlaceOrder", "Nothing"):
        page = await get(f"/dead/g/all?endpoint={ENDPOINT}&type={type_}")
        await get(f"/dead/g/all?endpoint={ENDPOINT}&type={type_}&after={page['after']}")
        await get(f"/dead/g/all?endpoint={OTHER}&type={type_}")
    letter = (await get(group))["letters"][0]
    await get(f"/dead/{letter['key']}")
    await get(f"/find?source={SOURCE}&id={letter['id']}")
    await get(f"/find?source={SOURCE}&id=A-0")
    for path in (
        "/",
        f"/e/{ENDPOINT}",
        f"/e/{OTHER}",
        "/pending",
        "/claims",
        "/settings",
        "/actions",
        f"/actions/{ENDPOINT}/1",
    ):
        await get(path)
    return found


async def statements_of(place: Place) -> list[Sent]:
    """Return the statements on tables that all pages and all probes send, each once. Some may have been given up after 2 s."""
    with sent_statements() as sent:
        app: Any = dashboard(*place.endpoints(), auth=loopback_only())
        async with open_client(app) as client:
            await client.get("/")
            await sampled(app)
            await visited(client)
    assert [each.text for each in sent if not each.text.lstrip().upper().startswith(READING)] == []
    distinct = {(each.text, str(each.parameters)): each for each in sent if "FROM" in each.text}
    return list(distinct.values())


async def problems_of(place: Place, most_read: int) -> dict[str, list[str]]:
    """Return what is wrong with each statement of the pages."""
    statements = await statements_of(place)
    assert len(statements) > 20
    async with place.opened() as database:
        found = {each.text: (await work_of(database, each)).problems(most_read, MOST_SORTED) for each in statements}
        if database.dialect.name == "sqlite":  # with a limit it groups letters, at most 200,000, in a tree of its own
            exempt = {statement for statement in found if "GROUP BY" in statement and "LIMIT" in statement}
            found = {statement: problems for statement, problems in found.items() if statement not in exempt}
    return {statement: problems for statement, problems in found.items() if problems}


async def test_no_page_reads_or_sorts_much(place: Place) -> None:
    """With the real limits nothing is sorted, and nothing is read beyond what is counted."""
    assert await problems_of(place, letters_module.COUNTED + 1) == {}


def lower_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count and search only up to `LIMIT`."""
    monkeypatch.setattr(letters_module, "COUNTED", LIMIT)
    monkeypatch.setattr(letters_view, "SEARCHED", LIMIT)
    monkeypatch.setattr(letters_view, "MOST", LIMIT)
    monkeypatch.setattr(endpoint_probes, "MOST", LIMIT)


async def test_every_statement_is_limited(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With lower limits everything reads less, however much there is: nothing is read whole."""
    lower_limits(monkeypatch)
    assert await problems_of(place, LIMIT + ALLOWANCE) == {}


async def test_counts_beyond_a_limit_are_shown_as_such(place: Place) -> None:
    """Also in the data: the page does not claim that the limit is the number."""
    app: Any = dashboard(*place.endpoints(), auth=loopback_only())
    async with open_client(app) as client:
        await client.get("/")
        await sampled(app)
        page = (await client.get("/")).text
        assert [probe.outage for probes in app.services.endpoints.values() for probe in probes.all_probes] == [None] * 6
        found = await visited(client)
    assert "&gt; 100,000" in page
    assert "&gt; 1,000" in page
    assert found["/pending"]["endpoints"][0]["more"]
    assert found[f"/dead/g/all?endpoint={ENDPOINT}"]["total"] == 99_000
    assert sum(group["count"] for group in found["/dead"]["endpoints"][0]["groups"]) == 99_000


INDEXES = ("dead_letters_identity", "messages_next", "records_stored_at")


@pytest.mark.parametrize("index", INDEXES)
async def test_the_check_detects_a_missing_index(place: Place, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: without the index a page reads or sorts too much, and the check reports that."""
    lower_limits(monkeypatch)
    async with place.opened() as database:
        name = database.prefix + index
        table = next(each for each in tables_of(database) if name in {found.name for found in each.indexes})
        (dropped,) = (each for each in table.indexes if each.name == name)
        on = f" ON {table.name}" if database.dialect.name == "mysql" else ""
        async with database.autocommitting() as connection:
            await connection.execute(text(f"DROP INDEX {name}{on}"))
        try:
            assert await problems_of(place, LIMIT + ALLOWANCE) != {}
        finally:
            async with database.writing() as connection:
                await connection.run_sync(dropped.create)


def tables_of(database: Database) -> list[Any]:
    """Return all tables."""
    return [each for schema in (STORE, QUEUE) for each in schema.tables(database.prefix, database.schema).sorted_tables]
