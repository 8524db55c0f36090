"""How attempts at transactions ended in a SQL database, for control messages (protocols, section 8).

An attempt that was committed has its record until that is dispatched and deleted. Afterwards its client's key shows that it
was committed. Without a client's key the commit stores a mark in the place of a key. Both are committed with the record and
are read before it: one that is there, without a record, means that the record was deleted.

The tombstone of an attempt is a row in the place of its record, inserted in a transaction of its own. The commit inserts its
record there, so the database refuses one of the two, at every isolation level.
"""

from msgspec.structs import replace
from sqlalchemy import Connection, select

from onceonly.config.deduplication import ClaimMode
from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, key_of, longest_commit, mark_of
from onceonly.ports.environment import Clock
from onceonly.sql.database import Database
from onceonly.sql.store.statements import BURIED, StoreScope, attempt_row, insert_tombstone, record_in
from onceonly.sql.store.tables import tables
from onceonly.sql.store.transactions import read_entry


class SqlAttempts:
    """The attempts of all endpoints in one database: an endpoint may check those of another one."""

    def __init__(self, database: Database, *, clock: Clock | None = None) -> None:
        """Use the tables of a database. `clock` decides how long a tombstone stays, instead of the database's own."""
        self._scope = StoreScope(database, tables(database.prefix, database.schema), "", ClaimMode.HISTORY, clock=clock)

    async def entry(self, key: str, endpoint: str) -> IdempotencyEntry | None:
        async with self._scope.database.reading() as connection:
            return await connection.run_sync(read_entry, self._scope.tables, endpoint, key_of(endpoint, key))

    async def record(self, identity: Identity, unit: str) -> Record | None:
        async with self._scope.database.reading() as connection:
            return await connection.run_sync(_read, self._scope, identity, unit)

    async def bury(self, identity: Identity, unit: str) -> None:
        scope = self._scope._replace(endpoint=identity.source)
        longest = longest_commit(unit) or 0
        async with scope.database.autocommitting() as connection:
            with scope.database.translate(locked=ConflictError):
                is_new = await connection.run_sync(insert_tombstone, scope, identity, longest)
        if not is_new:
            raise ConflictError("this attempt has already ended")


def _read(connection: Connection, scope: StoreScope, identity: Identity, unit: str) -> Record | None:
    keys = scope.tables.keys.c
    mark = key_of(identity.source, mark_of(identity.id))
    is_marked = connection.execute(select(keys.attempt).where(keys.key == mark)).one_or_none() is not None  # before the record
    row = attempt_row(connection, scope.tables, identity.source, identity)
    if row is not None and row.endpoint != BURIED:
        return replace(record_in(identity, row.effects), unit=unit)
    return Record(identity, unit=unit) if row is not None or is_marked else None
