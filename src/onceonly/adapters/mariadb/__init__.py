"""MariaDB and MySQL, through asyncmy."""

from typing import Any

from onceonly.systems import Driver, System, imported

_DRIVER = Driver(("asyncmy",), "onceonly[mysql]")


def _dialect(_driver: str) -> Any:
    from onceonly.adapters.mariadb.dialect import MariaDB  # noqa: PLC0415 - imports the driver

    return MariaDB()


SYSTEM = System(
    name="MariaDB",
    address=imported("onceonly.sql.options:read_url_options"),
    traits=imported("onceonly.sql.options:read_url_traits"),
    drivers={"": _DRIVER, "asyncmy": _DRIVER},
    dialect=_dialect,
    parts="prefix",
)
