"""Statements for MariaDB that SQLAlchemy does not write: a COMMIT with a limit of time, and look-ups by one key after another.

Such a look-up locks the rows of its keys only, in their order. With `IN (...)` the optimizer goes through a small table from
end to end, and every row on the way is locked: of other units' keys too. The keys come as the rows of a JSON_TABLE, which is
joined first. MySQL wants to be told not to lock those, and newer releases of MariaDB to use the index of a small table.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Table, TextClause, bindparam, text
from sqlalchemy.exc import DBAPIError

from onceonly.adapters.mariadb.connection import code_of
from onceonly.sql.dialect import Limit, TooLate

NOTE_START = "SET @onceonly_started = UTC_TIMESTAMP(6)"
# EXP(1000) is out of range. That is an error to SELECT, not a warning, and what is said behind it is not done.
_UNLESS_LATE = "SELECT EXP(IF(UTC_TIMESTAMP(6) > @onceonly_started + INTERVAL {} MICROSECOND, 1000, 0)); COMMIT"
_OUT_OF_RANGE = 1690
_ASKED = "JSON_TABLE(:keys, '$[*]' COLUMNS (k VARCHAR(2048) PATH '$')) AS asked STRAIGHT_JOIN"


def lock_each(
    connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
) -> tuple[Executable, dict[str, Any]]:
    """Return SELECT ... FOR UPDATE, and its parameters."""
    names = ", ".join(f"found.{_quoted(connection, name)}" for name in returning)
    statement = f"SELECT {names} FROM {_found(connection, table, key)} FOR UPDATE /*!80000 OF found */"  # noqa: S608 - names of our own tables
    return text(statement).columns(*(table.c[name] for name in returning)), {"keys": _hexadecimal(keys)}


def find_each(connection: Connection, table: Table, keys: Sequence[Any], *, key: str) -> frozenset[Any]:
    """Return the keys of rows that exist, and lock these rows against changes, as INSERT IGNORE does."""
    share = "/*M! LOCK IN SHARE MODE */ /*!80000 FOR SHARE OF found */"
    statement = f"SELECT found.{_quoted(connection, key)} FROM {_found(connection, table, key)} {share}"  # noqa: S608 - the same
    rows = connection.execute(text(statement).columns(table.c[key]), {"keys": _hexadecimal(keys)})
    return frozenset(row[0] for row in rows)


def delete_each(
    connection: Connection, table: Table, keys: Sequence[Any], *, key: str, only: Mapping[str, Any]
) -> tuple[TextClause, dict[str, Any]]:
    """Return DELETE, and its parameters; with `only` just of rows that have these values."""
    having = "".join(f" AND found.{_quoted(connection, name)} = :only_{name}" for name in only)
    statement = f"DELETE found FROM {_found(connection, table, key)}{having}"
    typed = [bindparam(f"only_{name}", value, type_=table.c[name].type) for name, value in only.items()]
    return text(statement).bindparams(*typed), {"keys": _hexadecimal(keys)}


def _found(connection: Connection, table: Table, key: str) -> str:
    named = f"{_named(connection, table)} AS found FORCE INDEX (PRIMARY)"
    return f"{_ASKED} {named} ON found.{_quoted(connection, key)} = UNHEX(asked.k)"


def _hexadecimal(keys: Sequence[bytes | str]) -> str:
    encoded = (key if isinstance(key, bytes) else key.encode(errors="surrogatepass") for key in keys)
    return json.dumps([key.hex() for key in encoded])


def _named(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote(name)


def commit_within(connection: Connection, limit: Limit) -> None:
    """Check the server's clock and COMMIT, in one request, past SQLAlchemy: that would not read the second answer.

    Raises TooLate, DBAPIError.
    """
    from asyncmy.errors import MySQLError  # noqa: PLC0415 - a driver is imported when a URL names it

    commit = _UNLESS_LATE.format(limit.milliseconds * 1000)
    adapted: Any = connection.connection.dbapi_connection
    try:
        adapted.run_async(lambda driver: _execute_all(driver, commit))
    except MySQLError as error:
        translated = DBAPIError("COMMIT", None, error)
        if code_of(translated) == _OUT_OF_RANGE:
            raise TooLate(f"not committed within {limit.milliseconds} ms of its start") from error
        raise translated from error


async def _execute_all(driver: Any, statements: str) -> None:
    async with driver.cursor() as cursor:
        await cursor.execute(statements)
        while await cursor.nextset():
            """The answer to COMMIT is the last one."""
