"""The journal works with the rights that docs/how-to/maintenance.md names, and each of them is needed."""

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import pytest
from sqlalchemy import URL, make_url

from onceonly.config.retention import Journal
from onceonly.model.conversation import RETRIED, JournalEntry
from onceonly.model.errors import OnceOnlyError
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.schema import create, versions_table
from onceonly.sql.store import JOURNAL_SCHEMA, SCHEMA, SqlMessageJournal, SqlStore
from onceonly_conformance.clock import ManualClock
from onceonly_conformance.samples import message
from tests import ROOT
from tests.servers.available import on_mariadb, on_postgresql
from tests.sql.emptying import empty
from tests.sql.harness import opened

DAY = 86_400_000
EVENTS, SETTINGS = "`journal_0` to `journal_3`", "`journal_settings`"


def documented(system: str) -> dict[str, tuple[str, ...]]:
    """Read the table of rights: by tables, those of a worker on this system."""
    text = (ROOT / "docs/how-to/maintenance.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `journal_")
    ]
    column = 1 if system == "postgresql" else 2
    found = {row[0]: tuple(re.findall(r"\b[A-Z]{2,}\b", row[column])) for row in rows if row[0] in {EVENTS, SETTINGS}}
    assert set(found) == {EVENTS, SETTINGS}
    return found


class Owner:
    """The user that owns the tables, which makes another one and gives it rights."""

    def __init__(self, database: Database) -> None:
        self.url = database.engine.url
        self.is_postgresql = self.url.get_backend_name() == "postgresql"
        self.name = f"teller_{uuid4().hex[:8]}"
        self.user = self.name if self.is_postgresql else f"'{self.name}'@'%%'"
        place = (database.prefix, database.schema)
        self.others = [versions_table(database).name, *(table.name for table in SCHEMA.tables(*place).sorted_tables)]
        self.prefix = database.prefix

    async def run(self, *statements: str) -> None:
        """Run statements."""
        run: Callable[..., object] = on_postgresql if self.is_postgresql else on_mariadb
        await run(*statements, url=self.url.set(query={}).render_as_string(hide_password=False))  # type: ignore[misc]

    def granting(self, rights: Sequence[str], *tables: str) -> list[str]:
        """Return the statements that give these rights; a new number of a row needs its sequence where there are such."""
        return [f"GRANT {', '.join(rights)} ON {table} TO {self.user}" for table in tables]

    def tables_of(self, row: str) -> list[str]:
        """Return the tables that a row of the documentation means."""
        names = ["settings"] if row == SETTINGS else [str(number) for number in range(4)]
        return [f"{self.prefix}journal_{name}" for name in names]

    async def grant(self, without: str = "") -> None:
        """Return all rights on the other tables, and those of the documentation without one on the journal's."""
        statements = self.granting(["ALL"], *self.others)
        for row, rights in documented("postgresql" if self.is_postgresql else "mariadb").items():
            for table in self.tables_of(row):
                chosen = [right for right in rights if f"{right} {row}" != without and right != "USAGE"]
                statements += self.granting(chosen, table)
                if "USAGE" in rights and f"USAGE {row}" != without and self.is_postgresql:
                    statements.append(f"GRANT USAGE ON SEQUENCE {table}_position_seq TO {self.user}")
        if self.is_postgresql:
            sequences = [f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {self.user}"]
            sequences += [f"REVOKE ALL ON SEQUENCE {table}_position_seq FROM {self.user}" for table in self.tables_of(EVENTS)]
            statements = sequences + statements
        await self.run(*statements)


@asynccontextmanager
async def teller(server: str, without: str = "") -> AsyncIterator[tuple[Database, SqlMessageJournal, ManualClock]]:
    """Open the journal as a user with the documented rights, all but one."""
    clock = ManualClock()
    async with opened(server) as owned:
        for schema in (SCHEMA, JOURNAL_SCHEMA):
            await create(owned, schema)
            await empty(owned, schema.tables(owned.prefix, owned.schema).sorted_tables)
        owner = Owner(owned)
        make = f"CREATE ROLE {owner.user} LOGIN" if owner.is_postgresql else f"CREATE USER {owner.user}"
        await owner.run(make)
        try:
            await owner.grant(without)
            place: URL = make_url(server).set(username=owner.name, password=None)
            async with opened(place.render_as_string(hide_password=False), clock=clock) as database:
                yield database, SqlMessageJournal(database, "shop", Journal(keep=timedelta(days=2))), clock
        finally:
            drop = (
                [f"DROP OWNED BY {owner.user}", f"DROP ROLE {owner.user}"]
                if owner.is_postgresql
                else [f"DROP USER {owner.user}"]
            )
            await owner.run(*drop)


async def a_life(database: Database, journal: SqlMessageJournal, clock: ManualClock) -> list[int]:
    """Handle, add, read and rotate, until the first table has been emptied; gives how many tables each rotation emptied."""
    unit = await SqlStore(database, "shop", journal=journal).begin([message("m1")])
    await unit.commit([Record(message("m1").identity)])
    await journal.add([JournalEntry(message=message("m1"), outcome=RETRIED, at=clock.now())])
    assert len((await journal.of_message(message("m1").identity)).events) == 2
    lasting = SqlMessageJournal(database, "shop", Journal(keep=timedelta(days=1)))
    await lasting.rotate()
    rotated = []
    for _ in range(4):
        clock.advance(DAY)
        rotated.append(await journal.rotate())
    return rotated


async def test_the_documented_rights_are_enough(server: str) -> None:
    """A worker with a janitor needs no others, on PostgreSQL and on MariaDB."""
    async with teller(server) as (database, journal, clock):
        assert await a_life(database, journal, clock) == [0, 0, 1, 0]


RIGHTS = sorted(
    (system, f"{right} {row}")
    for system in ("postgresql", "mariadb")
    for row, rights in documented(system).items()
    for right in rights
)


@pytest.mark.parametrize(("system", "missing"), RIGHTS)
async def test_each_documented_right_is_needed(request: pytest.FixtureRequest, system: str, missing: str) -> None:
    """The database refuses some part of a journal's life without it."""
    made: str = request.getfixturevalue(f"{system}_url")
    async with teller(f"{made}?prefix=every_", without=missing) as (database, journal, clock):
        with pytest.raises(OnceOnlyError, match=r"(?i)denied"):
            await a_life(database, journal, clock)
