"""The versioned schema: created once by whoever comes first, checked at start, upgraded by command."""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, inspect, text

from onceonly.model.errors import SchemaMissing, SchemaTooNew
from onceonly.model.record import Record
from onceonly.sql.database import Database
from onceonly.sql.schema import Schema, check, create, render, upgrade
from onceonly.sql.store import SCHEMA, SqlStore
from onceonly.sql.store.statements import row_of
from tests.sql.harness import ONE_EFFECT, counted, look, message, opened, url


def toys(prefix: str, _schema: str | None = None) -> MetaData:
    """Give the tables of a component as of version 3."""
    metadata = MetaData()
    Table(
        f"{prefix}toys", metadata, Column("id", Integer, primary_key=True), Column("weight", Integer), Column("price", Integer)
    )
    return metadata


def old_toys(prefix: str, _schema: str | None = None) -> MetaData:
    """Give its table as of version 1."""
    metadata = MetaData()
    Table(f"{prefix}toys", metadata, Column("id", Integer, primary_key=True))
    return metadata


def adding(name: str) -> object:
    """Make the step that adds a column."""

    def step(connection: Connection, metadata: MetaData) -> None:
        table = next(iter(metadata.tables))
        connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER"))

    return step


FIRST = Schema(component="toys", version=1, tables=old_toys)
THIRD = Schema(component="toys", version=3, tables=toys, upgrades={1: adding("weight"), 2: adding("price")})


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
        assert raw.execute("SELECT component, version FROM onceonly_schema").fetchall() == [("store", 6)]
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


async def test_older_tables_say_what_to_run(database: Database) -> None:
    """Creating does not upgrade."""
    await create(database, FIRST)
    for command in (check, create):
        with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
            await command(database, THIRD)


async def test_upgrading_takes_every_step_and_keeps_what_is_there(database: Database) -> None:
    """And is done once, however often it is asked for."""
    await create(database, FIRST)
    async with database.writing() as connection:
        await connection.execute(insert(old_toys(database.prefix).tables["onceonly_toys"]), [{"id": 7}])
    await upgrade(database, THIRD)
    await upgrade(database, THIRD)
    assert await columns(database) == {"id", "weight", "price"}
    async with database.reading() as connection:
        assert (await connection.execute(text("SELECT id FROM onceonly_toys"))).scalars().all() == [7]


async def test_upgrading_nothing_creates(database: Database) -> None:
    """A new database gets the newest tables, without steps."""
    await upgrade(database, THIRD)
    assert await columns(database) == {"id", "weight", "price"}


async def test_an_upgrade_whose_step_fails_changes_nothing(database: Database) -> None:
    """All steps are one database transaction."""
    await create(database, FIRST)
    missing = Schema(component="toys", version=3, tables=toys, upgrades={1: adding("weight")})
    with pytest.raises(SchemaMissing, match="cannot upgrade version 2"):
        await upgrade(database, missing)
    assert await columns(database) == {"id"}
    await check(database, FIRST)


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


async def test_a_store_of_version_1_is_upgraded(file: Path) -> None:
    """It gets the tables and columns of later versions; what is claimed, waits and failed stays, and workers say so before."""
    version1 = (
        "CREATE TABLE onceonly_schema (component VARCHAR(40) NOT NULL PRIMARY KEY, version INTEGER NOT NULL)",
        "INSERT INTO onceonly_schema VALUES ('store', 1)",
        'CREATE TABLE onceonly_claims ("key" BLOB NOT NULL PRIMARY KEY, fingerprint BLOB NOT NULL) WITHOUT ROWID',
        (
            'CREATE TABLE onceonly_records ("key" BLOB NOT NULL PRIMARY KEY, endpoint VARCHAR(255) NOT NULL,'
            " source TEXT NOT NULL, id TEXT NOT NULL, effects BLOB NOT NULL, stored_at BIGINT NOT NULL)"
        ),
        (
            'CREATE TABLE onceonly_dead_letters (position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, "key" VARCHAR(32)'
            " NOT NULL UNIQUE, endpoint VARCHAR(255) NOT NULL, type TEXT NOT NULL, reason TEXT NOT NULL,"
            " stored_at BIGINT NOT NULL, letter BLOB NOT NULL)"
        ),
        "INSERT INTO onceonly_dead_letters VALUES (7, 'k', 'shop', 't', 'r', 1, x'01')",
    )
    pending = message("pending")
    row = row_of("shop", Record(pending.identity, ONE_EFFECT), 1)
    with sqlite3.connect(file) as raw:
        for statement in version1:
            raw.execute(statement)
        raw.execute("INSERT INTO onceonly_claims VALUES (?, ?)", (row["key"], pending.fingerprint))
        raw.execute("INSERT INTO onceonly_records VALUES (?, ?, ?, ?, ?, ?)", tuple(row.values())[:6])
    raw.close()
    async with opened(url(file)) as database:
        for command in (check, create):
            with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
                await command(database, SCHEMA)
        await upgrade(database, SCHEMA)
        await upgrade(database, SCHEMA)
        assert await look(SqlStore(database, "shop"), pending) == {"pending": ["pending"]}
        (taken,) = await SqlStore(database, "shop").take(1 << 52, 10, lease=1)
        assert taken.identity == pending.identity
        found = [await counted(database, name) for name in ("claims", "records", "dead_letters")]
        assert found == [1, 1, 1]
        assert [await counted(database, name) for name in ("entities", "register", "tokens")] == [0, 0, 0]
