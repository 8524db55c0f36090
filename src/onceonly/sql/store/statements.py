"""The statements about records, on a synchronous connection inside a database transaction, and what a claim found."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select

from onceonly.formats.log_events import EventLogger, LoggedKeys
from onceonly.formats.records import decode_record, encode_record
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import PermanentFailure, SchemaTooNew
from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.sql.columns import Undecodable
from onceonly.sql.dialect import Dialect
from onceonly.sql.store.portions import chunks
from onceonly.sql.store.tables import Tables

BURIED = "-"
"""In the place of an endpoint's name, which this is not: the row is the tombstone of an attempt that was fenced."""


SHOWN = 200
"""Characters of each field of an unreadable record that are logged."""
_log = EventLogger(logging.getLogger("onceonly"))
_REPORTED = LoggedKeys()


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
    return readable_records(connection.execute(ordered))


def read_records(
    connection: Connection, tables: Tables, dialect: Dialect, identities: Mapping[bytes, Identity]
) -> tuple[Record, ...]:
    """Read the records there are, by their keys, in the order asked."""
    records = tables.records.c
    query = select(records.key, records.source, records.id, records.effects)
    query = query.where(dialect.among(records.key, "keys"), records.endpoint != BURIED)
    rows = {row.key: row for some in chunks([*identities]) for row in connection.execute(query, {"keys": some})}
    return readable_records(rows[key] for key in identities if key in rows)


def stored_bytes(value: object, what: str) -> bytes:
    """Return the bytes of a column. Raises PermanentFailure for another type, which SQLite stores in any column."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise PermanentFailure(f"{what} cannot be read: bytes are stored there, not {type(value).__name__}")


def readable_records(rows: Iterable[Any]) -> tuple[Record, ...]:
    """Give the records of rows that can be read. Another one stays in the table and is logged, once in a process."""
    found = (readable_record(row.source, row.id, row.effects) for row in rows)
    return tuple(record for record in found if record is not None)


def readable_record(source: object, id_: object, effects: object) -> Record | None:
    """Give a record, or None for one that cannot be read, which is logged. The relay sends its messages when it can be read.

    So a message whose record cannot be read is handled, and its copies are done. SQLite stores a value of any type in any
    column.
    """
    try:
        return decode_record(*_checked(source, id_, effects))
    except (SchemaTooNew, *UNDECODABLE) as error:
        _report(ascii(source)[:SHOWN], ascii(id_)[:SHOWN], ascii(str(error))[:SHOWN])
        return None


def _checked(source: object, id_: object, effects: object) -> tuple[Identity, bytes]:
    if not (isinstance(source, str) and isinstance(id_, str) and isinstance(effects, bytes | bytearray | memoryview)):
        raise TypeError("source and id must be text, and effects bytes")
    if isinstance(source, Undecodable) or isinstance(id_, Undecodable):
        raise TypeError("source or id is not UTF-8")  # its row could not be found to delete it
    return Identity(source, id_), bytes(effects)


def _report(source: str, id_: str, reason: str) -> None:
    if _REPORTED.add(source, id_):
        _log.error("record unreadable: its messages wait", extra={"source": source, "id": id_, "reason": reason})
