"""The tables of the store: narrow claims, a small table of records that wait for dispatch, and dead letters."""

from functools import cache
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text

from onceonly.drivers.dialect import KEY
from onceonly.drivers.schema import Schema
from onceonly.model.identity import FINGERPRINT_BYTES

KEY_TEXT = 32


class Tables(NamedTuple):
    """The tables under one prefix."""

    metadata: MetaData
    claims: Table
    records: Table
    dead_letters: Table


@cache
def tables(prefix: str) -> Tables:
    """Give the tables under a prefix; times are milliseconds since 1970."""
    metadata = MetaData()
    claims = Table(
        f"{prefix}claims",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("fingerprint", LargeBinary(FINGERPRINT_BYTES), nullable=False),
        sqlite_with_rowid=False,
    )
    records = Table(
        f"{prefix}records",
        metadata,
        Column("key", KEY, primary_key=True),
        Column("endpoint", Text, nullable=False),
        Column("source", Text, nullable=False),
        Column("id", Text, nullable=False),
        Column("effects", LargeBinary, nullable=False),
        Column("stored_at", BigInteger, nullable=False),
    )
    dead_letters = Table(
        f"{prefix}dead_letters",
        metadata,
        Column("position", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("key", String(KEY_TEXT), nullable=False, unique=True),
        Column("endpoint", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("reason", Text, nullable=False),
        Column("stored_at", BigInteger, nullable=False),
        Column("letter", LargeBinary, nullable=False),
        sqlite_autoincrement=True,  # a removed letter's position never comes again, so pages stay in order
    )
    return Tables(metadata, claims, records, dead_letters)


SCHEMA = Schema(component="store", version=1, tables=lambda prefix: tables(prefix).metadata)
