"""PostgreSQL, through asyncpg or psycopg."""

from typing import Any

from onceonly.systems import Driver, System

_ASYNCPG = Driver(("asyncpg",), "onceonly[postgresql]", connection="asyncpg.connection.Connection")


def _dialect(driver: str) -> Any:
    from onceonly.adapters.postgresql.dialect import PostgreSQL  # noqa: PLC0415 - imports the driver

    return PostgreSQL(driver)


SYSTEM = System(
    name="PostgreSQL",
    drivers={"": _ASYNCPG, "asyncpg": _ASYNCPG, "psycopg": Driver(("psycopg",), "onceonly[psycopg]")},
    dialect=_dialect,
    parts="prefix",
)
