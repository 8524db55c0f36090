"""Emptying tables in PostgreSQL: by TRUNCATE, for which nobody waits for long."""

from sqlalchemy import Connection, Table, func, select
from sqlalchemy.exc import DBAPIError

PATIENCE = 100
"""Milliseconds for which a table that shall be emptied is waited for, and who wants to use it waits behind."""
_NOT_HAD = "55P03"


class PostgreSQLKeeper:
    """The keeper of a PostgreSQL server."""

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Take an advisory lock that the transaction's end gives back."""
        return bool(connection.scalar(select(func.pg_try_advisory_xact_lock(func.hashtextextended(name, 0)))))

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Take a lock on the table. Units have one of a kind that it excludes, until they end."""
        mode = "EXCLUSIVE" if by_rows else "ACCESS EXCLUSIVE"
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{PATIENCE} ms'")
        try:
            connection.exec_driver_sql(f"LOCK TABLE {_named(connection, table)} IN {mode} MODE")
        except DBAPIError as error:
            if _NOT_HAD in (getattr(error.orig, "sqlstate", None), getattr(error.orig, "pgcode", None)):
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

    def lead(self, connection: Connection, name: str) -> bool:
        """Take an advisory lock of the session."""
        return bool(connection.scalar(select(func.pg_try_advisory_lock(func.hashtextextended(name, 1)))))

    def follow(self, connection: Connection, name: str) -> None:
        """Give it back."""
        connection.execute(select(func.pg_advisory_unlock(func.hashtextextended(name, 1))))


def _named(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)
