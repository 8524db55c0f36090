"""Emptying tables in PostgreSQL: by TRUNCATE, with a short limit for its lock."""

from collections.abc import Sequence

from sqlalchemy import ARRAY, Connection, Table, Text, bindparam, func, select, text
from sqlalchemy.exc import DBAPIError

TABLE_LOCK_MS = 100
"""Milliseconds to wait for the lock of a table that is to be emptied. Units that need the table wait behind it."""
LEAD_MINUTES = 30
"""Minutes after which another janitor may lead although this one is not done, or its host has vanished. It guards nothing."""
_BLOCKED = "55P03"


class PostgreSQLMaintenance:
    """The keeper of a PostgreSQL server."""

    leads_in_transaction = True

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Take an advisory lock that the transaction's end releases."""
        return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(func.hashtextextended(name, 0)))))

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Take a lock on the table. Units have one of a kind that it excludes, until they end."""
        mode = "EXCLUSIVE" if by_rows else "ACCESS EXCLUSIVE"
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{TABLE_LOCK_MS} ms'")
        try:
            connection.exec_driver_sql(f"LOCK TABLE {_named(connection, table)} IN {mode} MODE")
        except DBAPIError as error:
            if _BLOCKED in (getattr(error.orig, "sqlstate", None), getattr(error.orig, "pgcode", None)):
                return False
            raise
        return True

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Truncate, or delete under the eyes of those who read."""
        how = "DELETE FROM" if by_rows else "TRUNCATE"
        connection.exec_driver_sql(f"{how} {_named(connection, table)}")
        return True

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Ask for all files of the table and its indexes."""
        return int(connection.scalar(select(func.pg_total_relation_size(_named(connection, table)))) or 0)

    def rows_of(self, connection: Connection, of: Sequence[Table]) -> int:
        """Add up the estimates of VACUUM and ANALYZE; a table that neither has seen counts as empty."""
        names = [_named(connection, table) for table in of]
        rows = "SELECT COALESCE(SUM(GREATEST(reltuples, 0)), 0) FROM pg_class WHERE oid = ANY(CAST(:names AS regclass[]))"
        return int(connection.scalar(text(rows).bindparams(bindparam("names", names, ARRAY(Text)))) or 0)

    def lead(self, connection: Connection, name: str) -> bool:
        """Take an advisory lock that the end of the transaction releases: behind a pooler, clients share sessions.

        The transaction is silent while the tasks are done. It has no snapshot meanwhile, so it keeps nothing from VACUUM.
        """
        connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{LEAD_MINUTES} min'")
        return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(func.hashtextextended(name, 1)))))

    def follow(self, connection: Connection, name: str) -> None:
        """Do nothing: the transaction ends."""


def _named(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)
