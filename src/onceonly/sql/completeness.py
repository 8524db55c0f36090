"""What a database lacks of a component's tables, although their version is right: dropped, or left out by a restore.

A start looks for tables only. `onceonly schema` looks for columns, indexes and keys as well.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from sqlalchemy import Column, Connection, Index, Inspector, MetaData, Table, UniqueConstraint, inspect, text
from sqlalchemy.schema import CreateColumn

from onceonly.model.errors import SchemaMissing

_WITHOUT_JIT = "SET LOCAL jit = off"
"""To compile a query of PostgreSQL's catalogue takes longer than to run it."""
_WITHOUT_ANSI_QUOTES = (
    "SET @onceonly_mode = @@SESSION.sql_mode, "
    "SESSION sql_mode = REPLACE(REPLACE(@@SESSION.sql_mode, 'ANSI_QUOTES', ''), 'ANSI', '')"
)
_AS_BEFORE = "SET SESSION sql_mode = @onceonly_mode"
"""SQLAlchemy cannot read MariaDB's tables in the mode ANSI_QUOTES if it has seen another one first."""
LOOKING = (_WITHOUT_JIT, _WITHOUT_ANSI_QUOTES, _AS_BEFORE)
"""Statements that change nothing but how this connection looks at tables."""
_Place: TypeAlias = tuple[str | None, str]
_Found: TypeAlias = Mapping[Any, Any]


class Missing(Struct, frozen=True):
    """What is not there. `keys` are primary and unique keys, in words."""

    tables: tuple[Table, ...] = ()
    columns: tuple[Column[Any], ...] = ()
    indexes: tuple[Index, ...] = ()
    keys: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tables or self.columns or self.indexes or self.keys)

    @property
    def names(self) -> tuple[str, ...]:
        return (
            *(f"table {table.name}" for table in self.tables),
            *(f"column {column.table.name}.{column.name}" for column in self.columns),
            *(f"index {index.name}" for index in self.indexes),
            *self.keys,
        )


def find_missing(connection: Connection, metadata: MetaData, *, thorough: bool) -> Missing:
    """Compare these tables with the database. Only with `thorough` more than their names is compared."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(_WITHOUT_JIT))
    if connection.dialect.name not in ("mysql", "mariadb"):
        return _find(connection, metadata, thorough=thorough)
    connection.execute(text(_WITHOUT_ANSI_QUOTES))
    try:
        return _find(connection, metadata, thorough=thorough)
    finally:
        connection.execute(text(_AS_BEFORE))


def _find(connection: Connection, metadata: MetaData, *, thorough: bool) -> Missing:
    inspector, schema = inspect(connection), metadata.schema
    there = set(inspector.get_table_names(schema))
    gone = [
        table for table in metadata.sorted_tables if table.name not in there and not inspector.has_table(table.name, schema)
    ]
    if not thorough:
        return Missing(tables=tuple(gone))
    return _compare(inspector, [table for table in metadata.sorted_tables if table not in gone], gone)


def refuse(missing: Missing, component: str, losses: Mapping[str, str], *, repairing: bool = False) -> None:
    """Raise SchemaMissing if anything is missing. The error names it, and the command that makes it.

    `losses` has, by table, the effect of the loss of its rows. With `repairing` only what needs a person is refused: such a
    table, a column that must have a value, or a key.
    """
    lost = _by_loss(missing.tables, losses)
    unmakeable = (*(f"column {each.table.name}.{each.name}" for each in missing.columns if not each.nullable), *missing.keys)
    if not missing or (repairing and not lost and not unmakeable):
        return
    words = [f"the tables of the {component} are incomplete, these are missing: {', '.join(missing.names)}"]
    words += [f"without the rows of {' and '.join(names)}, {meaning}" for meaning, names in lost.items()]
    if unmakeable:
        words.append(f"restore {', '.join(unmakeable)} from a backup, or as `onceonly schema print module:endpoint` has it")
    if lost:
        words.append(
            "restore the tables from a backup, or accept the loss and create empty ones:"
            " run `onceonly schema create --accept-loss module:endpoint`"
        )
    elif not unmakeable:
        words.append("run `onceonly schema create module:endpoint`")
    raise SchemaMissing(". ".join(word[0].upper() + word[1:] if number else word for number, word in enumerate(words)))


def repair(connection: Connection, missing: Missing) -> None:
    """Make tables, columns that may be null, and indexes. Those who call have refused the rest."""
    for table in missing.tables:
        table.create(connection, checkfirst=True)
    prepared = connection.dialect.identifier_preparer
    for column in missing.columns:
        wanted = CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(text(f"ALTER TABLE {prepared.format_table(column.table)} ADD COLUMN {wanted}"))
    for index in missing.indexes:
        index.create(connection, checkfirst=True)


def _by_loss(tables: Iterable[Table], losses: Mapping[str, str]) -> dict[str, list[str]]:
    """Group tables by what the loss of their rows means. `losses` has the names without prefixes."""
    found: dict[str, list[str]] = {}
    for table in tables:
        own = max((name for name in losses if table.name.endswith(name)), key=len, default=None)
        if own is not None:
            found.setdefault(losses[own], []).append(table.name)
    return found


def _compare(inspector: Inspector, tables: Sequence[Table], gone: Sequence[Table]) -> Missing:
    if not tables:
        return Missing(tables=tuple(gone))
    asked: dict[str, Any] = {"schema": tables[0].schema, "filter_names": [table.name for table in tables]}
    columns: _Found = inspector.get_multi_columns(**asked)
    primary: dict[_Place, Any] = dict(inspector.get_multi_pk_constraint(**asked))
    all_indexes = {**asked, "include_auto_indexes": True} if inspector.dialect.name == "sqlite" else asked  # all UNIQUE has
    indexes: _Found = inspector.get_multi_indexes(**all_indexes)
    unique: _Found = inspector.get_multi_unique_constraints(**asked)
    fewer: list[Column[Any]] = []
    unindexed: list[Index] = []
    keys: list[str] = []
    for table in tables:
        place = (table.schema, table.name)
        there = {column["name"] for column in columns.get(place, ())}
        fewer += [column for column in table.columns if column.name not in there]
        has_index = {tuple(each["column_names"]) for each in indexes.get(place, ())}
        named = {each["name"] for each in indexes.get(place, ())}
        unindexed += [
            index
            for index in sorted(table.indexes, key=lambda index: str(index.name))
            if index.name not in named and tuple(index.columns.keys()) not in has_index
        ]
        found = set((primary.get(place) or {}).get("constrained_columns") or ())
        if found != set(table.primary_key.columns.keys()):
            keys.append(f"primary key of {table.name}")
        has_unique = {tuple(each["column_names"]) for each in unique.get(place, ())}
        has_unique |= {tuple(each["column_names"]) for each in indexes.get(place, ()) if each["unique"]}
        keys += [f"unique key of {table.name}" for wanted in _unique_of(table) if wanted not in has_unique]
    return Missing(tuple(gone), tuple(fewer), tuple(unindexed), tuple(keys))


def _unique_of(table: Table) -> Iterator[tuple[str, ...]]:
    for constraint in table.constraints:
        if isinstance(constraint, UniqueConstraint):
            yield tuple(constraint.columns.keys())
