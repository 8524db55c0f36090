"""Where a store reads and writes, and for whom."""

from typing import NamedTuple

from onceonly.drivers.sql import Database
from onceonly.stores.sql.keeping import Keeping
from onceonly.stores.sql.tables import Tables


class Scope(NamedTuple):
    """A database and the tables in it, the endpoint that works there, and what is kept."""

    database: Database
    tables: Tables
    endpoint: str
    keeping: Keeping
