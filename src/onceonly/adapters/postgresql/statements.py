"""SQL that is said as one text, several statements in one round trip: what begins a unit of one message, and what ends it.

A statement that travels alone costs more than the server takes for it. So a BEGIN waits for the claim behind it, and the record
of a lone message waits for COMMIT; anything else that is executed on the connection says first what waits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table

from onceonly.sql.statement_effects import (
    ISOLATION,
    LEFT,
    LOCAL,
    SESSION,
    TEMPORARY,
    Effect,
    StatementEffects,
    begins,
    contains,
)

_IN_PARENTHESES = r"\((?:[^;()]|\([^;()]*\))*\)"
_LOCALLY = rf"""\"?\s*\((?:'[^']*'|[^;()']|{_IN_PARENTHESES})*,\s*true\s*\)"""
"""What follows the name in `set_config(..., true)`, up to the end of this call."""
EFFECTS = StatementEffects(
    begins(r"SET\s+(?!LOCAL\b|CONSTRAINTS\b|TRANSACTION\b)|RESET\b", SESSION),
    begins(r"SET\s+LOCAL\b", LOCAL),
    begins(r"SET\s+CONSTRAINTS\b", Effect.OWN),
    begins(r"SET\s+(?:(?:SESSION|LOCAL)\s+)?transaction_(?:read_only|isolation|deferrable)\b", Effect.REFUSED, ISOLATION),
    begins(r"DEALLOCATE\s+(?:PREPARE\s+)?ALL\b", Effect.REFUSED, "It removes the driver's own statements. Name one statement"),
    begins(r"(?:PREPARE|DEALLOCATE|LISTEN|UNLISTEN|DISCARD|LOAD)\b", LEFT),
    begins(r"(?:DECLARE|NOTIFY)\b", Effect.OWN),
    begins(r"DECLARE\b[^;]*\bWITH\s+HOLD\b", LEFT),
    begins(rf"{TEMPORARY}(?=[^;]*\bON\s+COMMIT\s+DROP\b)", Effect.OWN),
    begins(rf"{TEMPORARY}(?![^;]*\bON\s+COMMIT\s+DROP\b)", LEFT),
    contains("into", r"\bINTO\s+(?:(?:LOCAL|GLOBAL)\s+)?TEMP(?:ORARY)?\b", LEFT),
    begins(r"DO\b", LEFT | Effect.SETS),
    contains("pg_temp", r"\b(?:CREATE|INTO)\b[^;]*\bpg_temp\b", LEFT),
    contains("pg_settings", r"\bUPDATE\b[^;]*\bpg_settings\b", SESSION),
    contains("set_config", r"\bset_config\b", LOCAL),
    contains("set_config", rf"\bset_config\b(?!{_LOCALLY})", SESSION),
    contains("setseed", r"\bsetseed\b", LEFT),
    contains("pg_notify", r'\bpg_notify"?\s*\(', Effect.OWN),
    contains("advisory", r'\bpg_(?:try_)?advisory_(?:un)?lock(?:_shared|_all)?"?\s*\(', Effect.OWN | Effect.SETS_SESSION),
)
"""What the text of a statement does: https://www.postgresql.org/docs/current/sql-commands.html."""
LONGEST = 16_384
"""Bytes of a value that is written in hexadecimal digits; what is longer goes as a parameter."""

_HELD_TEXT = "_onceonly_held_text"


def hold_text(connection: Connection, words: str) -> None:
    """Hold a statement until the next one on the connection, which it precedes in the same request."""
    before = held_text(connection)
    vars(connection)[_HELD_TEXT] = f"{before}; {words}" if before else words


def held_text(connection: Connection) -> str:
    """Return the held text; empty for none."""
    words: str = vars(connection).get(_HELD_TEXT, "")
    return words


def take_held_text(connection: Connection) -> str:
    """Return the held text, and hold it no longer. Called before each statement; `connection.info` takes much longer."""
    words: str = vars(connection).pop(_HELD_TEXT, "")
    return words


class InsertStatements:
    """Writes an INSERT of a row or two as text, for the connections of one engine; nothing in a row changes its meaning."""

    def __init__(self) -> None:
        self._forms: dict[tuple[Table, int], tuple[str, Sequence[Callable[[Any], Any] | None]]] = {}
        self._columns: dict[tuple[Table, str], tuple[str, Callable[[Any], Any] | None]] = {}

    def insert(self, connection: Connection, table: Table, *rows: Mapping[str, Any]) -> str:
        """Return the text; empty when it would be too long, or goes elsewhere. Rows with as many columns have the same ones."""
        form = self._forms.get((table, len(rows[0]))) or self._new_form(connection, table, rows[0])
        tuples = [
            [_literal(value if bind is None else bind(value)) for bind, value in zip(form[1], row.values(), strict=True)]
            for row in rows
        ]
        if not all(all(values) for values in tuples) or _is_elsewhere(connection):
            return ""
        written = ", ".join("(" + ", ".join(values) + ")" for values in tuples)
        return f"{form[0]} VALUES {written}"

    def update(self, connection: Connection, table: Table, row: Mapping[str, Any], *, key: str) -> str:
        """Return the text that sets the other columns of the row with this key; empty as above."""
        words: dict[str, str] = {}
        for name, value in row.items():
            quoted, bind = self._columns.get((table, name)) or self._column(connection, table, name)
            words[name] = f"{quoted} = {_literal(value if bind is None else bind(value))}"
        if any(each.endswith(" = ") for each in words.values()) or _is_elsewhere(connection):
            return ""
        condition = words.pop(key)
        name = connection.dialect.identifier_preparer.format_table(table)
        return f"UPDATE {name} SET {', '.join(words.values())} WHERE {condition}"  # noqa: S608 - values are in digits, see `_literal`

    def _new_form(
        self, connection: Connection, table: Table, row: Mapping[str, Any]
    ) -> tuple[str, Sequence[Callable[[Any], Any] | None]]:
        prepare = connection.dialect.identifier_preparer
        columns = [self._column(connection, table, name) for name in row]
        names, binds = ", ".join(quoted for quoted, _ in columns), [bind for _, bind in columns]
        self._forms[table, len(row)] = form = (f"INSERT INTO {prepare.format_table(table)} ({names})", binds)
        return form

    def _column(self, connection: Connection, table: Table, name: str) -> tuple[str, Callable[[Any], Any] | None]:
        """Return how a column is written, and the function that converts its values; None where none is needed."""
        dialect = connection.dialect
        bind = table.c[name].type.dialect_impl(dialect).bind_processor(dialect)
        self._columns[table, name] = found = (dialect.identifier_preparer.quote(name), bind)
        return found


def _is_elsewhere(connection: Connection) -> bool:
    return bool(connection.get_execution_options().get("schema_translate_map"))


def _literal(value: object) -> str:
    """Write a value so that it means the same whatever the server's settings are; empty when it is long, or of no such kind."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return f"decode('{value.hex()}', 'hex')" if len(value) <= LONGEST else ""
    if not isinstance(value, str):
        return ""
    if value.isascii() and value.isalnum():
        return f"'{value}'"
    return f"convert_from(decode('{value.encode().hex()}', 'hex'), 'UTF8')"
