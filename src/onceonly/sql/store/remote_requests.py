"""What a service was asked, in a SQL database: one row for a request and its response, and its tombstone afterwards."""

from functools import cache
from typing import Any, TypeAlias

from sqlalchemy import Column, Connection, Index, MetaData, Table, delete, select, update

from onceonly.config.deduplication import ClaimMode
from onceonly.formats.remote import decode_request, encode_request
from onceonly.model.errors import ConflictError
from onceonly.model.record import Record
from onceonly.model.remote import Request
from onceonly.model.transaction import IdempotencyEntry, TransactionAttempt, key_of
from onceonly.ports.store import BeginResult
from onceonly.sql.columns import DATA, INSTANT, KEY, NAME, TRANSACTIONAL
from onceonly.sql.database import Database
from onceonly.sql.dialect import Limit, Purpose
from onceonly.sql.schema import Schema
from onceonly.sql.store.statements import StoreScope
from onceonly.sql.store.tables import tables
from onceonly.sql.store.unit import SqlUnit
from onceonly.sql.transaction import DatabaseTransaction

Row: TypeAlias = Any
_OVER_AT_ONCE = 100
"""How many tombstones whose time is over are removed with each new one."""


@cache
def requests_table(prefix: str, schema: str | None = None) -> Table:
    """Return the table of requests. A row without a request is a tombstone, which stands until `until`."""
    table = Table(
        f"{prefix}requests",
        MetaData(schema=schema),
        Column("key", KEY, primary_key=True),
        Column("endpoint", NAME, nullable=False),
        Column("until", INSTANT, nullable=False),
        Column("request", DATA, nullable=True),
        Column("attempt", NAME, nullable=False),
        Column("answer", DATA, nullable=True),
        **TRANSACTIONAL,
    )
    Index(f"{prefix}requests_until", table.c.until)
    return table


def _metadata(prefix: str, schema: str | None = None) -> MetaData:
    return requests_table(prefix, schema).metadata


_LOSSES = {"requests": "requests that other services have put and not had executed are answered with 410"}
SCHEMA = Schema(component="http", version=1, tables=_metadata, losses=_LOSSES)


class SqlRemoteRequests:
    """What one endpoint was asked. `claim_mode` and `isolation` are those of its store. Raises SetupError."""

    def __init__(
        self, database: Database, endpoint: str, *, claim_mode: ClaimMode = ClaimMode.HISTORY, isolation: str | None = None
    ) -> None:
        self._database = database
        self._endpoint = endpoint
        self._isolation = isolation or database.isolation
        self._table = requests_table(database.prefix, database.schema)
        self._scope = StoreScope(database, tables(database.prefix, database.schema), endpoint, claim_mode)

    async def put(self, key: str, request: Request, until: int) -> bool:
        wanted = encode_request(request)
        row = self._row(key, until, wanted)
        async with self._database.autocommitting() as connection:
            return await connection.run_sync(self._put, row, wanted)

    async def open(self, opening: TransactionAttempt) -> "OpenSqlRequest | IdempotencyEntry":
        with self._database.translate(locked=ConflictError):
            transaction = await self._database.open(Purpose.UNIT, isolation=self._isolation)
        try:

            def prepare(connection: Connection) -> tuple[Limit, IdempotencyEntry | None, Request | None]:
                limit = Limit(self._database.dialect.started(connection), opening.max_commit)
                keys = [key_of(self._endpoint, opening.key)]
                columns = ["key", "request", "attempt", "answer"]
                locked = self._database.dialect.lock(connection, self._table, keys, key="key", returning=columns)
                transaction.block_commit(connection)
                row = next(iter(locked), None)
                kept = _kept(row)
                request = (
                    None if kept is not None or row is None or row.request is None else decode_request(_bytes(row.request))
                )
                return limit, kept, request

            with self._database.translate(locked=ConflictError):
                limit, kept, request = await transaction.connection.run_sync(prepare)
        except BaseException:
            transaction.drop()
            raise
        if kept is not None:
            transaction.drop()
            return kept
        return OpenSqlRequest(self._scope, transaction, opening, request=request, limit=limit)

    async def entry(self, key: str) -> IdempotencyEntry | None:
        """Read the row on the primary, in a transaction of its own; see the port."""
        columns = self._table.c
        query = select(columns.attempt, columns.answer).where(columns.key == key_of(self._endpoint, key))
        async with self._database.reading() as connection:
            return _kept((await connection.execute(query)).one_or_none())

    async def bury(self, key: str, until: int) -> None:
        """Empty the row: request and response go in one write, and a tombstone stays; see the port."""
        async with self._database.writing() as connection:
            await connection.run_sync(self._bury, self._row(key, until, None))

    async def remove(self, key: str) -> None:
        """Do nothing: the response went with the request."""

    def _put(self, connection: Connection, row: dict[str, Any], wanted: bytes) -> bool:
        if self._database.dialect.insert_absent(connection, self._table, [row], key=["key"]):
            return True
        found = connection.execute(select(self._table.c.request).where(self._table.c.key == row["key"])).one_or_none()
        return found is not None and found.request is not None and _bytes(found.request) == wanted

    def _bury(self, connection: Connection, row: dict[str, Any]) -> None:
        table, now = self._table, self._database.clock.now()
        if not self._database.dialect.insert_absent(connection, table, [row], key=["key"]):
            emptied = {"request": None, "attempt": "", "answer": None}
            connection.execute(update(table).where(table.c.key == row["key"]).values(**emptied))
            later = update(table).where(table.c.key == row["key"], table.c.until < row["until"])
            connection.execute(later.values(until=row["until"]))
        over = select(table.c.key).where(table.c.until < now, table.c.request.is_(None)).limit(_OVER_AT_ONCE)
        keys = [each.key for each in connection.execute(over)]
        for key in sorted(keys):
            connection.execute(delete(table).where(table.c.key == key, table.c.until < now, table.c.request.is_(None)))

    def _row(self, key: str, until: int, request: bytes | None) -> dict[str, Any]:
        named = {"key": key_of(self._endpoint, key), "endpoint": self._endpoint}
        return {**named, "until": until, "request": request, "attempt": "", "answer": None}


class OpenSqlRequest:
    """One request that is being executed: a unit that has claimed nothing, and holds the lock of its row."""

    def __init__(
        self,
        scope: StoreScope,
        transaction: DatabaseTransaction,
        opening: TransactionAttempt,
        *,
        request: Request | None,
        limit: Limit,
    ) -> None:
        self._unit = SqlUnit(scope, transaction, BeginResult(), loaded={}, isolated=False)
        self._scope = scope
        self._opening = opening
        self._request = request
        self._limit = limit
        self.resources = self._unit.resources

    async def request(self) -> Request | None:
        """Return what was read with the lock, unchanged since; see the port."""
        return self._request

    async def commit(self, record: Record | None, answer: bytes | None) -> None:
        def last(connection: Connection) -> None:
            table = requests_table(self._scope.database.prefix, self._scope.database.schema)
            mine = table.c.key == key_of(self._opening.endpoint, self._opening.key)
            waiting = update(table).where(mine, table.c.request.is_not(None), table.c.answer.is_(None))
            if connection.execute(waiting.values(attempt=self._opening.attempt, answer=answer)).rowcount != 1:
                raise ConflictError("another process executed or deleted this request first")

        await self._unit.commit_attempt(() if record is None else (record,), last=last, limit=self._limit)

    def abandon(self) -> None:
        self._unit.abandon()


def _kept(row: Row | None) -> IdempotencyEntry | None:
    if row is None or row.answer is None:
        return None
    return IdempotencyEntry(row.attempt, b"", _bytes(row.answer))


def _bytes(value: object) -> bytes:
    """Return a value of a column as bytes. SQLite stores a value of any type: another one is empty, so nothing is read."""
    return bytes(value) if isinstance(value, bytes | bytearray | memoryview) else b""
