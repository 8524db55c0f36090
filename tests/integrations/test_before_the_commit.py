"""Requests that fail before COMMIT is said: the client is told that nothing was done, whatever became of the server."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy.engine import make_url

from onceonly import Endpoint
from onceonly.errors import TransactionMisused
from onceonly.integrations.requests import RequestTerms
from tests.integrations.harness import APPLICATIONS, FRAMEWORKS, ServedApplication, serving
from tests.servers.available import free_port
from tests.servers.proxy import Proxy, listening

pytestmark = pytest.mark.slow


class Door(Proxy):
    """Lets everybody through, and can put out whoever is inside."""

    def slam(self) -> None:
        """Cut every connection that there is."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


@pytest.fixture(params=FRAMEWORKS, name="framework")
def each_framework(request: pytest.FixtureRequest) -> str:
    """Name a framework."""
    return str(request.param)


@asynccontextmanager
async def served_behind_a_door(url: str, framework: str, **terms: Any) -> AsyncIterator[tuple[ServedApplication, Door]]:
    """Serve on a server behind a door."""
    place = urlsplit(url)
    async with listening(Door((place.hostname or "", place.port or 5432))) as (door, port):
        through = make_url(url).set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        async with serving(url, through=through, make=APPLICATIONS[framework], **terms) as served:
            yield served, door


def told(response: httpx.Response) -> tuple[int, str, str | None]:
    """Read a problem: its status, its code, and when to ask again."""
    return response.status_code, response.json()["code"], response.headers.get("retry-after")


@pytest.mark.parametrize("key", ["k", None])
async def test_a_server_that_refuses_the_connection_has_done_nothing(
    postgresql_url: str, framework: str, key: str | None
) -> None:
    """It is down, so nothing can have been committed: with a key or without, the client may ask again."""
    down = make_url(postgresql_url).set(host="127.0.0.1", port=free_port()).render_as_string(hide_password=False)
    async with serving(postgresql_url, through=down, make=APPLICATIONS[framework], key_required=False) as served:
        assert told(await served.post("created", key)) == (503, "not-done", "1")


async def test_a_connection_that_is_dead_when_the_transaction_begins_has_done_nothing(
    postgresql_url: str, mariadb_url: str, framework: str
) -> None:
    """The server was restarted: whoever uses a dead connection of the pool first finds out, a relay or a janitor now and then.

    A request that is given a new connection succeeds, and leaves the dead ones to the next request. With asyncpg none fails.
    """
    if framework == "django":
        pytest.skip("Django opens a connection for each request. test_django.py has connections that are kept")
    for url in (postgresql_url.replace("postgresql:", "postgresql+psycopg:"), mariadb_url):
        async with served_behind_a_door(url, framework, key_required=False) as (served, door):
            rounds = 0
            for has_key in (True, False):
                failures = 0
                while not failures:
                    rounds += 1
                    failures += await failures_until(201, served, "created", f"before {rounds}" if has_key else None)
                    door.slam()
                    failures += await failures_until(204, served, "empty", f"after {rounds}" if has_key else None)
            assert Counter(await served.lines()) == {"created": rounds, "empty": rounds}


async def failures_until(status: int, served: ServedApplication, what: str, key: str | None) -> int:
    """Send a request until its answer has this status. Before that, each answer must say that nothing was done; counts them."""
    failures = 0
    while (answer := await served.post(what, key)).status_code != status:
        assert told(answer) == (503, "not-done", "1")
        failures += 1
    return failures


async def test_a_connection_that_dies_in_the_block_has_done_nothing(
    postgresql_url: str, mariadb_url: str, framework: str
) -> None:
    """COMMIT was never said, so the database rolls back; the retry is served anew."""
    for url in (postgresql_url, mariadb_url):
        async with served_behind_a_door(url, framework) as (served, door):

            async def slam(served: ServedApplication = served, door: Door = door) -> None:
                served.behaviour.before = None
                door.slam()

            served.behaviour.before = slam
            failed = await served.post("created")
            assert told(failed) == (503, "not-done", "1")
            assert "with the same Idempotency-Key" in failed.json()["detail"]
            assert await served.lines() == []
            assert (await served.post("created")).status_code == 201


async def test_a_route_may_have_less_time_for_its_commit_than_the_endpoint(tmp_path: Path, framework: str) -> None:
    """What is late is not committed, and the client is told so."""
    store = f"sqlite:///{tmp_path}/shop.db"
    async with serving(store, make=APPLICATIONS[framework], max_commit=timedelta(milliseconds=1)) as served:

        async def dawdle() -> None:
            await asyncio.sleep(0.02)

        served.behaviour.before = dawdle
        assert told(await served.post("created")) == (503, "not-done", "1")
        assert await served.lines() == []
    async with serving(store, make=APPLICATIONS[framework], max_commit=timedelta(minutes=1)) as served:
        assert (await served.post("created")).status_code == 201


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"max_commit": timedelta(hours=2)}, "max_commit must be"),
        ({"max_commit": 30}, "max_commit must be"),
        ({"max_commit": timedelta(days=8)}, "max_commit must be"),
        ({"wait": 0}, "wait must be"),
        ({"wait": -1.0}, "wait must be"),
    ],
)
def test_times_that_no_request_may_have_are_refused_with_the_route(terms: dict[str, Any], words: str) -> None:
    """When the module is imported, not at the first request."""
    with pytest.raises(TransactionMisused, match=words):
        RequestTerms(endpoint=Endpoint("shop", store="memory://x", transport="memory://x"), **terms)
