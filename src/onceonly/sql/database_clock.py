"""The database's own clock: the one that every process sees alike, and that decides what may be forgotten."""

from typing import Any

from sqlalchemy import BigInteger, Connection, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from onceonly.sql.columns import MYSQL


class DatabaseNow(FunctionElement[int]):
    """Milliseconds since 1970, as an expression; fit for the default of a column."""

    type = BigInteger()
    inherit_cache = True


@compiles(DatabaseNow, "postgresql")
def _postgresql(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"


@compiles(DatabaseNow, *MYSQL)
def _mariadb(*_: Any, **__: Any) -> str:
    return "(CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED))"


@compiles(DatabaseNow, "sqlite")
def _sqlite(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"


class StatementNow(FunctionElement[int]):
    """Milliseconds since 1970 at the start of the statement: the same for all of it, so an index can be searched by it."""

    type = BigInteger()
    inherit_cache = True


@compiles(StatementNow, "postgresql")
def _postgresql_statement(*_: Any, **__: Any) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)"


@compiles(StatementNow, *MYSQL)
def _mariadb_statement(*_: Any, **__: Any) -> str:
    return (
        "(UNIX_TIMESTAMP() * 1000 + MICROSECOND(NOW(3)) DIV 1000)"  # NOW alone is ambiguous for an hour when summer time ends
    )


@compiles(StatementNow, "sqlite")
def _sqlite_statement(*_: Any, **__: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000 + 0.5 AS INTEGER)"


def database_now(connection: Connection) -> int:
    """Read the clock."""
    return int(connection.scalar(select(DatabaseNow())) or 0)
