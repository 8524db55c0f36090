"""The statements of the store, on a synchronous connection inside the unit's database transaction."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, and_, or_, select

from onceonly.drivers.dialect import Dialect
from onceonly.model.errors import Conflict
from onceonly.model.identity import Identity, claim_key
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.serialization.records import decode_record, encode_record
from onceonly.stores.sql.portions import chunks
from onceonly.stores.sql.tables import Tables


class Found(NamedTuple):
    """What a claim found; see the Unit port."""

    new: tuple[Message, ...] = ()
    owed: tuple[Record, ...] = ()
    done: tuple[Message, ...] = ()
    clashing: tuple[Message, ...] = ()


class Old(NamedTuple):
    """Which records wait for long, and how many of them to read; `than` is in milliseconds since 1970."""

    than: int
    limit: int


class Known(NamedTuple):
    """What is stored about a message handled before."""

    fingerprint: bytes
    effects: bytes | None


def claim(connection: Connection, tables: Tables, dialect: Dialect, messages: Mapping[bytes, Message]) -> Found:
    """Claim messages by their keys: first the claim, in key order against deadlocks, then a current read of the rest.

    Raises Conflict when one was claimed, and no longer is when it is read.
    """
    rows = [{"key": key, "fingerprint": message.fingerprint} for key, message in sorted(messages.items(), key=_first)]
    claimed = {row.key for row in dialect.insert_absent(connection, tables.claims, rows, key=["key"])}
    known = _read_known(connection, tables, dialect, [key for key in messages if key not in claimed])
    return Found(
        new=tuple(message for key, message in messages.items() if key in claimed),
        owed=tuple(
            decode_record(messages[key].identity, row.effects)
            for key, row in known.items()
            if row.effects is not None and row.fingerprint == messages[key].fingerprint
        ),
        done=tuple(
            messages[key] for key, row in known.items() if row.effects is None and row.fingerprint == messages[key].fingerprint
        ),
        clashing=tuple(messages[key] for key, row in known.items() if row.fingerprint != messages[key].fingerprint),
    )


def row_of(endpoint: str, record: Record, now: int) -> dict[str, Any]:
    """Give the values of a record's row, by the names of its columns."""
    return {
        "key": claim_key(endpoint, record.identity),
        "endpoint": endpoint,
        "source": record.identity.source,
        "id": record.identity.id,
        "effects": encode_record(record),
        "stored_at": now,
    }


def delete_keys(connection: Connection, dialect: Dialect, keys: Sequence[bytes], *tables: Table) -> None:
    """Delete claims, so that their messages are new again, or records, or both; one that is not there is no matter."""
    for some in chunks(keys):
        dialect.remove(connection, tables, some, key="key")


def read_undispatched(
    connection: Connection, tables: Tables, endpoint: str, *, old: Old, after: Identity | None
) -> tuple[Record, ...]:
    """Read the records stored before an instant, oldest first, or those of them behind the record of `after`."""
    records = tables.records.c
    query = select(records.source, records.id, records.effects).where(records.endpoint == endpoint)
    if after is not None:
        query = query.where(_behind(tables.records, claim_key(endpoint, after)))
    ordered = query.where(records.stored_at < old.than).order_by(records.stored_at, records.key).limit(old.limit)
    return tuple(_record(row) for row in connection.execute(ordered))


def read_records(
    connection: Connection, tables: Tables, dialect: Dialect, identities: Mapping[bytes, Identity]
) -> tuple[Record, ...]:
    """Read the records there are, by their keys, in the order asked."""
    records = tables.records.c
    query = select(records.key, records.source, records.id, records.effects).where(dialect.among(records.key, "keys"))
    rows = {row.key: row for some in chunks([*identities]) for row in connection.execute(query, {"keys": some})}
    return tuple(_record(rows[key]) for key in identities if key in rows)


def _read_known(connection: Connection, tables: Tables, dialect: Dialect, keys: Sequence[bytes]) -> dict[bytes, Known]:
    if not keys:
        return {}
    claims, records = tables.claims.c, tables.records.c
    joined = tables.claims.outerjoin(tables.records, claims.key == records.key)
    selected = select(claims.key, claims.fingerprint, records.effects).select_from(joined)
    query = dialect.current(selected.where(dialect.among(claims.key, "keys")))
    rows = {row.key: row for some in chunks(keys) for row in connection.execute(query, {"keys": some})}
    if len(rows) < len(keys):
        raise Conflict("another worker has finished and forgotten a message that was being claimed")
    return {key: Known(rows[key].fingerprint, rows[key].effects) for key in keys}


def _behind(records: Table, key: bytes) -> ColumnElement[bool]:
    """Compare with the row of this key as the list is ordered; nothing is behind a row that is not there."""
    last = records.alias()
    since = select(last.c.stored_at).where(last.c.key == key).scalar_subquery()
    stored_at = records.c.stored_at
    return or_(stored_at > since, and_(stored_at == since, records.c.key > key))


def _record(row: Any) -> Record:
    return decode_record(Identity(row.source, row.id), row.effects)


def _first(pair: tuple[bytes, Message]) -> bytes:
    return pair[0]
