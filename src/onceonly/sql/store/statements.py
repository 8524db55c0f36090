"""The statements about records, on a synchronous connection inside a database transaction, and what a claim found."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select

from onceonly.formats.records import decode_record, encode_record
from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.sql.dialect import Dialect
from onceonly.sql.store.portions import chunks
from onceonly.sql.store.tables import Tables

BURIED = "-"
"""In the place of an endpoint's name, which this is not: the row is the tombstone of an attempt that was fenced."""


class OldRecords(NamedTuple):
    """Which records wait for long, and how many of them to read; `than` is in milliseconds since 1970."""

    than: int
    limit: int


def row_of(endpoint: str, record: Record, now: int, claim: bytes | None = None) -> dict[str, Any]:
    """Give the values of a record's row, by the names of its columns; `claim` is its message's key in the ring."""
    return {
        "key": claim_key(endpoint, record.identity),
        "endpoint": endpoint,
        "source": record.identity.source,
        "id": record.identity.id,
        "effects": encode_record(record),
        "stored_at": now,
        "claim": claim,
    }


def delete_keys(connection: Connection, dialect: Dialect, keys: Sequence[bytes], *tables: Table) -> None:
    """Delete claims, so that their messages are new again, or records, or both; one that is not there is ignored."""
    for some in chunks(keys):
        dialect.remove(connection, tables, some, key="key")


def read_undispatched(connection: Connection, tables: Tables, endpoint: str, old: OldRecords) -> tuple[Record, ...]:
    """Read the records stored before an instant, oldest first."""
    records = tables.records.c
    query = select(records.source, records.id, records.effects).where(records.endpoint == endpoint)
    ordered = query.where(records.stored_at < old.than).order_by(records.stored_at, records.key).limit(old.limit)
    return tuple(record_in(row) for row in connection.execute(ordered))


def read_records(
    connection: Connection, tables: Tables, dialect: Dialect, identities: Mapping[bytes, Identity]
) -> tuple[Record, ...]:
    """Read the records there are, by their keys, in the order asked."""
    records = tables.records.c
    query = select(records.key, records.source, records.id, records.effects)
    query = query.where(dialect.among(records.key, "keys"), records.endpoint != BURIED)
    rows = {row.key: row for some in chunks([*identities]) for row in connection.execute(query, {"keys": some})}
    return tuple(record_in(rows[key]) for key in identities if key in rows)


def record_in(row: Any) -> Record:
    """Give the record that a row holds."""
    return decode_record(Identity(row.source, row.id), row.effects)
