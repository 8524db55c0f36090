"""`onceonly schema upgrade` on tables of version 7, with the rows that version 7 wrote: what was known is known afterwards.

The files in tests/sql/earlier_schemas are what version 7 printed, and its rows: two endpoints, with claims of six days, claims
without an instant, and a record that waits for its dispatch.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import select

from onceonly.model.changed_retention import KnownRetention
from onceonly.model.message import Message
from onceonly.model.ring import Undecidable
from onceonly.ports.ring import Rotation
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import check, drop, versions_table
from onceonly.sql.store import SCHEMA, SqlRetention, SqlRing, SqlStore
from onceonly_conformance.clock import START, ManualClock
from onceonly_conformance.ring_subject import at
from tests.cli.terminal import Terminal
from tests.sql.every_database import PLACES
from tests.sql.harness import url
from tests.sql.test_ring import found, handled

Result = TypeVar("Result")
PREFIX = "seventh_"
FILES = Path(__file__).parents[1] / "sql" / "earlier_schemas"
DAY = 86_400_000
WEEK = KnownRetention(kept=7 * DAY)
ENDPOINTS = ("shop", "billing")
DAYS = [at(START - day * DAY, f"d{day}") for day in range(6)]
"""What both endpoints have handled, the youngest first."""
WITHOUT_INSTANT, PENDING, NEW = at(0, "plain"), at(START, "pending"), at(START, "new")


class OldTables:
    """The tables of version 7 in one database, and a clock that shows when their rows were written."""

    def __init__(self, place: str) -> None:
        self.url, self.clock = place, ManualClock()

    def run(self, step: Callable[[Database], Coroutine[None, None, Result]]) -> Result:
        """Run a step with the database open."""

        async def opened() -> Result:
            database = await open_database(self.url, clock=self.clock)
            try:
                return await step(database)
            finally:
                await database.close()

        return asyncio.run(opened())

    async def make(self, database: Database) -> None:
        """Make them, with their rows."""
        await drop(database, SCHEMA)
        name = {"mysql": "mariadb"}.get(database.engine.dialect.name, database.engine.dialect.name)
        await execute(database, (FILES / f"store_7_{name}.sql").read_text())

    async def version(self, database: Database) -> int | None:
        """Read their version."""
        async with database.reading() as connection:
            return await connection.scalar(select(versions_table(database).c.version))

    async def see(self, database: Database) -> None:
        """Check that each claim is known to its endpoint, for the retention that it had, and nothing else is."""
        await check(database, SCHEMA, thorough=True)
        for endpoint in ENDPOINTS:
            known = await found(self.store(database, endpoint), *DAYS, WITHOUT_INSTANT, NEW)
            assert known == (["new"], [], [*(f"d{day}" for day in range(6)), "plain"])
            assert await SqlRetention(database, endpoint, clock=self.clock).find() == WEEK
        assert await found(self.store(database, "shop"), PENDING) == ([], ["pending"], [])

    def store(self, database: Database, endpoint: str) -> SqlStore:
        """Open a store of this version, whose code asks for little."""
        return SqlStore(database, endpoint, retention=1, clock=self.clock)


async def execute(database: Database, script: str) -> None:
    """Run the statements of a script."""
    async with database.writing() as connection:
        for statement in filter(str.strip, script.split(";\n")):
            await connection.exec_driver_sql(statement)


@pytest.fixture(params=PLACES)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OldTables]:
    """Make the tables of version 7 in each SQL database, and drop what became of them."""
    system, _, driver = request.param.partition("+")
    place = url(tmp_path / "old.db") if system == "sqlite" else request.getfixturevalue(f"{system}_url")
    if driver:
        place = place.replace(f"{system}:", f"{request.param}:", 1)
    tables = OldTables(f"{place}?prefix={PREFIX}")
    tables.run(tables.make)
    yield tables
    tables.run(lambda database: drop(database, SCHEMA))


def test_claims_of_version_7_are_known_after_the_upgrade(old: OldTables, onceonly: Terminal) -> None:
    """Before it no command uses the tables. After it all claims are in the first ring, of both endpoints, for a week."""
    refused = onceonly("schema", "check", old.url, "--component", "store")
    assert (refused.code, old.run(old.version)) == (1, 7)
    assert "run `onceonly schema upgrade" in refused.out + refused.err
    assert onceonly("schema", "upgrade", old.url, "--component", "store").code == 0
    assert old.run(old.version) == 8
    old.run(old.see)
    assert onceonly("schema", "upgrade", old.url, "--component", "store").code == 0
    old.run(old.see)


def test_statements_printed_for_version_7_do_the_same(old: OldTables, onceonly: Terminal) -> None:
    """A person runs them. Printing changes nothing."""
    printed = onceonly("schema", "upgrade", old.url, "--component", "store", "--print")
    assert (printed.code, old.run(old.version)) == (0, 7)
    old.run(lambda database: execute(database, printed.out))
    old.run(old.see)


@pytest.mark.parametrize("old", ["mariadb"], indirect=True)
def test_an_upgrade_that_was_interrupted_goes_on(old: OldTables, onceonly: Terminal) -> None:
    """MariaDB commits with each table that is changed, so an upgrade can stop after any of its statements."""
    printed = onceonly("schema", "upgrade", old.url, "--component", "store", "--print").out
    steps = [each for each in printed.split(";\n") if each.strip()]
    assert len(steps) > 3
    for stopped in range(1, len(steps)):
        old.run(old.make)
        script = ";\n".join(steps[:stopped])
        old.run(lambda database, script=script: execute(database, script))
        assert onceonly("schema", "upgrade", old.url, "--component", "store").code == 0
        old.run(old.see)


def test_claims_of_version_7_follow_a_change_of_the_retention(old: OldTables, onceonly: Terminal) -> None:
    """Raised, they are kept for longer. Lowered, they are forgotten, and their copies refused."""
    assert onceonly("schema", "upgrade", old.url, "--component", "store").code == 0

    async def change(database: Database) -> None:
        await SqlRetention(database, "shop", clock=old.clock).change(30 * DAY)
        old.clock.advance(20 * DAY)
        await rotate(database, old.clock)
        assert await found(old.store(database, "shop"), *DAYS) == ([], [], [f"d{day}" for day in range(6)])
        await SqlRetention(database, "shop", clock=old.clock).change(DAY)
        old.clock.advance(20 * DAY)
        await rotate(database, old.clock)
        assert await reasons(old.store(database, "shop"), *DAYS[1:]) == [Undecidable.TOO_OLD] * 5  # d0: beside the pending one
        fresh = at(old.clock.now(), "fresh")
        assert await handled(old.store(database, "shop"), fresh) == ("fresh",)
        assert await handled(old.store(database, "shop"), fresh) == ()

    old.run(change)


def test_claims_of_version_7_expire_as_before(old: OldTables, onceonly: Terminal) -> None:
    """After their week, those without an instant too; a bucket with a pending record is kept."""
    assert onceonly("schema", "upgrade", old.url, "--component", "store").code == 0

    async def expire(database: Database) -> None:
        old.clock.advance(9 * DAY)
        assert Rotation.PENDING in await rotate(database, old.clock)
        store = old.store(database, "shop")
        assert await reasons(store, *DAYS[1:]) == [Undecidable.TOO_OLD] * 5
        assert await found(store, DAYS[0], PENDING, WITHOUT_INSTANT) == (["plain"], ["pending"], ["d0"])

    old.run(expire)


async def rotate(database: Database, clock: ManualClock) -> set[Rotation]:
    """Do what a janitor does."""
    ring = SqlRing(database, "shop", retention=1, clock=clock)
    ended = {await ring.rotate(bucket.number) for bucket in await ring.buckets()}
    await ring.remove_expired()
    return ended


async def reasons(store: SqlStore, *asked: Message) -> list[Undecidable]:
    """Return why messages are refused."""
    unit = await store.begin(asked)
    unit.abandon()
    return [each.reason for each in unit.found.undecidable]
