"""Inserting on servers without `INSERT ... RETURNING`, such as MySQL: they report only how many rows were new.

That is enough if all of them are, or none. So rows that exist are locked first, as INSERT IGNORE locks them, which waits for
those that other transactions have inserted. The others are inserted behind a savepoint. If another transaction has inserted one
of them meanwhile, the savepoint undoes this, and each row gets a statement of its own.

Above READ COMMITTED, a locking read of a key that is missing would lock a gap, and two transactions that insert into it would
be in a deadlock. There the insert comes first.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert

from onceonly.adapters.mariadb.connection import QUIET
from onceonly.adapters.mariadb.statements import find_each
from onceonly.sql.columns import ClaimKey, TextKey

GAPLESS = "READ COMMITTED"
"""The level at which a locking read of a key that is missing locks nothing."""
LEVEL = "onceonly_level"
"""The isolation level of the transaction, in `Connection.info`, where this library has begun it."""
_SAVEPOINT = "onceonly_rows"


def insert_counted(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], *, key: Sequence[str]
) -> Sequence[Any]:
    """Do what `Dialect.insert_absent` promises, on a server that only counts."""
    shape = namedtuple("shape", key)  # type: ignore[misc]  # noqa: PYI024 - its fields are known only here
    return [shape(*(row[name] for name in key)) for row in _insert(connection, table, rows, key)]


def insert_counted_behind(
    connection: Connection, table: Table, first: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], *, key: str
) -> Sequence[Any] | None:
    """Do what `Dialect.insert_behind` promises. INSERT IGNORE locks `first` where it is, so no other transaction deletes it."""
    if _count(connection, table, [first]):
        return None
    return insert_counted(connection, table, rows, key=[key])


def _insert(
    connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    is_found = len(key) == 1 and isinstance(table.c[key[0]].type, ClaimKey | TextKey)
    if len(rows) > 1 and is_found and connection.info.get(LEVEL) == GAPLESS:
        found = find_each(connection, table, [row[key[0]] for row in rows], key=key[0])
        rows = [row for row in rows if row[key[0]] not in found]
    if len(rows) > 1:
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        count = _count(connection, table, rows)
        if count in (0, len(rows)):
            return rows if count else ()
        connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    return [row for row in rows if _count(connection, table, [row])]


def _count(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    statement = insert(table).prefix_with("IGNORE").execution_options(**{QUIET: True})
    return connection.execute(statement, [dict(row) for row in rows]).rowcount
