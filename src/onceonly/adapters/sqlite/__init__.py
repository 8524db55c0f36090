"""SQLite, through aiosqlite."""

from typing import Any

from onceonly.ports.transport import Traits
from onceonly.systems import Driver, System


def _address(url: str) -> object:
    from onceonly.sql.options import read_url_options  # noqa: PLC0415 - only for a URL of this system

    return read_url_options(url)


def _traits(url: str) -> Traits:
    from onceonly.sql.options import read_url_traits  # noqa: PLC0415 - the same

    return read_url_traits(url)


_DRIVER = Driver(("sqlalchemy", "aiosqlite"))


def _dialect(_driver: str) -> Any:
    from onceonly.adapters.sqlite.dialect import SQLite  # noqa: PLC0415 - imports the driver

    return SQLite()


SYSTEM = System(
    name="SQLite",
    address=_address,
    traits=_traits,
    drivers={"": _DRIVER, "aiosqlite": _DRIVER},
    dialect=_dialect,
    parts="prefix",
)
