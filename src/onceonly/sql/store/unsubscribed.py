"""How many events an endpoint published that had no subscriber, in a table next to the records."""

from collections.abc import Mapping

from sqlalchemy import Connection, bindparam, select, update

from onceonly.sql.database import Database
from onceonly.sql.store.tables import tables


class SqlEventCounts:
    """The counts of one endpoint, one row for each type."""

    def __init__(self, database: Database, endpoint: str) -> None:
        """Use the table of this database."""
        self._database = database
        self._endpoint = endpoint
        self._table = tables(database.prefix, database.schema).unsubscribed

    async def add(self, counts: Mapping[str, int]) -> None:
        """Add to the rows; see the port."""
        own = self._table.c
        rows = [{"endpoint": self._endpoint, "type": kind, "count": 0} for kind in sorted(counts)]
        more = update(self._table).where(own.endpoint == bindparam("of"), own.type == bindparam("kind"))
        more = more.values(count=own["count"] + bindparam("more"))

        def put(connection: Connection) -> None:
            self._database.dialect.insert_absent(connection, self._table, rows, key=["endpoint", "type"])
            for kind in sorted(counts):  # in one order, so that two processes do not wait for each other
                connection.execute(more, {"of": self._endpoint, "kind": kind, "more": counts[kind]})

        async with self._database.writing() as connection:
            await connection.run_sync(put)

    async def read(self) -> Mapping[str, int]:
        """Read the rows; see the port."""
        own = self._table.c
        query = select(own.type, own["count"]).where(own.endpoint == self._endpoint).order_by(own.type)
        async with self._database.reading() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}
