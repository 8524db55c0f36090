"""The versioned schema: each component's tables, created and upgraded by command, checked at start.

One table, `{prefix}schema`, says which version of which component a database has.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    TextClause,
    UpdateBase,
    delete,
    event,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.schema import CreateIndex, CreateSchema, CreateTable, ExecutableDDLElement

from onceonly.model.errors import SchemaMissing, SchemaTooNew, SetupError
from onceonly.sql.columns import MYSQL, TRANSACTIONAL
from onceonly.sql.completeness import LOOKING, Missing, find_missing, refuse, repair
from onceonly.sql.database import Database
from onceonly.sql.dialect import Purpose

Beside = Callable[[Connection, str, str | None], Sequence[MetaData]]
"""Finds the tables of a component, under a prefix and in a schema, that commands have made next to those of every database."""
Step = Callable[[Connection, MetaData], None]
"""Takes a database from one version to the next; `MetaData` holds the component's tables as of now."""


def _none_beside(_connection: Connection, _prefix: str, _schema: str | None) -> Sequence[MetaData]:
    return ()


class Schema(Struct, frozen=True, kw_only=True):
    """The tables of one component, given a prefix and a schema of the database.

    `upgrades` holds, for each older version, the step to the one after it. `losses` says for tables, named without prefix, what
    happens when they are made again without their rows. No command makes them unless that is accepted.
    """

    component: str
    version: int
    tables: Callable[[str, str | None], MetaData]
    upgrades: Mapping[int, Step] = {}
    losses: Mapping[str, str] = {}
    beside: Beside = _none_beside


class TableNames(NamedTuple):
    """What the tables in a database are called, without a connection to it."""

    prefix: str
    schema: str | None


class TableNaming(Protocol):
    """What describes how the tables in a database are called: a `Database`, or the `DatabaseAddress` it is made from."""

    @property
    def prefix(self) -> str:
        """What every name begins with."""

    @property
    def schema(self) -> str | None:
        """The schema they are in, where there are schemas."""


async def create(database: Database, schema: Schema, *, accepts_loss: bool = False, thorough: bool = False) -> tuple[str, ...]:
    """Make the tables that are not there; harmless when they are, and from several processes at once.

    Returns the names of what was missing from tables that had been made before. Raises SchemaMissing when older tables are
    there, and for missing ones whose rows matter unless that `accepts_loss`; SchemaTooNew when newer ones are.
    """
    made: tuple[str, ...] = ()
    if await _lacks(database, schema, thorough=thorough):  # most starts find all in place, and take no write lock
        async with database.writing() as connection:
            made = await connection.run_sync(_create, database, schema, accepts_loss)
    await check(database, schema, thorough=thorough)
    return made


async def upgrade(database: Database, schema: Schema, *, accepts_loss: bool = False, thorough: bool = False) -> tuple[str, ...]:
    """Bring the tables to this version, step by step in one database transaction; makes them when there are none.

    Returns as `create`. Raises SchemaTooNew; SchemaMissing as `create`, and before any step when one of them is missing.
    """
    async with database.writing() as connection:
        await connection.run_sync(_lock, database)
        made = await connection.run_sync(upgrade_within, database, schema, accepts_loss=accepts_loss)
    await check(database, schema, thorough=thorough)
    return made


async def is_there(database: Database, schema: Schema) -> bool:
    """Return whether the database has tables of this component at all, of whatever version."""
    return await _version(database, schema) is not None


async def check(database: Database, schema: Schema, *, thorough: bool = False) -> None:
    """Check that the database has these tables, with `thorough` also their columns, indexes and keys.

    Raises SchemaMissing, SchemaTooNew, which name the fix.
    """
    async with database.reading() as connection:
        await connection.run_sync(_check_all, database, schema, thorough)


def check_within(connection: Connection, names: TableNaming, schema: Schema) -> None:
    """Check the version of the tables on a connection, inside whatever database transaction it is in. Raises as `check`."""
    _check_version(_read_version(connection, names, schema.component), schema)


def render(database: Database, schema: Schema) -> str:
    """Return the statements that create these tables, for a person to run or to review. Does not connect."""
    dialect = database.engine.dialect
    statements: list[str] = [str(_create_schema(database).compile(dialect=dialect))] if database.schema else []
    for metadata in (versions_table(database).metadata, _tables(database, schema)):
        for table in metadata.sorted_tables:
            statements.append(str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip())
            indexes = sorted(table.indexes, key=lambda index: str(index.name))
            made = [str(CreateIndex(index, if_not_exists=True).compile(dialect=dialect)).strip() for index in indexes]
            if dialect.name in MYSQL:  # to MySQL this clause is an error; MariaDB alone executes such comments
                made = [each.replace("INDEX IF NOT EXISTS", "INDEX /*M! IF NOT EXISTS */", 1) for each in made]
            statements += made
    mark = insert(versions_table(database)).values(component=schema.component, version=schema.version)
    statements.append(str(mark.compile(dialect=dialect, compile_kwargs={"literal_binds": True})))
    return ";\n\n".join(statements) + ";\n"


async def render_upgrade(database: Database, schema: Schema, *, accepts_loss: bool = False) -> str:
    """Return the statements with which `upgrade` would change this database, for a person to run or to review. Changes nothing.

    The upgrade is tried in a database transaction that is rolled back. On MariaDB, where a change of a table cannot be rolled
    back, its statements are not executed. Raises SchemaTooNew, SchemaMissing.
    """
    found: list[str] = []
    transaction = await database.open(Purpose.WRITING)
    try:
        with database.translate():
            await transaction.connection.run_sync(_try_upgrade, database, schema, found, accepts_loss=accepts_loss)
    finally:
        transaction.drop()
        await database.settle()
    return "".join(f"{statement};\n\n" for statement in found).removesuffix("\n")


def _try_upgrade(connection: Connection, names: TableNaming, schema: Schema, found: list[str], *, accepts_loss: bool) -> None:
    dialect = connection.dialect

    def note(_: object, clause: Any, *_more: object) -> None:
        if isinstance(clause, TextClause) and clause.text in LOOKING:
            return
        if isinstance(clause, ExecutableDDLElement):
            found.append(str(clause.compile(dialect=dialect)).strip())
        elif isinstance(clause, UpdateBase | TextClause):
            found.append(str(clause.compile(dialect=dialect, compile_kwargs={"literal_binds": True})).strip())

    def skip(_: object, _cursor: object, statement: str, parameters: Any, *_more: object) -> tuple[str, Any]:
        reads = statement in LOOKING or statement.lstrip().upper().startswith(("SELECT", "SHOW", "DESCRIBE"))
        return (statement, parameters) if reads else ("DO 0", ())

    event.listen(connection, "before_execute", note)
    if dialect.name in MYSQL:
        event.listen(connection, "before_cursor_execute", skip, retval=True)
    upgrade_within(connection, names, schema, accepts_loss=accepts_loss)


async def drop(database: Database, *schemas: Schema) -> None:
    """Drop these components' tables, and the schema table with them; harmless when they are gone."""
    async with database.writing() as connection:
        for schema in schemas:
            for beside in await connection.run_sync(schema.beside, database.prefix, database.schema):
                await connection.run_sync(beside.drop_all)
            await connection.run_sync(_tables(database, schema).drop_all)
        await connection.run_sync(versions_table(database).metadata.drop_all)


def drop_within(connection: Connection, names: TableNaming, schema: Schema) -> None:
    """Drop the tables of one component in a database transaction of the caller's, and the schema table after the last one."""
    for beside in schema.beside(connection, names.prefix, names.schema):
        beside.drop_all(connection)
    _tables(names, schema).drop_all(connection)
    versions = versions_table(names)
    if inspect(connection).has_table(versions.name, schema=names.schema):
        connection.execute(delete(versions).where(versions.c.component == schema.component))
        if connection.scalar(select(versions.c.component).limit(1)) is None:
            versions.drop(connection)


async def create_user_tables(database: Database, metadata: MetaData) -> None:
    """Make the user's own tables that are not there, on an embedded database."""
    async with database.writing() as connection:
        await connection.run_sync(metadata.create_all)


def _tables(names: TableNaming, schema: Schema) -> MetaData:
    return schema.tables(names.prefix, names.schema)


def _create_schema(names: TableNaming) -> CreateSchema:
    return CreateSchema(names.schema or "", if_not_exists=True)


def versions_table(names: TableNaming) -> Table:
    return Table(
        f"{names.prefix}schema",
        MetaData(schema=names.schema),
        Column("component", String(40), primary_key=True),
        Column("version", Integer, nullable=False),
        **TRANSACTIONAL,
    )


async def _version(database: Database, schema: Schema) -> int | None:
    async with database.reading() as connection:
        return await connection.run_sync(_read_version, database, schema.component)


def _read_version(connection: Connection, names: TableNaming, component: str) -> int | None:
    versions = versions_table(names)
    if not inspect(connection).has_table(versions.name, schema=names.schema):
        return None
    found = connection.scalar(select(versions.c.version).where(versions.c.component == component))
    return None if found is None else version_in(versions.name, component, found)


def version_in(table: str, component: str, found: object) -> int:
    """Return the version in a row. Raises SetupError for one that is not a number: SQLite stores a value of any type."""
    if isinstance(found, int):
        return found
    raise SetupError(
        f"table {table} has the version {found!r:.40} of the {component}, which is not a number: write the number that "
        "`onceonly schema print` shows for the onceonly that created the tables"
    )


def _check_version(found: int | None, schema: Schema) -> None:
    if found is None:
        missing = f"the tables of the {schema.component} do not exist"
        raise SchemaMissing(f"{missing}: run `onceonly schema create module:endpoint`")
    if found < schema.version:
        _check_steps(found, schema)
        raise SchemaMissing(
            f"the tables of the {schema.component} have version {found}; this onceonly needs version {schema.version}:"
            " run `onceonly schema upgrade module:endpoint`"
        )
    if found > schema.version:
        raise SchemaTooNew(
            f"the tables of the {schema.component} have version {found}; this onceonly supports up to {schema.version}:"
            " upgrade onceonly in this process"
        )


def _check_steps(found: int, schema: Schema) -> None:
    """Raise SchemaMissing if a step from the version found to the current one is missing."""
    if not all(version in schema.upgrades for version in range(found, schema.version)):
        raise SchemaMissing(
            f"the tables of the {schema.component} have version {found}, which cannot be upgraded to version"
            f" {schema.version}, the one that this onceonly needs. With the onceonly that created the tables, drain the queues"
            " (`onceonly run --drain module:endpoint`) and export the dead letters (`onceonly dead export module:endpoint`)."
            " Drop the tables of onceonly, then run `onceonly schema create module:endpoint`"
        )


def upgrade_within(
    connection: Connection, names: TableNaming, schema: Schema, *, accepts_loss: bool = False
) -> tuple[str, ...]:
    """Do what `upgrade` does in a database transaction of the caller's, who lets one process at a time do it.

    Raises SchemaTooNew; SchemaMissing as `upgrade`.
    """
    _create_absent(connection, names, schema)
    _upgrade(connection, names, schema)
    return _repair(connection, names, schema, accepts_loss=accepts_loss)


async def _lacks(database: Database, schema: Schema, *, thorough: bool) -> bool:
    """Return whether the tables were never made, or some of this version are gone."""

    def look(connection: Connection) -> bool:
        version = _read_version(connection, database, schema.component)
        return version is None or (version == schema.version and bool(_missing(connection, database, schema, thorough)))

    async with database.reading() as connection:
        return await connection.run_sync(look)


def _check_all(connection: Connection, names: TableNaming, schema: Schema, thorough: bool) -> None:  # noqa: FBT001 - run_sync
    check_within(connection, names, schema)
    refuse(_missing(connection, names, schema, thorough), schema.component, schema.losses)


def _missing(connection: Connection, names: TableNaming, schema: Schema, thorough: bool) -> Missing:  # noqa: FBT001 - the same
    every = (_tables(names, schema), *schema.beside(connection, names.prefix, names.schema))
    found = [find_missing(connection, metadata, thorough=thorough) for metadata in every]
    return Missing(*(tuple(each for one in found for each in getattr(one, name)) for name in Missing.__struct_fields__))


def _repair(connection: Connection, names: TableNaming, schema: Schema, *, accepts_loss: bool) -> tuple[str, ...]:
    """Make what tables of this version lack, and return its names. Raises SchemaMissing before it has made anything."""
    if _read_version(connection, names, schema.component) != schema.version:
        return ()
    missing = _missing(connection, names, schema, thorough=True)
    refuse(missing, schema.component, {} if accepts_loss else schema.losses, repairing=True)
    repair(connection, missing)
    return missing.names


def _lock(connection: Connection, database: Database) -> None:
    database.dialect.lock_schema(connection, versions_table(database).name)


def _create(connection: Connection, database: Database, schema: Schema, accepts_loss: bool) -> tuple[str, ...]:  # noqa: FBT001 - run_sync
    _lock(connection, database)
    _create_absent(connection, database, schema)
    return _repair(connection, database, schema, accepts_loss=accepts_loss)


def _create_absent(connection: Connection, names: TableNaming, schema: Schema) -> None:
    versions = versions_table(names)
    if names.schema is not None and not inspect(connection).has_schema(names.schema):
        connection.execute(_create_schema(names))
    versions.create(connection, checkfirst=True)
    if _read_version(connection, names, schema.component) is None:
        _tables(names, schema).create_all(connection)
        connection.execute(insert(versions).values(component=schema.component, version=schema.version))


def _upgrade(connection: Connection, names: TableNaming, schema: Schema) -> None:
    versions = versions_table(names)
    found = _read_version(connection, names, schema.component) or 0
    if found > schema.version:
        _check_version(found, schema)
    _check_steps(found, schema)
    for version in range(found, schema.version):
        schema.upgrades[version](connection, _tables(names, schema))
        # said after each step: MariaDB commits with every table it changes, and takes no step back
        connection.execute(update(versions).where(versions.c.component == schema.component).values(version=version + 1))
