"""Locks by name, which outlive commits; and emptying tables, where TRUNCATE commits on its own.

So the lowest row of a table goes first, and is committed: no unit uses the table without it, whatever comes next.
"""

from collections.abc import Sequence

from sqlalchemy import BindParameter, Connection, Executable, Table, bindparam, delete, select, text
from sqlalchemy.exc import DBAPIError

from onceonly.adapters.mariadb.connection import code_of, start_over
from onceonly.adapters.mariadb.mysql import IDLE, is_mysql

LONGEST_LEAD_SECONDS = 3600  # of silence of a janitor that leads; the server's default is 8 hours
_LOCKED = "onceonly_locked"
# Such locks are the whole server's, their names short. MySQL 9 has no SHA1; on MariaDB processes of all versions use one name.
_NAMED = "CONCAT(DATABASE(), '/', :name)"
LOCK_NAME = f"/*M!100300 SHA1({_NAMED}) */ /*!80000 SHA2({_NAMED}, 256) */"
_BLOCKED = (1205, 3572)
_CURRENT_STATISTICS = "SET SESSION information_schema_stats_expiry = 0"  # MySQL's are a day old otherwise
_ROWS = "SELECT SUM(table_rows) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name IN :names"
_SIZE = (
    "SELECT data_length + index_length FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"
)


def lock(connection: Connection, name: str, *, wait: str = "0") -> bool:
    """Take a lock by name until `unlock`. Returns whether it was had within `wait` seconds."""
    taken = bool(connection.scalar(text(f"SELECT GET_LOCK({LOCK_NAME}, {wait})"), {"name": name}))
    if taken:
        connection.info[_LOCKED] = name
    return taken


def has_lock(connection: Connection) -> bool:
    return _LOCKED in connection.info


def unlock(connection: Connection) -> None:
    """Release what `lock` has taken; harmless when it took nothing."""
    name = connection.info.pop(_LOCKED, None)
    if name is not None:
        connection.execute(text(f"DO RELEASE_LOCK({LOCK_NAME})"), {"name": name})


class MariaDBMaintenance:
    """Maintenance of MariaDB and MySQL servers."""

    leads_in_transaction = False

    def try_alone(self, connection: Connection, name: str) -> bool:
        """Take a lock by name. The dialect releases it when it commits or rolls back; the COMMIT in `empty` does not."""
        return lock(connection, name)

    def shut(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Lock the lowest row: of each unit that uses the table it is locked too, since that was refused to it."""
        (key,) = table.primary_key.columns
        return _runs_unblocked(connection, select(key).order_by(key).limit(1).with_for_update(nowait=True))

    def empty(self, connection: Connection, table: Table, *, by_rows: bool) -> bool:
        """Delete the lowest row, commit, and truncate. By rows it is one DELETE."""
        if by_rows:
            connection.execute(delete(table))
            return True
        (key,) = table.primary_key.columns
        lowest = connection.scalar(select(key).order_by(key).limit(1))
        connection.execute(delete(table).where(key == lowest))
        connection.exec_driver_sql("COMMIT")
        named = connection.dialect.identifier_preparer.format_table(table)
        if not is_mysql(connection):
            return _runs_unblocked(connection, text(f"TRUNCATE TABLE {named} WAIT 1"))
        before = connection.exec_driver_sql("SELECT @@SESSION.lock_wait_timeout").scalar_one()
        connection.exec_driver_sql("SET SESSION lock_wait_timeout = 1")
        try:
            return _runs_unblocked(connection, text(f"TRUNCATE TABLE {named}"))
        finally:
            start_over(connection)  # the transaction is committed, so a time-out has ended none
            connection.exec_driver_sql(f"SET SESSION lock_wait_timeout = {before}")

    def bytes_of(self, connection: Connection, table: Table) -> int:
        """Refresh the server's statistics of the table, and read them."""
        connection.exec_driver_sql(f"ANALYZE TABLE {connection.dialect.identifier_preparer.format_table(table)}").all()
        return int(connection.scalar(text(_SIZE), {"name": table.name}) or 0)

    def rows_of(self, connection: Connection, of: Sequence[Table]) -> int:
        names: BindParameter[str] = bindparam("names", [table.name for table in of], expanding=True)
        if is_mysql(connection):
            connection.exec_driver_sql(_CURRENT_STATISTICS)
        return int(connection.scalar(text(_ROWS).bindparams(names)) or 0)

    def lead(self, connection: Connection, name: str) -> bool:
        """Take a lock by name. The server drops it with its connection, an hour later at most if this host vanishes."""
        connection.exec_driver_sql(f"SET SESSION wait_timeout = {LONGEST_LEAD_SECONDS}")
        return bool(connection.scalar(text(f"SELECT GET_LOCK({LOCK_NAME}, 0)"), {"name": f"{name} leader"}))

    def follow(self, connection: Connection, name: str) -> None:
        connection.execute(text(f"DO RELEASE_LOCK({LOCK_NAME})"), {"name": f"{name} leader"})
        connection.info.pop(IDLE, None)  # the next transaction sets what MySQL has for it
        connection.exec_driver_sql("SET SESSION wait_timeout = DEFAULT")


def _runs_unblocked(connection: Connection, statement: Executable) -> bool:
    """Run what may have to wait for others. Returns whether they let it."""
    try:
        connection.execute(statement)
    except DBAPIError as error:
        if code_of(error) in _BLOCKED:
            return False
        raise
    return True
