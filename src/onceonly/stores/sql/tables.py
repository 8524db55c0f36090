"""The tables of the store: narrow claims, a small table of records that wait for dispatch, and dead letters."""

from functools import cache
from typing import NamedTuple

from sqlalchemy import Column, MetaData, String, Table

from onceonly.drivers.columns import DATA, EXACT, FINGERPRINT, INSTANT, KEY, NAME, READABLE, SEQUENCE, TRANSACTIONAL
from onceonly.drivers.schema import Schema

KEY_TEXT = 32


class Tables(NamedTuple):
    """The tables under one prefix."""

    metadata: MetaData
    claims: Table
    records: Table
    dead_letters: Table


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
    return Tables(metadata, claims, records, dead_letters)


def metadata(prefix: str, schema: str | None = None) -> MetaData:
    """Give the tables under a prefix, in a schema of the database."""
    return tables(prefix, schema).metadata


SCHEMA = Schema(component="store", version=1, tables=metadata)
