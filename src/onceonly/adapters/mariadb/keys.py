"""Statements for MariaDB that look up rows by one key after the other, and so lock these rows only, in this order.

With `IN (...)` the optimizer goes through a small table from end to end, and every row on the way is locked: of other units'
keys too. The keys come as the rows of a JSON_TABLE, which is joined first.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, Table, TextClause, bindparam, text

_ASKED = "JSON_TABLE(:keys, '$[*]' COLUMNS (k VARCHAR(2048) PATH '$')) AS asked STRAIGHT_JOIN"


def lock_each(
    connection: Connection, table: Table, keys: Sequence[Any], *, key: str, returning: Sequence[str]
) -> tuple[Executable, dict[str, Any]]:
    """Give SELECT ... FOR UPDATE, and its parameters."""
    names = ", ".join(f"found.{_quoted(connection, name)}" for name in returning)
    statement = (
        f"SELECT {names} FROM {_ASKED} {_named(connection, table)} AS found FORCE INDEX (PRIMARY)"  # noqa: S608 - names of our own tables
        f" ON found.{_quoted(connection, key)} = UNHEX(asked.k) FOR UPDATE"
    )
    return text(statement).columns(*(table.c[name] for name in returning)), {"keys": _hexadecimal(keys)}


def delete_each(
    connection: Connection, table: Table, keys: Sequence[Any], *, key: str, only: Mapping[str, Any]
) -> tuple[TextClause, dict[str, Any]]:
    """Give DELETE, and its parameters; with `only` just of rows that have these values."""
    having = "".join(f" AND found.{_quoted(connection, name)} = :only_{name}" for name in only)
    statement = (
        f"DELETE found FROM {_ASKED} {_named(connection, table)} AS found"
        f" ON found.{_quoted(connection, key)} = UNHEX(asked.k){having}"
    )
    typed = [bindparam(f"only_{name}", value, type_=table.c[name].type) for name, value in only.items()]
    return text(statement).bindparams(*typed), {"keys": _hexadecimal(keys)}


def _hexadecimal(keys: Sequence[bytes | str]) -> str:
    encoded = (key if isinstance(key, bytes) else key.encode(errors="surrogatepass") for key in keys)
    return json.dumps([key.hex() for key in encoded])


def _named(connection: Connection, table: Table) -> str:
    return connection.dialect.identifier_preparer.format_table(table)


def _quoted(connection: Connection, name: str) -> str:
    return connection.dialect.identifier_preparer.quote(name)
