"""Fencing attempts at transactions and executions: a tombstone in the place of the record that their commit would insert.

A handler's attempt holds a claim that can be waited for. A transaction holds nothing that another process knows, so its
attempt is made impossible instead: records are unique by their key, and the tombstone has the key of the attempt's record. It
belongs to no endpoint, so no relay takes it for a record. The database's clock refuses the commit after `max_commit`; until
then the tombstone stays.
"""

from sqlalchemy import Connection, select

from onceonly.formats.records import decode_record
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.errors import PermanentFailure, SchemaTooNew, UpgradeRequired
from onceonly.model.identity import Identity, claim_key
from onceonly.model.record import Record
from onceonly.sql.store.bucketing import time_in
from onceonly.sql.store.scope import StoreScope
from onceonly.sql.store.statements import BURIED, delete_keys, row_of

TOMBSTONE_MARGIN_MS = 3_600_000
"""Milliseconds for which a tombstone stays after the last instant at which its attempt could be committed."""
_OVER_AT_ONCE = 100
"""How many tombstones that are over are removed with each new one."""


def bury(connection: Connection, scope: StoreScope, identity: Identity, max_commit: int) -> Record | None:
    """Return the record of an attempt, or insert its tombstone. Waits for a commit that is inserting the record.

    Raises PermanentFailure, UpgradeRequired for a record that cannot be read: its attempt was committed.
    """
    dialect, records = scope.database.dialect, scope.tables.records
    now = time_in(connection, scope.clock)
    row = {**row_of(scope.endpoint, Record(identity), now + max_commit + TOMBSTONE_MARGIN_MS), "endpoint": BURIED}
    del row["claim"]
    if dialect.insert_absent(connection, records, [row], key=["key"]):
        over = select(records.c.key).where(records.c.endpoint == BURIED, records.c.stored_at < now).limit(_OVER_AT_ONCE)
        if keys := sorted(each.key for each in connection.execute(over)):
            delete_keys(connection, dialect, keys, records)
        return None
    found = connection.execute(
        select(records.c.endpoint, records.c.effects).where(records.c.key == claim_key(scope.endpoint, identity))
    ).one_or_none()
    return None if found is None or found.endpoint == BURIED else record_in(identity, found.effects)


def record_in(identity: Identity, effects: object) -> Record:
    """Return the record of a row. Raises PermanentFailure, UpgradeRequired."""
    try:
        if not isinstance(effects, bytes | bytearray | memoryview):  # SQLite stores a value of any type in any column
            raise TypeError("its effects are not bytes")
        return decode_record(identity, bytes(effects))
    except SchemaTooNew as error:
        raise UpgradeRequired(f"the record of attempt {identity.id!r} was {error}") from error
    except UNDECODABLE as error:
        raise PermanentFailure(f"the record of attempt {identity.id!r} cannot be read: {error}") from error


def is_buried(connection: Connection, scope: StoreScope, identity: Identity) -> bool:
    """Check whether an attempt has a tombstone."""
    records = scope.tables.records.c
    query = select(records.endpoint).where(records.key == claim_key(scope.endpoint, identity))
    return connection.scalar(query) == BURIED
