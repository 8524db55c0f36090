"""PostgreSQL, through asyncpg or psycopg."""

from typing import Any

from onceonly.ports.transport import Traits
from onceonly.systems import Driver, System


def _address(url: str) -> object:
    from onceonly.sql.options import read_url_options  # noqa: PLC0415 - only for a URL of this system

    return read_url_options(url)


def _traits(url: str) -> Traits:
    from onceonly.sql.options import read_url_traits  # noqa: PLC0415 - the same

    return read_url_traits(url)


_ASYNCPG = Driver(("asyncpg",), "onceonly[postgresql]", connection="asyncpg.connection.Connection")


def _dialect(driver: str) -> Any:
    from onceonly.adapters.postgresql.dialect import PostgreSQL  # noqa: PLC0415 - imports the driver

    return PostgreSQL(driver)


SYSTEM = System(
    name="PostgreSQL",
    address=_address,
    traits=_traits,
    drivers={"": _ASYNCPG, "asyncpg": _ASYNCPG, "psycopg": Driver(("psycopg",), "onceonly[psycopg]")},
    dialect=_dialect,
    parts="prefix",
)
