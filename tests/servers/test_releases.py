"""Newer releases of the servers: their tests once more, and demos in which processes are killed."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from onceonly_demo.flights import load
from onceonly_demo.options import Deduplication, DemoOptions
from onceonly_demo.run import run
from tests import ROOT
from tests.again import run_again
from tests.faults.demo_harness import exactly_once
from tests.servers.available import (
    MEASURED,
    NATS,
    POSTGRESQL,
    RABBITMQ,
    REDIS,
    SERVERS,
    Server,
    mariadb_database,
    need,
    postgresql_database,
)
from tests.servers.releases import (
    MARIADB_11_8,
    NATS_2_15,
    POSTGRESQL_18,
    RABBITMQ_4_3,
    REDIS_8,
    VALKEY_9,
    NewServer,
    started,
)
from tests.servers.versions import version_of

SECONDS = 1500
FLIGHTS, KILLS = 400, 20


class Selection(NamedTuple):
    """The tests of a server: their files, the words that choose among them, and the fewest that must pass."""

    new: NewServer
    paths: tuple[str, ...]
    words: str
    least: int

    @property
    def name(self) -> str:
        """Return the server and its version."""
        return f"{self.new.server.name} {self.new.version}"


SELECTIONS = (
    Selection(
        POSTGRESQL_18, ("tests/adapters/postgresql", "tests/sql", "tests/conformance", "tests/faults"), "postgresql", 1000
    ),
    Selection(MARIADB_11_8, ("tests/adapters/mariadb", "tests/sql", "tests/conformance"), "mariadb", 600),
    Selection(REDIS_8, ("tests/adapters/redis", "tests/conformance"), "redis", 300),
    Selection(VALKEY_9, ("tests/adapters/redis", "tests/conformance"), "redis", 300),
    Selection(NATS_2_15, ("tests/adapters/nats", "tests/conformance", "tests/faults/test_server_restarts.py"), "nats", 200),
    Selection(
        RABBITMQ_4_3, ("tests/adapters/rabbitmq", "tests/conformance", "tests/faults/test_server_restarts.py"), "rabbitmq", 250
    ),
)


async def checked(new: NewServer, url: str) -> None:
    """Check that a run would not be with another server than the one that was asked for."""
    assert (await version_of(url)).startswith(new.version)


async def once_more(chosen: Selection, report: Path) -> None:
    """Run the tests with this release, and say how many there were."""
    with started(chosen.new) as variables:
        await checked(chosen.new, variables[chosen.new.server.variable])
        since = time.monotonic()
        found = await asyncio.to_thread(
            run_again, chosen.paths, report, "-k", chosen.words, environment=variables, seconds=SECONDS
        )
        found.check(chosen.least)
        MEASURED.append(f"{chosen.name}: {found.count()} tests in {time.monotonic() - since:.0f} s")


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.longest
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("chosen", SELECTIONS, ids=lambda chosen: chosen.name)
async def test_every_promise_is_kept_on_a_newer_release(chosen: Selection, tmp_path: Path) -> None:
    """Suites, adapters, and servers that are stopped and killed."""
    await once_more(chosen, tmp_path / "report.xml")


@contextmanager
def place_of(server: Server, url: str) -> Iterator[DemoOptions]:
    """Make options whose store is on this database, or whose transport is this broker, beside a PostgreSQL that is here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(server.variable, url)
        if server is POSTGRESQL:
            with postgresql_database() as store:
                yield DemoOptions(store=store, transport=store)
        elif server.variable in {REDIS.variable, NATS.variable, RABBITMQ.variable}:
            with postgresql_database() as store:
                yield DemoOptions(store=store, transport=url)
        else:
            with mariadb_database() as store:
                yield DemoOptions(store=store, transport=store)


@pytest.mark.slow
@pytest.mark.repeated
@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("new", [each.new for each in SELECTIONS], ids=[each.name for each in SELECTIONS])
@pytest.mark.parametrize("kind", [Deduplication.HISTORY, Deduplication.TOKENS], ids=lambda kind: kind.value)
async def test_every_flight_counts_once_on_a_newer_release(new: NewServer, kind: Deduplication) -> None:
    """Databases are store and queue, brokers are the transport; processes are killed while they hold messages."""
    with started(new) as variables:
        url = variables[new.server.variable]
        await checked(new, url)
        with place_of(new.server, url) as place:
            options = DemoOptions(
                flights=FLIGHTS, kills=KILLS, deduplication=kind, store=place.store, transport=place.transport
            )
            since = time.monotonic()
            exactly_once(await run(load(options.flights), options, lambda _: None), options)
    MEASURED.append(
        f"{new.server.name} {new.version}: {kind.value}, {FLIGHTS} flights, {KILLS} kills, {time.monotonic() - since:.0f} s"
    )


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: server.name)
async def test_a_server_says_which_version_it_is(server: Server) -> None:
    """Control: that of this machine is not taken for a newer one."""
    url = need(server)
    found = await version_of(url)
    assert re.match(r"\d+\.\d+", found)
    MEASURED.append(f"the {server.name} of this session is {found}")
    with pytest.raises(AssertionError):
        await checked(POSTGRESQL_18._replace(version="0.0"), url)


def test_each_selection_is_of_files_that_are_there() -> None:
    """And no release is left out."""
    assert [each for chosen in SELECTIONS for each in chosen.paths if not (ROOT / each).exists()] == []
