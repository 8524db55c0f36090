"""SQLite, through aiosqlite."""

from typing import Any

from onceonly.systems import Driver, System, imported

_DRIVER = Driver(("sqlalchemy", "aiosqlite"))


def _dialect(_driver: str) -> Any:
    from onceonly.adapters.sqlite.dialect import SQLite  # noqa: PLC0415 - imports the driver

    return SQLite()


SYSTEM = System(
    name="SQLite",
    address=imported("onceonly.sql.options:read_url_options"),
    traits=imported("onceonly.sql.options:read_url_traits"),
    drivers={"": _DRIVER, "aiosqlite": _DRIVER},
    dialect=_dialect,
    parts="prefix",
)
