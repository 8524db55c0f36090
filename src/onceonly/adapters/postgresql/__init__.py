"""PostgreSQL, through asyncpg or psycopg."""

from typing import Any

from onceonly.systems import Driver, System


def _address(url: str) -> object:
    from onceonly.sql.options import read_url_options  # noqa: PLC0415 - only for a URL of this system

    return read_url_options(url)


_ASYNCPG = Driver(("asyncpg",), "onceonly[postgresql]", connection="asyncpg.connection.Connection")


def _dialect(driver: str) -> Any:
    from onceonly.adapters.postgresql.dialect import PostgreSQL  # noqa: PLC0415 - imports the driver

    return PostgreSQL(driver)


SYSTEM = System(
    name="PostgreSQL",
    address=_address,
    drivers={"": _ASYNCPG, "asyncpg": _ASYNCPG, "psycopg": Driver(("psycopg",), "onceonly[psycopg]")},
    dialect=_dialect,
    parts="prefix",
)
