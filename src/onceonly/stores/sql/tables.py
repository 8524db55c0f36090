"""The tables of the store: narrow claims, a small table of records that wait for dispatch, dead letters, and what some need.

Entities, register rows and tokens are empty where an endpoint has nothing of the kind.
"""

from functools import cache
from typing import NamedTuple

from sqlalchemy import Boolean, Column, Connection, Index, MetaData, String, Table

from onceonly.drivers.columns import (
    DATA,
    EXACT,
    FINGERPRINT,
    INSTANT,
    KEY,
    NAME,
    NAME_LENGTH,
    READABLE,
    SEQUENCE,
    TRANSACTIONAL,
    KeyAsBytes,
)
from onceonly.drivers.schema import Schema

KEY_TEXT = 32
ENTITY_KEY_BYTES = 1024
"""How many bytes of UTF-8 the key of an entity may have."""


class Tables(NamedTuple):
    """The tables under one prefix."""

    metadata: MetaData
    claims: Table
    records: Table
    dead_letters: Table
    entities: Table
    register: Table
    tokens: Table


@cache
def tables(prefix: str, schema: str | None = None) -> Tables:
    """Give the tables under a prefix, in a schema of the database; times are milliseconds since 1970."""
    metadata = MetaData(schema=schema)
    claims = Table(
        f"{prefix}claims",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("fingerprint", FINGERPRINT, nullable=False),
        sqlite_with_rowid=False,
        **TRANSACTIONAL,
    )
    records = Table(
        f"{prefix}records",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("endpoint", NAME, nullable=False),
        Column("source", EXACT, nullable=False),
        Column("id", EXACT, nullable=False),
        Column("effects", DATA, nullable=False),
        Column("stored_at", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    dead_letters = Table(
        f"{prefix}dead_letters",
        metadata,
        Column("position", SEQUENCE, primary_key=True),
        Column("key", String(KEY_TEXT), nullable=False, unique=True),
        Column("endpoint", NAME, nullable=False),
        Column("type", READABLE, nullable=False),
        Column("reason", READABLE, nullable=False),
        Column("stored_at", INSTANT, nullable=False),
        Column("letter", DATA, nullable=False),
        sqlite_autoincrement=True,  # a removed letter's position never comes again, so pages stay in order
        **TRANSACTIONAL,
    )
    return Tables(metadata, claims, records, dead_letters, *_second(prefix, metadata))


def _second(prefix: str, metadata: MetaData) -> tuple[Table, Table, Table]:
    """Define what came with version 2."""
    entities = Table(
        f"{prefix}entities",
        metadata,
        Column("key", KeyAsBytes(ENTITY_KEY_BYTES), primary_key=True),
        Column("state", DATA, nullable=False),
        Column("changed_at", INSTANT, nullable=False),
        **TRANSACTIONAL,
    )
    register = Table(
        f"{prefix}register",
        metadata,
        Column("attempt", KeyAsBytes(NAME_LENGTH), primary_key=True),
        Column("key", KEY, nullable=False),
        Column("endpoint", NAME, nullable=False),
        Column("source", EXACT, nullable=False),
        Column("id", EXACT, nullable=False),
        Column("unit", EXACT, nullable=False),
        Column("opened_at", INSTANT, nullable=False),
        Column("cancelled", Boolean, nullable=False),
        **TRANSACTIONAL,
    )
    Index(f"{prefix}register_key", register.c.key)
    tokens = Table(f"{prefix}tokens", metadata, Column("key", KEY, primary_key=True), sqlite_with_rowid=False, **TRANSACTIONAL)
    return entities, register, tokens


def metadata(prefix: str, schema: str | None = None) -> MetaData:
    """Give the tables under a prefix, in a schema of the database."""
    return tables(prefix, schema).metadata


def _add_second(connection: Connection, metadata: MetaData) -> None:
    """Add the tables of version 2; those of version 1 stay as they are."""
    added = ("entities", "register", "tokens")
    metadata.create_all(connection, tables=[table for table in metadata.sorted_tables if table.name.endswith(added)])


SCHEMA = Schema(component="store", version=2, tables=metadata, upgrades={1: _add_second})
