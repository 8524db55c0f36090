"""The clock of a database. It is the same for every process, and decides what is deleted."""

from typing import Any

from sqlalchemy import BigInteger, Connection, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from onceonly.model.errors import SetupError
from onceonly.sql.columns import MYSQL


class DatabaseNow(FunctionElement[int]):
    """The time of the database in milliseconds since 1970, as an SQL expression. It is also the default of a column.

    It must not be the time at which the transaction began.
    """

    type = BigInteger()
    inherit_cache = True


@compiles(DatabaseNow)
def _unknown(_: Any, compiler: Any, **__: Any) -> str:
    raise SetupError(
        f"{compiler.dialect.name} databases have no clock: register DatabaseNow and StatementNow of onceonly.sql.dialect for "
        f'"{compiler.dialect.name}" with sqlalchemy.ext.compiler.compiles'
    )


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
    """The time in milliseconds since 1970 at which the statement began, as an SQL expression.

    It is the same in the whole statement, so that an index can be searched by it.
    """

    type = BigInteger()
    inherit_cache = True


compiles(StatementNow)(_unknown)


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
    return int(connection.scalar(select(DatabaseNow())) or 0)
