"""The tables in a database of Django's: what migrations create and drop, and what `flush` empties."""

from typing import Any

from django.core.management.base import CommandError
from django.db import router
from django.db.migrations.operations.base import Operation
from sqlalchemy import Connection, column, delete, exists, func, inspect, literal, select, table, union_all

from onceonly.integrations.django.borrowed import borrowed_anyway, place_of_alias
from onceonly.integrations.django.search_path import foreign_schema
from onceonly.sql.queue_tables import SCHEMA as TRANSPORT
from onceonly.sql.schema import drop_within, upgrade_within
from onceonly.sql.store import DOCUMENTS_SCHEMA as DOCUMENTS
from onceonly.sql.store.statements import BURIED
from onceonly.sql.store.tables import SCHEMA as STORE
from onceonly.sql.store.tables import tables

APP = "onceonly"
SCHEMAS = {"store": STORE, "transport": TRANSPORT, "documents": DOCUMENTS}
"""The components whose tables migrations create."""
RESULTS = table("onceonly_task_results", column("status"))
"""The table of a model, as far as it is read here."""


def is_allowed(alias: str) -> bool:
    """Return whether the routers of the project let a database have the tables."""
    return bool(router.allow_migrate(alias, APP))


class UpgradeTables(Operation):
    """Creates the tables of a component, or upgrades them to the version of this onceonly.

    A migration for each version has this operation. The first one that is applied brings the tables to the newest version, and
    the others find nothing to do.
    """

    reduces_to_sql = False
    reversible = True
    elidable = False

    def __init__(self, component: str, version: int, *, creates: bool = False) -> None:
        super().__init__()
        self.component = component
        self.version = version
        self.creates = creates

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return type(self).__name__, [self.component, self.version], {"creates": self.creates}

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing: the tables have no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any) -> None:
        """Create or upgrade the tables, unless a router keeps them from this database.

        Raises CommandError if `search_path` leads to a schema in which no relay would find them.
        """
        alias = schema_editor.connection.alias
        if is_allowed(alias):
            with borrowed_anyway(alias) as connection:
                if schema := foreign_schema(connection):
                    raise CommandError(
                        f"the search_path of database {alias!r} begins with schema {schema!r}, so the tables of onceonly would "
                        "be created there, and no relay would find them. Migrate this app with the default search_path only: "
                        "with django-tenants, list it in SHARED_APPS, and not in TENANT_APPS"
                    )
                upgrade_within(connection, place_of_alias(alias), SCHEMAS[self.component])

    def database_backwards(self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any) -> None:
        """Drop the tables. Raises CommandError while something waits in them."""
        alias = schema_editor.connection.alias
        if not self.creates or not is_allowed(alias):
            return
        with borrowed_anyway(alias) as connection:
            _refuse_while_waiting(connection, alias)  # in tables of any component, before the first one drops its own
            drop_within(connection, place_of_alias(alias), SCHEMAS[self.component])

    def describe(self) -> str:
        return f"Create or upgrade the tables of the {self.component} of onceonly"

    @property
    def migration_name_fragment(self) -> str:
        return f"{self.component}_v{self.version}"


class RefuseWhileWaiting(Operation):
    """Refuses to reverse a migration while something waits. It is the last operation, so it is reversed first."""

    reduces_to_sql = False
    reversible = True
    elidable = False

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change nothing."""

    def database_forwards(self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any) -> None:
        """Do nothing."""

    def database_backwards(self, app_label: str, schema_editor: Any, _from_state: Any, _to_state: Any) -> None:
        """Raise CommandError while something waits."""
        alias = schema_editor.connection.alias
        if is_allowed(alias):
            with borrowed_anyway(alias) as connection:
                _refuse_while_waiting(connection, alias)

    def describe(self) -> str:
        return "Refuse to drop tables of onceonly in which something waits"


def empty_tables(alias: str) -> None:
    """Delete all that endpoints have stored in a database, except how claims are kept. Does nothing without tables."""
    if not is_allowed(alias):
        return
    place = place_of_alias(alias)
    store = tables(place.prefix, place.schema)
    lasting = {store.ring.name, store.retention.name}
    found = [table for schema in SCHEMAS.values() for table in schema.tables(place.prefix, place.schema).sorted_tables]
    with borrowed_anyway(alias) as connection:
        there = set(inspect(connection).get_table_names()) - lasting
        candidates = {table.name: table for table in found if table.name in there}
        if not candidates:
            return
        filled = (select(literal(name)).where(exists().select_from(table)) for name, table in candidates.items())
        for name in connection.scalars(union_all(*filled)).all():
            connection.execute(delete(candidates[name]))


def _refuse_while_waiting(connection: Connection, alias: str) -> None:
    if waiting := _waiting(connection, alias):
        raise CommandError(
            f"the tables of onceonly in database {alias!r} have {waiting}: run `manage.py onceonly run --drain` or "
            "`manage.py onceonly relay` until nothing waits, and export the dead letters, then repeat"
        )


def _waiting(connection: Connection, alias: str) -> str:
    """Return what would be lost with the tables, in words; empty for nothing."""
    place = place_of_alias(alias)
    store = tables(place.prefix, place.schema)
    messages = TRANSPORT.tables(place.prefix, place.schema).tables[f"{place.prefix}messages"]
    there = set(inspect(connection).get_table_names())
    pending = store.records.c.endpoint != BURIED
    asked = (
        ("records whose messages were not sent", store.records, select(func.count()).where(pending)),
        ("dead letters", store.dead_letters, select(func.count()).select_from(store.dead_letters)),
        ("messages in queues", messages, select(func.count()).select_from(messages)),
        ("tasks that have not run", RESULTS, select(func.count()).where(RESULTS.c.status == "READY")),
    )
    counts = {what: connection.scalar(query) for what, table, query in asked if table.name in there}
    return " and ".join(f"{count} {what}" for what, count in counts.items() if count)
