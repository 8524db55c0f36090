"""In which schema of PostgreSQL the tables are: where relays find them, whatever `search_path` the application has set.

Packages for tenants set `search_path` on Django's connection for each request. A relay has connections of its own, with the
`search_path` that the role or the database has by default. A record elsewhere would never be sent.
"""

from typing import NamedTuple

from django.db import connections
from msgspec.structs import replace
from sqlalchemy import Connection, text

from onceonly.integrations.django.borrowed import borrowed_anyway
from onceonly.sql.urls import DatabaseAddress

_DEFAULT_PATH = text("""
    SELECT n.nspname AS schema, EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relname = :name) AS has_tables
    FROM pg_settings s
    CROSS JOIN unnest(string_to_array(s.reset_val, ',')) WITH ORDINALITY AS path (entry, number)
    JOIN pg_namespace n ON n.nspname = replace(trim(BOTH ' "' FROM path.entry), '$user', session_user)
    WHERE s.name = 'search_path' ORDER BY path.number
""")
"""The schemas of the default `search_path` that exist, in order. `reset_val` is the value before any SET."""
_FOUND: dict[tuple[object, ...], str] = {}
"""The schema of the tables, by database, role and prefix."""


class PathEntry(NamedTuple):
    """A schema in the default `search_path`, and whether it has the tables."""

    schema: str
    has_tables: bool


def place_within(alias: str, place: DatabaseAddress) -> DatabaseAddress:
    """Return where the tables are, with their schema on PostgreSQL. One query for each process and database.

    Without tables it is the schema in which they belong, so that the usual check reports that they are missing.
    """
    django = connections[alias]
    if django.vendor != "postgresql" or place.schema is not None:
        return place
    own = django.settings_dict
    key = (own["NAME"], own.get("HOST"), own.get("PORT"), own.get("USER"), place.prefix)
    if key not in _FOUND:
        with borrowed_anyway(alias, is_silent=True) as connection:
            path = default_path(connection, f"{place.prefix}records")
        schema = next((each.schema for each in path if each.has_tables), None)
        if schema is None:
            return replace(place, schema=path[0].schema) if path else place
        _FOUND[key] = schema
    return replace(place, schema=_FOUND[key])


def default_path(connection: Connection, table: str) -> list[PathEntry]:
    """Return the schemas in which new connections look for a table, in order."""
    return [PathEntry(*row) for row in connection.execute(_DEFAULT_PATH, {"name": table})]


def foreign_schema(connection: Connection) -> str | None:
    """Return the schema in which a table would be created now, if new connections would create it elsewhere."""
    if connection.dialect.name != "postgresql":
        return None
    current: str | None = connection.scalar(text("SELECT current_schema()"))
    path = default_path(connection, "")
    return current if path and current != path[0].schema else None
