"""The versioned schema: created once by whoever comes first, checked at start, upgraded by command."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, inspect, select, text, update

from onceonly.model.errors import SchemaMissing, SchemaTooNew
from onceonly.sql.database import Database, open_database
from onceonly.sql.schema import Schema, check, create, drop, render, render_upgrade, upgrade, versions_table
from onceonly.sql.store import SCHEMA
from onceonly_conformance.clock import ManualClock
from tests.sql.harness import counted, opened, url


def toys_of_version_3(prefix: str, _schema: str | None = None) -> MetaData:
    """Return the tables of a component as of version 3."""
    metadata = MetaData()
    Table(
        f"{prefix}toys", metadata, Column("id", Integer, primary_key=True), Column("weight", Integer), Column("price", Integer)
    )
    return metadata


def old_toys(prefix: str, _schema: str | None = None) -> MetaData:
    """Return its table as of version 1."""
    metadata = MetaData()
    Table(f"{prefix}toys", metadata, Column("id", Integer, primary_key=True))
    return metadata


def adding(name: str) -> object:
    """Make the step that adds a column."""

    def step(connection: Connection, metadata: MetaData) -> None:
        table = next(iter(metadata.tables))
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER"))

    return step


PREFIX = "toys_"
FIRST = Schema(component="toys", version=1, tables=old_toys)
THIRD = Schema(component="toys", version=3, tables=toys_of_version_3, upgrades={1: adding("weight"), 2: adding("price")})


async def columns(database: Database) -> set[str]:
    """Read the columns of the table."""
    async with database.reading() as connection:
        found = await connection.run_sync(lambda it: inspect(it).get_columns(f"{database.prefix}toys"))
    return {column["name"] for column in found}


async def test_a_database_without_tables_says_what_to_run(file: Path) -> None:
    """Before anything else is tried."""
    async with opened(url(file)) as database:
        with pytest.raises(SchemaMissing, match="onceonly schema create"):
            await check(database, SCHEMA)


async def test_creating_twice_is_harmless(database: Database) -> None:
    """What is there stays."""
    await create(database, SCHEMA)
    await upgrade(database, SCHEMA)
    await check(database, SCHEMA)
    assert await counted(database, "claims") == 0


async def test_several_processes_may_create_at_once(file: Path) -> None:
    """Each opens the new file by itself; one makes the tables, all find them."""

    async def start() -> None:
        async with opened(url(file), tables=True) as database:
            await check(database, SCHEMA)

    await asyncio.gather(*(start() for _ in range(8)))
    with sqlite3.connect(file) as raw:
        assert raw.execute("SELECT component, version FROM onceonly_schema").fetchall() == [("store", SCHEMA.version)]
    raw.close()


async def test_components_are_separate(database: Database) -> None:
    """One table of versions serves them all."""
    with pytest.raises(SchemaMissing, match="toys"):
        await check(database, FIRST)
    await create(database, FIRST)
    await check(database, FIRST)
    await check(database, SCHEMA)


async def test_newer_tables_are_refused(database: Database) -> None:
    """By whatever command, and they are left alone."""
    await create(database, THIRD)
    for command in (check, create, upgrade):
        with pytest.raises(SchemaTooNew, match="supports up to 1"):
            await command(database, FIRST)
    await check(database, THIRD)


async def test_what_is_printed_makes_the_tables(file: Path) -> None:
    """A person may run it by hand, twice even; the file is not touched by printing."""
    async with opened(url(file) + "?prefix=shop_") as database:
        printed = render(database, SCHEMA)
        assert not list(os.scandir(file.parent))
        with sqlite3.connect(file) as raw:
            raw.executescript(printed)
        raw.close()
        await check(database, SCHEMA)
        assert await counted(database, "claims") == 0


async def test_claims_are_narrow(database: Database) -> None:
    """Sixteen bytes and eight, in the key's own tree."""
    assert 'CREATE TABLE IF NOT EXISTS onceonly_claims (\n\t"key" BLOB NOT NULL' in render(database, SCHEMA)
    assert "WITHOUT ROWID" in render(database, SCHEMA)


@pytest.fixture(name="toys")
async def a_database_without_tables(place: str) -> AsyncIterator[Database]:
    """Open each SQL database under a prefix of these tests, and leave no table in it."""
    database = await open_database(place, clock=ManualClock(), prefix=PREFIX)
    try:
        await drop(database, THIRD)
        yield database
        await drop(database, THIRD)
    finally:
        await database.close()


async def test_older_tables_say_what_to_run(toys: Database) -> None:
    """Creating does not upgrade."""
    await create(toys, FIRST)
    for command in (check, create):
        with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
            await command(toys, THIRD)


async def test_upgrading_takes_every_step_and_keeps_what_is_there(toys: Database) -> None:
    """On every SQL database, and once, however often it is called."""
    await create(toys, FIRST)
    async with toys.writing() as connection:
        await connection.execute(insert(old_toys(toys.prefix).tables[f"{PREFIX}toys"]), [{"id": 7}])
    await upgrade(toys, THIRD)
    await upgrade(toys, THIRD)
    await check(toys, THIRD, thorough=True)
    assert await columns(toys) == {"id", "weight", "price"}
    async with toys.reading() as connection:
        assert (await connection.execute(text(f"SELECT id FROM {PREFIX}toys"))).scalars().all() == [7]  # noqa: S608 - our own name


async def test_upgrading_nothing_creates(toys: Database) -> None:
    """A new database gets the newest tables, without steps."""
    await upgrade(toys, THIRD)
    assert await columns(toys) == {"id", "weight", "price"}


async def test_an_upgrade_without_all_its_steps_changes_nothing(toys: Database) -> None:
    """The steps that exist are not taken either."""
    await create(toys, FIRST)
    missing = Schema(component="toys", version=3, tables=toys_of_version_3, upgrades={1: adding("weight")})
    with pytest.raises(SchemaMissing, match="version 1, which cannot be upgraded to version 3"):
        await upgrade(toys, missing)
    assert await columns(toys) == {"id"}
    await check(toys, FIRST)


async def test_what_is_printed_upgrades_and_printing_changes_nothing(toys: Database) -> None:
    """On MariaDB too, where a change of a table commits."""
    await create(toys, FIRST)
    printed = await render_upgrade(toys, THIRD)
    assert await columns(toys) == {"id"}
    async with toys.writing() as connection:
        for statement in filter(str.strip, printed.split(";\n")):
            await connection.execute(text(statement))
    await check(toys, THIRD)
    assert await columns(toys) == {"id", "weight", "price"}
    assert await render_upgrade(toys, THIRD) == ""


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_store_of_before_the_first_release_says_how_to_start_again(database: Database, version: int) -> None:
    """By whatever command: what was found, what to save, and how to create the tables. They are left alone."""
    async with database.writing() as connection:
        await connection.execute(update(versions_table(database)).values(version=version))
    found = rf"tables of the store have version {version}, which cannot be upgraded to version 8, the one that this onceonly"
    saved = r"drain the queues \(`onceonly run --drain .*export the dead letters \(`onceonly dead export "
    for command in (check, create, upgrade, render_upgrade):
        with pytest.raises(SchemaMissing, match=f"{found}.*{saved}.*Drop the tables .*`onceonly schema create "):
            await command(database, SCHEMA)
    async with database.reading() as connection:
        assert await connection.scalar(select(versions_table(database).c.version)) == version
