"""A key in a transaction that the caller owns, on PostgreSQL. Asynchronous sessions use each driver."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from onceonly.adapters.postgresql.dialect import PostgreSQL
from onceonly.sql.database import Database
from onceonly.sql.dialect import DatabaseFailure
from tests.sql.enlist_harness import Shop, opened_shop
from tests.sql.enlisted_key_scenarios import Caller
from tests.sql.enlisted_key_servers import ServerKeyScenarios


@pytest.fixture
async def shop(database: Database, url: str) -> AsyncIterator[Shop]:  # noqa: ARG001 - it makes the tables
    """Open a shop on the database."""
    async with opened_shop(url) as shop:
        yield shop


class TestOnPostgresql(ServerKeyScenarios):
    """All of them."""

    @pytest.mark.parametrize("before", ["0", "700ms"])
    async def test_statements_after_that_of_the_key_wait_as_before(self, caller: Caller, before: str) -> None:
        """Whether the key is new or known: `wait` is that of its own statement."""
        for is_known in (False, True):
            async with caller.session() as owned:
                await owned.call("execute", text(f"SET LOCAL lock_timeout = '{before}'"))
                assert (await owned.take(wait=1.5)).is_known is is_known
                assert (await owned.call("execute", text("SHOW lock_timeout"))).scalar_one() == before
                await owned.call("commit")


class Psycopg2Error(Exception):
    """An error as psycopg2 raises it."""

    pgcode = "55P03"


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("error", [Psycopg2Error("timeout"), Exception({"C": "55P03", "M": "timeout"})])
def test_errors_of_other_drivers_are_understood(driver: str, error: Exception) -> None:
    """The session of a caller may use psycopg2 or pg8000, whatever the store's own driver."""
    assert PostgreSQL(driver).classify(DBAPIError("INSERT", None, error)) is DatabaseFailure.HELD
