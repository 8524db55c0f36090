"""A store that is away, or whose tables are of another version: the pages stand, name it, and recover without a reload."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from onceonly import Endpoint
from onceonly.assembly import open_database
from onceonly.runtime.environment import LIVE, Environment
from onceonly.sql.schema import create
from onceonly.sql.store import SCHEMA
from onceonly_conformance.clock import ManualClock
from onceonly_dashboard import loopback_only
from onceonly_dashboard.access import EVERYONE, ROLES
from onceonly_dashboard.app import Dashboard
from onceonly_dashboard.gate import AccessSettings, FormTokens
from tests.dashboard.serving import NOW, endpoint, letter, sampled, store
from tests.dashboard.test_gate import open_client
from tests.dashboard.test_reading import SteppedTimer
from tests.servers.forwarding import Door

JSON = {"accept": "application/json"}
LISTS = ("/dead", "/pending", "/claims", "/find?source=web&id=A-1")
"""Pages with a part for each endpoint."""


class Times:
    """A dashboard of two endpoints whose clocks a test moves."""

    def __init__(self, *endpoints: Endpoint) -> None:
        self.clock, self.timer = ManualClock(NOW), SteppedTimer()
        access = AccessSettings(loopback_only(), {EVERYONE: frozenset(ROLES)}, frozenset({"localhost"}), read_only=False)
        environment = Environment(self.clock, LIVE.random, LIVE.ids, self.timer)
        self.app = Dashboard(endpoints, access, FormTokens(None), environment=environment)

    async def read_again(self) -> None:
        """Let every probe read once more."""
        probes = [probe for each in self.app.services.endpoints.values() for probe in each.all_probes]
        before = [probe.rounds for probe in probes]
        for _ in range(len(probes) + len(self.app.services.endpoints)):
            self.timer.allow()
        for probe, rounds in zip(probes, before, strict=True):
            await probe.wait_for(rounds + 1)


async def states(client: httpx.AsyncClient) -> dict[str, Any]:
    """Return the rows of the overview by endpoint."""
    response = await client.get("/", headers=JSON)
    assert response.status_code == 200
    return {row["name"]: row for row in response.json()["endpoints"]}


async def problems(client: httpx.AsyncClient) -> list[list[str]]:
    """Return what is wrong with each endpoint, for each page with lists."""
    found = []
    for page in LISTS:
        response = await client.get(page, headers=JSON)
        assert (response.status_code, (await client.get(page)).status_code) == (200, 200)
        data = response.json()
        found.append([each["problem"] for each in data.get("endpoints") or data["answers"]])
    return found


def store_reasons(row: Any) -> list[tuple[str, int]]:
    """Return why the store of an endpoint cannot be used, and since when."""
    return [(each["reason"], each["since"]) for each in row["findings"] if each["part"] == "store"]


@contextmanager
def version(file: Path, number: int) -> Iterator[None]:
    """Let the tables of a store have another version."""

    def change(to: int) -> int:
        with closing(sqlite3.connect(file)) as connection:
            (found,) = connection.execute("SELECT version FROM onceonly_schema WHERE component = 'store'").fetchone()
            connection.execute("UPDATE onceonly_schema SET version = ? WHERE component = 'store'", (to,))
            connection.commit()
        return int(found)

    own = change(number)
    yield
    change(own)


@pytest.mark.parametrize(("number", "words"), [(1, "version 1, which cannot be upgraded"), (99, "version 99")])
async def test_tables_of_another_version_are_named(tmp_path: Path, number: int, words: str) -> None:
    """Too old or too new: of this endpoint only, with what to do. Once they are right, the next read shows it."""
    files = {name: tmp_path / f"{name}.db" for name in ("shop", "billing")}
    shop, billing = (endpoint(name, store=f"sqlite:///{file}") for name, file in files.items())
    for each in (shop, billing):
        await store(each, [letter(each.settings.name)])
    times = Times(shop, billing)
    async with open_client(times.app) as client:
        with version(files["shop"], number):
            await client.get("/")
            await sampled(times.app)
            found = await states(client)
            ((reason, since),) = store_reasons(found["shop"])
            assert found["shop"]["state"] == "failing"
            assert words in reason
            assert since == NOW
            assert store_reasons(found["billing"]) == []
            for one, other in await problems(client):
                assert words in one
                assert other == ""
        await times.read_again()
        found = await states(client)
        assert store_reasons(found["shop"]) == []
        assert found["shop"]["dead"]["value"] == 1
        assert await problems(client) == [["", ""]] * len(LISTS)


async def test_a_database_that_is_away_keeps_its_numbers(postgresql_url: str, tmp_path: Path) -> None:
    """With their age and since when it is away. The other endpoint works, and the first one does again once it is back."""
    door = Door(f"{postgresql_url}?prefix=away_")
    billing = endpoint("billing", store=f"sqlite:///{tmp_path}/billing.db")
    await store(billing, [letter("billing")])
    shop = endpoint("shop", store=door.url)
    times = Times(shop, billing)
    async with open_client(times.app) as client:
        with door.opened():
            async with open_database(door.url) as database:
                await create(database, SCHEMA)
            await store(shop, [letter()])
            await client.get("/")
            await sampled(times.app)
            assert (await states(client))["shop"]["dead"]["value"] == 1
            assert await problems(client) == [["", ""]] * len(LISTS)
        times.clock.advance(7000)
        await times.read_again()
        times.clock.advance(5000)
        found = await states(client)
        assert [since for _, since in store_reasons(found["shop"])] == [NOW + 7000]
        assert (found["shop"]["dead"]["value"], found["shop"]["dead"]["stale"]) == (1, 12)
        assert store_reasons(found["billing"]) == []
        for one, other in await problems(client):
            assert one != ""
            assert other == ""
        with door.opened():
            await times.read_again()
            found = await states(client)
            assert store_reasons(found["shop"]) == []
            assert "stale" not in found["shop"]["dead"]
            assert await problems(client) == [["", ""]] * len(LISTS)
