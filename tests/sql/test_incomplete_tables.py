"""Tables of the right version that lack something: named with the command that makes it, and with what the loss means."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, Table, text

from onceonly.model.errors import SchemaMissing
from onceonly.sql.database import Database
from onceonly.sql.queue_tables import SCHEMA as QUEUE
from onceonly.sql.schema import check, create, drop, render_upgrade, upgrade
from onceonly.sql.store import SCHEMA
from onceonly.sql.store.tables import tables
from tests.sql.harness import opened, url

PREFIX = "lacks_"


@asynccontextmanager
async def all_tables(place: str) -> AsyncIterator[Database]:
    """Make all tables of a store under a prefix of their own."""
    async with opened(place.replace("?prefix=every_", "") + f"?prefix={PREFIX}") as database:
        await drop(database, SCHEMA, QUEUE)
        await create(database, SCHEMA)
        yield database
        await drop(database, SCHEMA, QUEUE)


@pytest.fixture
async def made(file: Path) -> AsyncIterator[Database]:
    """Make them in a file."""
    async with all_tables(url(file)) as database:
        yield database


@pytest.fixture
async def made_anywhere(place: str) -> AsyncIterator[Database]:
    """Make them in each SQL database."""
    async with all_tables(place) as database:
        yield database


async def lose(database: Database, *statements: str) -> None:
    """Execute statements that take something away."""
    async with database.writing() as connection:
        for statement in statements:
            await connection.execute(text(statement))


async def test_what_is_missing_is_named_and_made_again(made_anywhere: Database) -> None:
    """A start looks for tables only: an index costs nothing but speed. Complete tables are left alone."""
    database = made_anywhere
    await check(database, SCHEMA, thorough=True)
    assert await create(database, SCHEMA, thorough=True) == ()
    on = f" ON {PREFIX}records" if database.dialect.name == "mysql" else ""
    await lose(database, f"DROP INDEX {PREFIX}records_stored_at{on}")
    await check(database, SCHEMA)
    await lose(database, f"DROP TABLE {PREFIX}starts")
    with pytest.raises(SchemaMissing, match=rf"missing: table {PREFIX}starts\. Run `onceonly schema create "):
        await check(database, SCHEMA)
    with pytest.raises(SchemaMissing, match=f"index {PREFIX}records_stored_at"):
        await check(database, SCHEMA, thorough=True)
    assert await upgrade(database, SCHEMA) == (f"table {PREFIX}starts", f"index {PREFIX}records_stored_at")
    await check(database, SCHEMA, thorough=True)


async def test_lost_claims_are_made_again_only_by_a_decision(made: Database) -> None:
    """The error says what the loss means; nothing at all is made without the decision."""
    await lose(made, *(f"DROP TABLE {PREFIX}{name}" for name in ("claims", "claim_03", "starts")))
    for command in (create, upgrade):
        with pytest.raises(SchemaMissing, match=r"handled before are handled again.*--accept-loss"):
            await command(made, SCHEMA)
    with pytest.raises(SchemaMissing, match=f"table {PREFIX}claim_03"):
        await check(made, SCHEMA)
    made_again = await create(made, SCHEMA, accepts_loss=True)
    assert set(made_again) == {f"table {PREFIX}{name}" for name in ("claims", "claim_03", "starts")}
    await check(made, SCHEMA, thorough=True)


async def test_a_missing_column_is_made_where_it_may_be_empty(made: Database) -> None:
    """Any other has to be restored by a person."""
    index = tables(PREFIX).dead_letters
    await lose(made, *_without(index, "identity", made), *_without(tables(PREFIX).processes, "host", made))
    with pytest.raises(SchemaMissing, match=f"column {PREFIX}dead_letters.identity.*Restore column {PREFIX}processes.host"):
        await check(made, SCHEMA, thorough=True)
    with pytest.raises(SchemaMissing, match=r"Restore column"):
        await upgrade(made, SCHEMA)
    await lose(made, f"ALTER TABLE {PREFIX}processes ADD COLUMN host VARCHAR(255) NOT NULL DEFAULT ''")
    assert f"column {PREFIX}dead_letters.identity" in await upgrade(made, SCHEMA)
    await check(made, SCHEMA, thorough=True)
    assert await counted_in(made, "dead_letters") == 0


async def test_an_upgrade_prints_what_is_missing(made: Database) -> None:
    """And changes nothing."""
    await lose(made, f"DROP TABLE {PREFIX}starts")
    assert f"CREATE TABLE {PREFIX}starts" in await render_upgrade(made, SCHEMA)
    with pytest.raises(SchemaMissing):
        await check(made, SCHEMA)


async def test_a_queue_that_is_gone_says_that_messages_are_lost(made: Database) -> None:
    """The same for every component."""
    await create(made, QUEUE)
    await lose(made, f"DROP TABLE {PREFIX}messages")
    with pytest.raises(SchemaMissing, match=r"messages that waited are lost"):
        await create(made, QUEUE)
    await create(made, QUEUE, accepts_loss=True)
    await check(made, QUEUE, thorough=True)


def _without(table: Table, column: str, database: Database) -> list[str]:
    """Drop a column with the indexes on it."""
    on = f" ON {table.name}" if database.dialect.name == "mysql" else ""
    indexes = [index.name for index in table.indexes if column in index.columns]
    return [*(f"DROP INDEX {name}{on}" for name in indexes), f"ALTER TABLE {table.name} DROP COLUMN {column}"]


async def counted_in(database: Database, table: str) -> int:
    """Count the rows of a table."""

    def count(connection: Connection) -> int:
        return connection.scalar(text(f"SELECT COUNT(*) FROM {PREFIX}{table}")) or 0  # noqa: S608 - own names

    async with database.reading() as connection:
        return await connection.run_sync(count)
