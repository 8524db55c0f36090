"""The store's tables of every earlier version become those of this one, on every SQL database, and keep what is in them."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Table, insert, select, text, update

from onceonly.conformance.clock import ManualClock
from onceonly.model.errors import SchemaMissing
from onceonly.model.record import Record
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import check, create, drop, render_upgrade, upgrade, versions_table
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly.sql.store.statements import row_of
from onceonly.sql.store.tables import Tables, tables
from tests.sql.harness import ONE_EFFECT, catalog, look, message, url

LATER = 1 << 52


@asynccontextmanager
async def without_tables(place: str) -> AsyncIterator[Database]:
    """Open a database under a prefix of this test's own, and leave no table in it."""
    database = await open_database(place, clock=ManualClock(), prefix="older_")
    await drop(database, SCHEMA)
    try:
        yield database
        await drop(database, SCHEMA)
    finally:
        await database.close()


def _drop_index(connection: Connection, table: Table, name: str) -> None:
    (index,) = (each for each in table.indexes if each.name == f"older_{name}")
    index.drop(connection)


def _back_to_fifth(connection: Connection, own: Tables) -> None:
    for table in (own.processes, own.actions, own.action_items):
        table.drop(connection)
    for name in ("dead_letters_endpoint", "dead_letters_failure", "dead_letters_identity"):
        _drop_index(connection, own.dead_letters, name)
    _drop_index(connection, own.register, "register_opened_at")
    for column in ("failure", "identity"):
        connection.execute(text(f"ALTER TABLE older_dead_letters DROP COLUMN {column}"))


def _back_to_fourth(connection: Connection, own: Tables) -> None:
    _drop_index(connection, own.records, "records_stored_at")
    own.unsubscribed.drop(connection)


def _back_to_third(connection: Connection, own: Tables) -> None:
    own.starts.drop(connection)


def _back_to_second(connection: Connection, own: Tables) -> None:
    for table in (own.ring, *own.buckets, own.janitor):
        table.drop(connection)
    for table, name in ((own.records, "records_claim"), (own.claims, "claims_arrived_at"), (own.keys, "keys_stored_at")):
        _drop_index(connection, table, name)
    for column in ("claim", "taken_at"):
        connection.execute(text(f"ALTER TABLE older_records DROP COLUMN {column}"))
    connection.execute(text("ALTER TABLE older_claims DROP COLUMN arrived_at"))


def _back_to_first(connection: Connection, own: Tables) -> None:
    for table in (own.entities, own.register, own.tokens, own.keys):
        table.drop(connection)


BACK: dict[int, Callable[[Connection, Tables], None]] = {
    5: _back_to_fifth,
    4: _back_to_fourth,
    3: _back_to_third,
    2: _back_to_second,
    1: _back_to_first,
}
"""What makes the tables of a version from those of the one after it."""


def shape(connection: Connection) -> dict[str, Any]:
    """Describe all tables of the store: columns, and indexes with their columns."""
    found, own = catalog(connection), tables("older_")
    return {
        table.name: (
            {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(table.name)},
            {index["name"]: index["column_names"] for index in found.get_indexes(table.name)},
        )
        for table in own.metadata.sorted_tables
    }


async def make_version(database: Database, version: int) -> None:
    """Make the tables of an earlier version, with a claimed message whose record waits."""
    own, versions, pending = tables("older_"), versions_table(database), message("pending")
    row = row_of("shop", Record(pending.identity, ONE_EFFECT), 1)

    def fill_and_step_back(connection: Connection) -> None:
        connection.execute(insert(own.claims), [{"key": row["key"], "fingerprint": pending.fingerprint}])
        connection.execute(insert(own.records), [row])
        for step in range(SCHEMA.version - 1, version - 1, -1):
            BACK[step](connection, own)
        connection.execute(update(versions).values(version=version))

    async with database.writing() as connection:
        await connection.run_sync(fill_and_step_back)


def test_every_earlier_version_is_tested() -> None:
    """A new version adds its step back here."""
    assert set(BACK) == set(SCHEMA.upgrades) == set(range(1, SCHEMA.version))


@pytest.mark.parametrize("version", sorted(BACK))
async def test_the_tables_of_every_version_become_those_of_this_one_in_sqlite(file: Path, version: int) -> None:
    """Columns and indexes equal those of new tables. The claim is known and its record can be taken."""
    await check_upgrade(url(file), version)


@pytest.mark.slow
@pytest.mark.parametrize("version", sorted(BACK))
async def test_the_tables_of_every_version_become_those_of_this_one_on_servers(server: str, version: int) -> None:
    """The same on PostgreSQL and MariaDB."""
    await check_upgrade(server, version)


async def check_upgrade(place: str, version: int) -> None:
    """Make the tables of a version, upgrade them, and compare."""
    async with without_tables(place) as old:
        await create(old, SCHEMA)
        async with old.reading() as connection:
            new = await connection.run_sync(shape)
        await make_version(old, version)
        with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
            await check(old, SCHEMA)
        await upgrade(old, SCHEMA)
        await upgrade(old, SCHEMA)
        async with old.reading() as connection:
            assert await connection.run_sync(shape) == new
            assert (await connection.execute(select(versions_table(old).c.version))).scalars().all() == [SCHEMA.version]
        assert await look(SqlStore(old, "shop"), message("pending")) == {"pending": ["pending"]}
        (taken,) = await SqlStore(old, "shop").take(LATER, 10, lease=1)
        assert taken.identity == message("pending").identity


async def test_what_is_printed_upgrades_and_printing_changes_nothing(place: str) -> None:
    """From the version before. On MariaDB too, where a change of a table commits."""
    async with without_tables(place) as old:
        await create(old, SCHEMA)
        await make_version(old, SCHEMA.version - 1)
        printed = await render_upgrade(old, SCHEMA)
        with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
            await check(old, SCHEMA)
        async with old.writing() as connection:
            for statement in filter(str.strip, printed.split(";\n")):
                await connection.execute(text(statement))
        await check(old, SCHEMA)
        async with old.reading() as connection:
            columns, indexes = (await connection.run_sync(shape))["older_dead_letters"]
        assert {"failure", "identity"} < set(columns)
        assert "older_dead_letters_failure" in indexes
        assert await render_upgrade(old, SCHEMA) == ""
