"""Transactions of a user's in a SQL database: a unit without messages, and a client's key next to its records."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

from sqlalchemy import Connection, select
from sqlalchemy.ext.asyncio import AsyncSession

from onceonly.config.deduplication import ClaimMode
from onceonly.model.errors import CommitFailed, ConflictError
from onceonly.model.identity import claim_key
from onceonly.model.record import Record
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, key_of, mark_of, records_of
from onceonly.ports.store import BeginResult
from onceonly.sql.database import Database
from onceonly.sql.dialect import Limit, Purpose, checked_isolation
from onceonly.sql.store.statements import StoreScope, chunks, record_in, stored_bytes
from onceonly.sql.store.tables import Tables, tables
from onceonly.sql.store.unit import SqlUnit
from onceonly.sql.transaction import DatabaseTransaction
from onceonly.systems.key_wait import key_wait

_NO_REQUEST = bytes(16)
"""The fingerprint of a mark, which no request is compared with."""
Session: TypeAlias = AsyncSession
"""SQLAlchemy's session, in which a transaction works."""


class SqlTransactions:
    """The transactions of one endpoint. `claim_mode` and `isolation` are those of its store. Raises SetupError.

    With `has_controls`, control messages check its attempts, so the commit of one without a client's key stores a mark.
    """

    def __init__(
        self,
        database: Database,
        endpoint: str,
        *,
        claim_mode: ClaimMode = ClaimMode.HISTORY,
        isolation: str | None = None,
        has_controls: bool = False,
    ) -> None:
        own = database.dialect.gapless if claim_mode is ClaimMode.TOKENS else None
        self._database = database
        self._isolation = checked_isolation(database.dialect, isolation) or database.isolation or own
        self._endpoint = endpoint
        self._tables = tables(database.prefix, database.schema)
        self._scope = StoreScope(database, self._tables, endpoint, claim_mode)
        self._has_controls = has_controls

    async def open(self, opening: TransactionAttempt) -> "SqlTransaction | IdempotencyEntry":
        """Begin, and insert the key; an unfinished holder is waited for. See the port.

        Where there is one writer at a time, the holder of the key has the write lock, so that is what is waited for.
        """
        transaction = await self._begin(opening)
        try:

            def prepare(connection: Connection) -> tuple[Limit, IdempotencyEntry | None]:
                limit = Limit(self._database.dialect.started(connection), opening.max_commit)
                kept = self._take(connection, opening) if opening.key else None
                transaction.block_commit(connection)
                return limit, kept

            async with key_wait(opening):
                with self._database.translate(locked=ConflictError, unknown=CommitFailed):
                    limit, kept = await transaction.connection.run_sync(prepare)
        except BaseException:
            transaction.drop()
            raise
        if kept is not None:
            transaction.drop()
            return kept
        return SqlTransaction(self._scope, transaction, opening, limit, has_controls=self._has_controls)

    async def entry(self, key: str) -> IdempotencyEntry | None:
        """Read a key's row on the primary, in a transaction of its own; see the port."""
        async with self._database.reading() as connection:
            return await connection.run_sync(read_entry, self._tables, self._endpoint, key_of(self._endpoint, key))

    async def _begin(self, opening: TransactionAttempt) -> DatabaseTransaction:
        """Begin. The time to reach a slow server does not count as waiting for a key. Raises ConflictError, CommitFailed."""
        with self._database.translate(locked=ConflictError, unknown=CommitFailed):
            await self._database.ready()
        async with key_wait(opening) if self._database.dialect.single_writer else nullcontext():
            with self._database.translate(locked=ConflictError, unknown=CommitFailed):
                return await self._database.open(Purpose.UNIT, isolation=self._isolation, lingers=False)

    def _take(self, connection: Connection, opening: TransactionAttempt) -> IdempotencyEntry | None:
        """Insert the key, without its answer; returns what is kept if it is there already."""
        key = key_of(self._endpoint, opening.key)
        row = {
            "key": key,
            "fingerprint": opening.fingerprint,
            "attempt": opening.attempt,
            "stored_at": self._database.clock.now(),
        }
        if self._database.dialect.insert_absent(connection, self._tables.keys, [row], key=["key"]):
            return None
        kept = read_entry(connection, self._tables, self._endpoint, key)
        if kept is None:  # it was removed since, or this transaction's snapshot is older than it
            raise ConflictError("another transaction has just stored or deleted this idempotency key")
        return kept


class SqlTransaction:
    """One open transaction: a unit that has claimed nothing."""

    def __init__(
        self,
        scope: StoreScope,
        transaction: DatabaseTransaction,
        opening: TransactionAttempt,
        limit: Limit,
        *,
        has_controls: bool = False,
    ) -> None:
        self._unit = SqlUnit(scope, transaction, BeginResult(), loaded={}, isolated=False)
        self._scope = scope
        self._opening = opening
        self._limit = limit
        self._has_controls = has_controls
        self.resources = self._unit.resources
        self.unit = ""

    async def load(self, unit: str) -> None:
        """Load an entity and lock it, in the order in which they are asked for; see the port."""
        await self._unit.load(unit)

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        records: Sequence[Record] = () if record is None else (record,)

        def last(connection: Connection) -> None:
            if self._opening.key and answer is not None:
                row = {"key": key_of(self._opening.endpoint, self._opening.key), "answer": answer}
                self._scope.database.dialect.update_last(connection, self._scope.tables.keys, row, key="key")
            elif self._has_controls and records and not self._opening.key:
                row = mark_row(self._opening, self._scope.database.clock.now())
                self._scope.database.dialect.insert_last(connection, self._scope.tables.keys, [row])

        await self._unit.commit_attempt(records, last=last, limit=self._limit)

    def abandon(self) -> None:
        self._unit.abandon()


def mark_row(opening: TransactionAttempt, now: int) -> dict[str, Any]:
    """Return the row, in the table of keys, that shows that an attempt without a client's key was committed."""
    key = key_of(opening.endpoint, mark_of(opening.attempt))
    return {"key": key, "fingerprint": _NO_REQUEST, "attempt": opening.attempt, "answer": None, "stored_at": now}


def read_entry(connection: Connection, tables: Tables, endpoint: str, key: bytes) -> IdempotencyEntry | None:
    """Read what is committed under a key, and then the records of its attempt: they were committed with it.

    Raises PermanentFailure, UpgradeRequired for a record that cannot be read.
    """
    keys, records = tables.keys.c, tables.records.c
    row = connection.execute(select(keys.attempt, keys.fingerprint, keys.answer).where(keys.key == key)).one_or_none()
    if row is None:
        return None
    answer = None if row.answer is None else stored_bytes(row.answer, "the answer of this idempotency key")
    identities = {claim_key(endpoint, each): each for each in records_of(endpoint, row.attempt)}
    found: dict[bytes, object] = {}
    for some in chunks(sorted(identities)):
        query = select(records.key, records.effects).where(records.key.in_(some), records.endpoint == endpoint)
        found |= {each.key: each.effects for each in connection.execute(query)}
    pending = tuple(record_in(identity, found[key]) for key, identity in identities.items() if key in found)
    fingerprint = stored_bytes(row.fingerprint, "the fingerprint of this idempotency key")
    return IdempotencyEntry(row.attempt, fingerprint, answer, pending)
