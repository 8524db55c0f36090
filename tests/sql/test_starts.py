"""Records of runs in SQL databases."""

import pytest
from sqlalchemy import inspect, text

from onceonly.model.errors import SchemaMissing
from onceonly.ports.starts import BEGUN
from onceonly.sql.schema import check as check_schema
from onceonly.sql.schema import create, drop, upgrade
from onceonly.sql.store import SCHEMA, SqlStarts
from onceonly.sql.store.tables import tables
from tests.conformance.starts_contract import MESSAGE, check
from tests.sql.every_database import emptied
from tests.sql.harness import counted, opened


async def test_runs_are_recorded_until_they_end(place: str) -> None:
    """By the database's own clock."""
    async with emptied(place) as database:
        await check(lambda lasts: SqlStarts(database, "shop", lasts=lasts))


async def test_endpoints_do_not_share_runs(place: str) -> None:
    """One database serves several."""
    async with emptied(place) as database:
        assert await SqlStarts(database, "shop", lasts=60).begin(MESSAGE, 0) == BEGUN
        assert await SqlStarts(database, "billing", lasts=60).begin(MESSAGE, 0) == BEGUN
        assert await counted(database, "starts") == 2


async def test_version_3_is_upgraded(place: str) -> None:
    """The table is added; until then the start says what to run."""
    apart = place.replace("prefix=every_", "prefix=third_") if "prefix=" in place else f"{place}?prefix=third_"
    async with opened(apart) as database:
        await create(database, SCHEMA)
        starts = tables(database.prefix, database.schema).starts
        try:
            async with database.writing() as connection:
                await connection.run_sync(starts.drop)
                await connection.execute(text(f"UPDATE {database.prefix}schema SET version = 3"))  # noqa: S608 - our own name
            with pytest.raises(SchemaMissing, match="onceonly schema upgrade"):
                await check_schema(database, SCHEMA)
            await upgrade(database, SCHEMA)
            await upgrade(database, SCHEMA)
            await check_schema(database, SCHEMA)
            async with database.reading() as connection:
                assert await connection.run_sync(lambda it: inspect(it).has_table(starts.name, schema=starts.schema))
        finally:
            await drop(database, SCHEMA)
