"""What maintenance shares in a SQL database: the journals of all endpoints, and the keys of clients that it removes."""

from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, select, update

from onceonly.formats.undecodable import decode_or_report
from onceonly.model.errors import SchemaTooNew
from onceonly.model.maintenance_journal import MaintenanceJournal
from onceonly.sql.database import Database
from onceonly.sql.store.statements import KEYS_AT_ONCE, delete_keys
from onceonly.sql.store.tables import tables

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(MaintenanceJournal).decode


class SqlJournals:
    """The maintenance journal of one endpoint, in a row next to those of the others."""

    def __init__(self, database: Database, endpoint: str) -> None:
        self._database = database
        self._endpoint = endpoint
        self._table = tables(database.prefix, database.schema).janitor

    async def read(self) -> MaintenanceJournal | None:
        query = select(self._table.c.journal).where(self._table.c.endpoint == self._endpoint)
        async with self._database.reading() as connection:
            found = await connection.scalar(query)
        return None if found is None else journal_in(self._endpoint, found)

    async def write(self, journal: MaintenanceJournal) -> None:
        row = {"endpoint": self._endpoint, "journal": _encode(journal)}

        def put(connection: Connection) -> None:
            if not self._database.dialect.insert_absent(connection, self._table, [row], key=["endpoint"]):
                changed = update(self._table).where(self._table.c.endpoint == bindparam("own"))
                connection.execute(changed.values(journal=bindparam("new")), {"own": self._endpoint, "new": row["journal"]})

        async with self._database.writing() as connection:
            await connection.run_sync(put)

    async def longest_retention(self) -> int:
        """Look into all rows: these endpoints keep their clients' keys in one table.

        Raises SchemaTooNew for the row of another endpoint that cannot be read: its keys may have to be kept for longer.
        """
        async with self._database.reading() as connection:
            rows = (await connection.execute(select(self._table.c.endpoint, self._table.c.journal))).all()
        found = [(row.endpoint, journal_in(row.endpoint, row.journal)) for row in rows]
        for endpoint, journal in found:
            if journal is None and endpoint != self._endpoint:
                raise SchemaTooNew(
                    f"the janitor journal of endpoint {endpoint!r} cannot be read, so no keys of clients are deleted: run the "
                    "janitor of that endpoint, or upgrade onceonly in this process. If the endpoint is gone, delete the row"
                )
        return max((journal.retention for _, journal in found if journal is not None), default=0)


class SqlKeys:
    """The keys of clients of all endpoints of a database."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = tables(database.prefix, database.schema).keys

    async def remove_keys(self, older_than: int, limit: int = 1000) -> int:
        """Remove the oldest, at most ten thousand at once; see the port."""
        keys = self._table.c
        old = select(keys.key).where(keys.stored_at < older_than).order_by(keys.stored_at).limit(min(limit, KEYS_AT_ONCE))

        def remove(connection: Connection) -> int:
            found = sorted(connection.scalars(old.with_for_update(skip_locked=True)))
            delete_keys(connection, self._database.dialect, found, self._table)
            return len(found)

        async with self._database.writing() as connection:
            return await connection.run_sync(remove)


def journal_in(endpoint: object, journal: Any) -> MaintenanceJournal | None:
    """Decode a row; None for one that cannot be read. The next round of that endpoint's janitor replaces it."""
    return decode_or_report(lambda: _decode(journal), "janitor journal", endpoint, "replaced by the next round")
