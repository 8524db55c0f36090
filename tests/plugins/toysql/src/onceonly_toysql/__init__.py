"""toysql:///path/of/file, a system for onceonly: a SQL database."""

from onceonly.sql.options import read_url_options, read_url_traits
from onceonly.systems import Driver, System


def _dialect(_driver: str) -> object:
    from onceonly_toysql.dialect import ToySql  # noqa: PLC0415 - imports the driver

    return ToySql()


SYSTEM = System(
    name="toy SQL",
    address=read_url_options,
    traits=read_url_traits,
    drivers={"": Driver(("sqlalchemy", "aiosqlite"), requirement="onceonly-toysql")},
    dialect=_dialect,
    parts="prefix",
)
