"""Emptying tables in SQLite: whoever writes is alone."""

from sqlalchemy import Connection, Table, delete


class SQLiteMaintenance:
    """The keeper of a SQLite file."""

    leads_in_transaction = False

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Rely on the write lock."""
        return True

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Rely on the write lock; readers are not in the way."""
        return True

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Delete without a condition, for which SQLite looks at no row."""
        connection.execute(delete(table))
        return True

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Count the pages of the file that are in use: nothing is known of a single table."""
        pages, free, size = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def lead(self, connection: Connection, name: str) -> bool:
        """Let everybody: one writer at a time is all there can be."""
        return True

    def follow(self, connection: Connection, name: str) -> None:
        """Do nothing."""
