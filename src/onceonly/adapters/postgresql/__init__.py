"""PostgreSQL, through asyncpg or psycopg."""

from typing import Any

from onceonly.systems import Driver, System, imported

_ASYNCPG = Driver(("asyncpg",), "onceonly[postgresql]", connection="asyncpg.connection.Connection")


def _dialect(driver: str) -> Any:
    from onceonly.adapters.postgresql.dialect import PostgreSQL  # noqa: PLC0415 - imports the driver

    return PostgreSQL(driver)


SYSTEM = System(
    name="PostgreSQL",
    address=imported("onceonly.sql.options:read_url_options"),
    traits=imported("onceonly.sql.options:read_url_traits"),
    drivers={"": _ASYNCPG, "asyncpg": _ASYNCPG, "psycopg": Driver(("psycopg",), "onceonly[psycopg]")},
    dialect=_dialect,
    parts="prefix",
)
