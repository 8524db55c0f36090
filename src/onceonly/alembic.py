"""onceonly's tables in Alembic: as a part of your migrations, or left alone by them.

In `env.py`, either have autogenerate include the tables:

    context.configure(connection=connection, **configure_options(Base.metadata))

or create them by `onceonly schema create` and have autogenerate ignore them:

    context.configure(connection=connection, target_metadata=Base.metadata, include_name=include_name)

A migration of this version's tables refers to the column types in this module.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, MetaData, inspect, select
from sqlalchemy.schema import DefaultClause

from onceonly.model.errors import SetupError
from onceonly.sql.columns import DATA, EXACT, FINGERPRINT, KEY, LONG, NAME, READABLE, SEQUENCE, TextKey
from onceonly.sql.database_clock import DatabaseNow
from onceonly.sql.options import DEFAULT_PREFIX, checked_prefix
from onceonly.sql.queue_tables import SCHEMA as QUEUE
from onceonly.sql.schema import Schema, TableNames, upgrade_within, versions_table
from onceonly.sql.store.documents import SCHEMA as DOCUMENTS
from onceonly.sql.store.message_journal import SCHEMA as JOURNAL
from onceonly.sql.store.remote_requests import SCHEMA as HTTP
from onceonly.sql.store.tables import SCHEMA as STORE

__all__ = ["Component", "configure_options", "ignore_tables", "include_name", "tables", "upgrade_tables"]

Component: TypeAlias = Literal["store", "transport", "documents", "http", "journal"]
"""What a database is used as, as in `onceonly schema --component`."""

try:
    ops: Any = import_module("alembic.operations.ops")
except ImportError as error:  # the message of the missing module alone names no extra
    raise ImportError("Alembic is not installed: pip install 'onceonly[alembic]'") from error

_SCHEMAS: Mapping[str, Schema] = {"store": STORE, "transport": QUEUE, "documents": DOCUMENTS, "http": HTTP, "journal": JOURNAL}
_DEFAULT: tuple[Component, ...] = ("store", "transport")
_TYPES: Mapping[type, str] = {
    type(KEY): "KEY",
    type(FINGERPRINT): "FINGERPRINT",
    type(EXACT): "EXACT",
    type(READABLE): "READABLE",
    type(NAME): "NAME",
    type(DATA): "DATA",
    type(LONG): "LONG",
    type(SEQUENCE): "SEQUENCE",
}
"""What generated migrations call the types of columns: they stay in this module."""
_IncludeName: TypeAlias = Callable[[str | None, str, Mapping[str, str | None]], bool]


def tables(*, prefix: str = DEFAULT_PREFIX, schema: str | None = None, components: Sequence[Component] = _DEFAULT) -> MetaData:
    """Return onceonly's tables, with the table that stores their versions.

    `prefix` and `schema` are those of the database URL. `components` are those of `onceonly schema`. Raises SetupError.
    """
    names, found = _names(prefix, schema), MetaData(schema=schema)
    versions_table(names).to_metadata(found)
    for component in _schemas(components):
        for table in component.tables(prefix, schema).sorted_tables:
            table.to_metadata(found)
    return found


def configure_options(
    *metadata: MetaData, prefix: str = DEFAULT_PREFIX, schema: str | None = None, components: Sequence[Component] = _DEFAULT
) -> dict[str, Any]:
    """Return options of `context.configure` with which autogenerate includes onceonly's tables next to `metadata`.

    A generated migration creates the tables and inserts their versions, which an endpoint checks at start. Autogenerate does
    not upgrade tables of an earlier version: it raises SetupError, which names `upgrade_tables`.
    """
    names, schemas = _names(prefix, schema), _schemas(components)

    def complete(context: Any, _revision: object, directives: list[Any]) -> None:
        for script in directives:
            for there, back in zip(script.upgrade_ops_list, script.downgrade_ops_list, strict=True):
                _add_versions(context.connection, names, schemas, (there, back))

    options: dict[str, Any] = {
        "target_metadata": [*metadata, tables(prefix=prefix, schema=schema, components=components)],
        "render_item": _render,
        "process_revision_directives": complete,
    }
    if schema is not None:
        own = {None, schema, *(each.schema for each in metadata)}
        options |= {"include_schemas": True, "include_name": lambda name, kind, _: kind != "schema" or name in own}
    return options


def ignore_tables(prefix: str = DEFAULT_PREFIX) -> _IncludeName:
    """Return an `include_name` with which autogenerate ignores onceonly's tables with this prefix."""
    names = _names(prefix, None)
    known = {versions_table(names).name, *(table for each in _SCHEMAS.values() for table in each.tables(prefix, None).tables)}

    def include(name: str | None, kind: str, _parents: Mapping[str, str | None]) -> bool:
        return kind != "table" or name not in known

    return include


def upgrade_tables(
    connection: Connection,
    *,
    prefix: str = DEFAULT_PREFIX,
    schema: str | None = None,
    components: Sequence[Component] = _DEFAULT,
) -> None:
    """Upgrade tables of an earlier version, or create them: `upgrade_tables(op.get_bind())` in a migration.

    Raises SchemaTooNew if a newer onceonly has made the tables.
    """
    for component in _schemas(components):
        upgrade_within(connection, _names(prefix, schema), component)


def _names(prefix: str, schema: str | None) -> TableNames:
    return TableNames(checked_prefix(prefix), schema)


def _schemas(components: Iterable[str]) -> tuple[Schema, ...]:
    if unknown := [each for each in components if each not in _SCHEMAS]:
        raise SetupError(f"components={unknown}: write some of {', '.join(_SCHEMAS)}")
    return tuple(_SCHEMAS[each] for each in components)


def _add_versions(connection: Connection, names: TableNames, schemas: Sequence[Schema], scripts: tuple[Any, Any]) -> None:
    """Add the rows of the versions to a script that creates the tables of a component."""
    there, back = scripts
    changed = {table for op in there.ops if (table := _table_of(op))}
    created = {op.table_name for op in there.ops if isinstance(op, ops.CreateTableOp)}
    versions = versions_table(names)
    found: dict[str, int] = {}
    if inspect(connection).has_table(versions.name, schema=names.schema):
        found = {row.component: row.version for row in connection.execute(select(versions))}
    for component in schemas:
        own = {table.name for table in component.tables(names.prefix, names.schema).sorted_tables}
        version = found.get(component.component)
        if version is None and own <= created:
            row = f"'{component.component}', {component.version}"
            there.ops.append(ops.ExecuteSQLOp(f"INSERT INTO {versions} (component, version) VALUES ({row})"))  # noqa: S608 - own names
            if versions.name not in created:
                gone = f"DELETE FROM {versions} WHERE component = '{component.component}'"  # noqa: S608 - the same
                back.ops.insert(0, ops.ExecuteSQLOp(gone))
        elif version != component.version and own & changed:
            raise SetupError(
                f"the tables of the {component.component} have version {version}, not {component.version}: create a revision"
                " without --autogenerate that calls onceonly.alembic.upgrade_tables(op.get_bind()), and upgrade to it first"
            )


def _table_of(op: Any) -> str:
    return str(getattr(op, "table_name", "") or "")


def _render(kind: str, item: Any, context: Any) -> str | Literal[False]:
    """Render onceonly's types by their names in this module."""
    if kind == "server_default" and isinstance(item, DefaultClause) and isinstance(item.arg, DatabaseNow):
        return _named("DatabaseNow()", context)
    if kind != "type":
        return False
    if isinstance(item, TextKey):
        return _named(f"TextKey({item.length})", context)
    return _named(_TYPES[type(item)], context) if type(item) in _TYPES else False


def _named(what: str, context: Any) -> str:
    context.imports.add("import onceonly.alembic")
    return f"onceonly.alembic.{what}"


include_name = ignore_tables()
"""The `include_name` for tables with the default prefix."""
