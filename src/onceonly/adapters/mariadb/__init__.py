"""MariaDB and MySQL, through asyncmy."""

from typing import Any

from onceonly.ports.transport import Traits
from onceonly.systems import Driver, System


def _address(url: str) -> object:
    from onceonly.sql.options import read_url_options  # noqa: PLC0415 - only for a URL of this system

    return read_url_options(url)


def _traits(url: str) -> Traits:
    from onceonly.sql.options import read_url_traits  # noqa: PLC0415 - the same

    return read_url_traits(url)


_DRIVER = Driver(("asyncmy",), "onceonly[mysql]")


def _dialect(_driver: str) -> Any:
    from onceonly.adapters.mariadb.dialect import MariaDB  # noqa: PLC0415 - imports the driver

    return MariaDB()


SYSTEM = System(
    name="MariaDB",
    address=_address,
    traits=_traits,
    drivers={"": _DRIVER, "asyncmy": _DRIVER},
    dialect=_dialect,
    parts="prefix",
)
