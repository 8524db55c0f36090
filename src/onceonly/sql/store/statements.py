"""The statements about records, on a synchronous connection inside a database transaction, and how much goes into one of them.

An attempt at a transaction or an execution is fenced by a tombstone in the place of the record that its commit would insert. A
handler's attempt holds a claim that can be waited for. A transaction holds nothing that another process knows, so its attempt
is made impossible instead: records are unique by their key, and the tombstone has the key of the attempt's record. It belongs
to no endpoint, so no relay takes it for a record. The database's clock refuses the commit after `max_commit`; until then the
tombstone stays.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Table, or_, select

from onceonly.config.deduplication import ClaimMode
from onceonly.formats.records import decode_record, encode_record
from onceonly.formats.undecodable import UNDECODABLE, UNREADABLE, report_record
from onceonly.model.errors import PermanentFailure, SchemaTooNew, UpgradeRequired
from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.ports.environment import Clock
from onceonly.sql.columns import Undecodable
from onceonly.sql.database import Database
from onceonly.sql.dialect import Dialect
from onceonly.sql.store.rings import RingRoutes
from onceonly.sql.store.tables import Tables
from onceonly.sql.store.time_buckets import time_in

if TYPE_CHECKING:
    from onceonly.sql.store.message_journal import SqlMessageJournal

BURIED = "-"
"""In the place of an endpoint's name, which this is not: the row is the tombstone of an attempt that was fenced."""
TOMBSTONE_MARGIN_MS = 3_600_000
"""Milliseconds for which a tombstone stays after the last instant at which its attempt could be committed."""
_OVER_AT_ONCE = 100
"""How many tombstones that are over are removed with each new one."""
KEYS_AT_ONCE = 10_000
"""SQLite takes 32,766 variables."""
BYTES_AT_ONCE = 4 << 20
"""MariaDB takes packets of 16 MiB by default, and some bytes are written as two."""
ROW_BYTES = 1024
"""What a row is taken to have next to its great column."""
Key = TypeVar("Key")


class StoreScope(NamedTuple):
    """A database and the tables in it, the endpoint that works there, and what is kept.

    `rings` are those of the endpoint, None until they are known: no message with an instant may be claimed before. `clock`
    decides what is forgotten instead of the database's own, if there is one. `outside` are messages that one unit claims
    without their instant: their buckets would refuse them, and a person has sent them back. `journal` is there if the endpoint
    has one.
    """

    database: Database
    tables: Tables
    endpoint: str
    claim_mode: ClaimMode
    rings: RingRoutes | None = None
    clock: Clock | None = None
    outside: frozenset[Identity] = frozenset()
    journal: "SqlMessageJournal | None" = None


class OldRecords(NamedTuple):
    """Which records wait for long, and how many of them to read; `than` is in milliseconds since 1970."""

    than: int
    limit: int


def row_of(endpoint: str, record: Record, now: int, claim: bytes | None = None) -> dict[str, Any]:
    """Return the values of a record's row, by the names of its columns; `claim` is its message's key in the ring."""
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
    """Read records, the oldest first, and on behind those that cannot be read. No record in the result: none waits."""
    records = tables.records.c
    since, key = records.stored_at, records.key
    waiting = select(since, key, records.source, records.id, records.effects).where(
        records.endpoint == endpoint, since < old.than
    )
    found: list[Record] = []
    page = waiting
    while True:
        rows = connection.execute(page.order_by(since, key).limit(old.limit)).all()
        found += readable_records(rows)
        if len(rows) < old.limit or len(found) >= old.limit:
            return tuple(found[: old.limit])
        last = rows[-1]
        page = waiting.where(since >= last.stored_at, or_(since > last.stored_at, key > last.key))


def read_records(
    connection: Connection, tables: Tables, dialect: Dialect, identities: Mapping[bytes, Identity]
) -> tuple[Record, ...]:
    """Read the records there are, by their keys, in the order asked."""
    records = tables.records.c
    query = select(records.key, records.source, records.id, records.effects)
    query = query.where(dialect.among(records.key, "keys"), records.endpoint != BURIED)
    rows = {row.key: row for some in chunks([*identities]) for row in connection.execute(query, {"keys": some})}
    return readable_records(rows[key] for key in identities if key in rows)


def records_of(connection: Connection, scope: StoreScope, identities: Sequence[Identity]) -> tuple[Record, ...]:
    """Read the records of these messages of the endpoint."""
    by_key = {claim_key(scope.endpoint, identity): identity for identity in identities}
    return read_records(connection, scope.tables, scope.database.dialect, by_key)


def stored_bytes(value: object, what: str) -> bytes:
    """Return the bytes of a column. Raises PermanentFailure for another type, which SQLite stores in any column."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise PermanentFailure(f"{what} cannot be read: bytes are stored there, not {type(value).__name__}")


def readable_records(rows: Iterable[Any]) -> tuple[Record, ...]:
    """Return the records of rows that can be read. Another one stays in the table and is logged, once in a process."""
    found = (readable_record(row.source, row.id, row.effects) for row in rows)
    return tuple(record for record in found if record is not None)


def readable_record(source: object, id_: object, effects: object) -> Record | None:
    """Return a record, or None for one that cannot be read, which is logged. The relay sends its messages when it can be read.

    So a message whose record cannot be read is handled, and its copies are done. SQLite stores a value of any type in any
    column.
    """
    try:
        return decode_record(*_checked(source, id_, effects))
    except UNREADABLE as error:
        report_record(source, id_, error)
        return None


def _checked(source: object, id_: object, effects: object) -> tuple[Identity, bytes]:
    if not (isinstance(source, str) and isinstance(id_, str) and isinstance(effects, bytes | bytearray | memoryview)):
        raise TypeError("source and id must be text, and effects bytes")
    if isinstance(source, Undecodable) or isinstance(id_, Undecodable):
        raise TypeError("source or id is not UTF-8")  # its row could not be found to delete it
    return Identity(source, id_), bytes(effects)


def bury(connection: Connection, scope: StoreScope, identity: Identity, max_commit: int) -> Record | None:
    """Return the record of an attempt, or insert its tombstone. Waits for a commit that is inserting the record.

    Raises PermanentFailure, UpgradeRequired for a record that cannot be read: its attempt was committed.
    """
    if insert_tombstone(connection, scope, identity, max_commit):
        return None
    found = attempt_row(connection, scope.tables, scope.endpoint, identity)
    return None if found is None or found.endpoint == BURIED else record_in(identity, found.effects)


def insert_tombstone(connection: Connection, scope: StoreScope, identity: Identity, max_commit: int) -> bool:
    """Insert the tombstone of an attempt, and delete some that are over. Returns False if a record or a tombstone is there."""
    dialect, records = scope.database.dialect, scope.tables.records
    now = time_in(connection, scope.clock)
    row = {**row_of(scope.endpoint, Record(identity), now + max_commit + TOMBSTONE_MARGIN_MS), "endpoint": BURIED}
    del row["claim"]
    if not dialect.insert_absent(connection, records, [row], key=["key"]):
        return False
    over = select(records.c.key).where(records.c.endpoint == BURIED, records.c.stored_at < now).limit(_OVER_AT_ONCE)
    if keys := sorted(each.key for each in connection.execute(over)):
        delete_keys(connection, dialect, keys, records)
    return True


def record_in(identity: Identity, effects: object) -> Record:
    try:
        if not isinstance(effects, bytes | bytearray | memoryview):  # SQLite stores a value of any type in any column
            raise TypeError("its effects are not bytes")
        return decode_record(identity, bytes(effects))
    except SchemaTooNew as error:
        raise UpgradeRequired(f"the record of attempt {identity.id!r} was {error}") from error
    except UNDECODABLE as error:
        raise PermanentFailure(f"the record of attempt {identity.id!r} cannot be read: {error}") from error


def is_buried(connection: Connection, scope: StoreScope, identity: Identity) -> bool:
    found = attempt_row(connection, scope.tables, scope.endpoint, identity)
    return found is not None and found.endpoint == BURIED


def attempt_row(connection: Connection, tables: Tables, endpoint: str, identity: Identity) -> Any:
    """Return the row in the place of an attempt's record, or None. Its `endpoint` is BURIED for a tombstone."""
    records = tables.records.c
    query = select(records.endpoint, records.effects).where(records.key == claim_key(endpoint, identity))
    return connection.execute(query).one_or_none()


def chunks(keys: Sequence[Key], size: int = KEYS_AT_ONCE) -> Iterator[Sequence[Key]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))


def packets(rows: Iterable[dict[str, Any]], column: str) -> Iterator[list[dict[str, Any]]]:
    """Put rows together that fit into one statement; `column` is the great one, of bytes."""
    packet: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        more = len(row[column]) + ROW_BYTES
        if packet and size + more > BYTES_AT_ONCE:
            yield packet
            packet, size = [], 0
        packet.append(row)
        size += more
    if packet:
        yield packet
