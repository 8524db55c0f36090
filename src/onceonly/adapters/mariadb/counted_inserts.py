"""Inserting on servers without `INSERT ... RETURNING`, such as MySQL: they report only how many rows were new.

That is enough if all of them are, or none. Otherwise a savepoint undoes the statement. The rows that exist are locked as INSERT
IGNORE locks them, and the others are inserted. If another transaction has inserted one of those meanwhile, each row gets a
statement of its own.
"""

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, insert

from onceonly.adapters.mariadb.connection import QUIET
from onceonly.adapters.mariadb.statements import find_each
from onceonly.sql.columns import ClaimKey, TextKey

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
    if len(rows) > 1:
        connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
        added = _all_or_none(connection, table, rows)
        if added is not None:
            return added
        if len(key) == 1 and isinstance(table.c[key[0]].type, ClaimKey | TextKey):
            found = find_each(connection, table, [row[key[0]] for row in rows], key=key[0])
            missing = [row for row in rows if row[key[0]] not in found]
            added = _all_or_none(connection, table, missing)
            if added is not None:
                return added
    return [row for row in rows if _count(connection, table, [row])]


def _all_or_none(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]] | None:
    """Insert rows behind the savepoint. None, and nothing is inserted, if only some of them are new."""
    count = _count(connection, table, rows) if rows else 0
    if count not in (0, len(rows)):
        connection.exec_driver_sql(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
        return None
    return rows if count else ()


def _count(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    statement = insert(table).prefix_with("IGNORE").execution_options(**{QUIET: True})
    return connection.execute(statement, [dict(row) for row in rows]).rowcount
