"""Documents in a table of a SQL database: compare-and-set by the version in a row. One database transaction for each `save`."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    Column,
    Connection,
    Index,
    LargeBinary,
    MetaData,
    Table,
    and_,
    delete,
    literal,
    select,
    text,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from onceonly.documents.limits import DOCUMENT_LIMITS, check_limits
from onceonly.ports.documents import Change, Document, DocumentLimits, Version
from onceonly.sql.columns import DATA, INSTANT, KEY, MYSQL, TRANSACTIONAL, TextKey
from onceonly.sql.database import Database
from onceonly.sql.schema import Schema
from onceonly.sql.schema import check as check_schema
from onceonly.sql.store.statements import BYTES_AT_ONCE, chunks, packets

KEYS_AT_ONCE = 2_000
"""How many keys go into one statement; each may have a kilobyte."""

LIMITS = DOCUMENT_LIMITS["a SQL database"]
PACKET = 2 * BYTES_AT_ONCE + (1 << 20)


@cache
def documents_table(prefix: str, schema: str | None = None) -> Table:
    """Return the table under a prefix, in a schema of the database. `expires` is in milliseconds since 1970, 0 for never."""
    table = Table(
        f"{prefix}documents",
        MetaData(schema=schema),
        Column("key", TextKey(LIMITS.key), primary_key=True),
        Column("version", KEY, nullable=False),
        Column("expires", INSTANT, nullable=False),
        Column("body", DATA, nullable=False),
        **TRANSACTIONAL,
    )
    expiring = table.c.expires > 0
    Index(f"{prefix}documents_expires", table.c.expires, postgresql_where=expiring, sqlite_where=expiring)
    return table


def _metadata(prefix: str, schema: str | None = None) -> MetaData:
    return documents_table(prefix, schema).metadata


_LOSSES = {"documents": "entities, tokens and marks that were stored in them are lost"}
SCHEMA = Schema(component="documents", version=1, tables=_metadata, losses=_LOSSES)


class SqlDocuments:
    """Documents of one database and prefix. What has expired stays until `remove_expired`."""

    def __init__(self, database: Database, *, limits: DocumentLimits = LIMITS) -> None:
        """Use the table of this database; `limits` may be narrower than its own."""
        self.limits = limits
        self._database = database
        self._dialect = database.dialect
        self._table = documents_table(database.prefix, database.schema)

    async def load(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Read documents; see the port. All are read from one state."""
        columns = self._table.c
        query = select(columns.key, columns.body, columns.version).where(self._dialect.among(columns.key, "keys"))
        found: dict[str, Document] = {}
        if keys:
            async with self._reading() as connection:
                for some in chunks(sorted(set(keys)), KEYS_AT_ONCE):
                    rows = await connection.execute(query, {"keys": some})
                    found |= {row.key: Document(bytes(row.body), row.version.hex()) for row in rows}
        return found

    async def save(self, changes: Sequence[Change]) -> tuple[Version | None, ...]:
        """Write documents; see the port. Here all that are not refused are written, or none."""
        check_limits(changes, self.limits)
        if not changes:
            return ()
        version = uuid4().bytes  # one for all: their keys are distinct, and no key gets it again
        alone = len(changes) == 1
        async with self._database.autocommitting() if alone else self._database.writing() as connection:
            write = self._write_one if alone else self._write_many
            written = await connection.run_sync(write, changes, version)
        return tuple(_answer(change, version) if change.key in written else None for change in changes)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        key = self._table.c.key
        begin = prefix.encode()
        end = begin[:-1] + bytes([begin[-1] + 1]) if begin else b""  # no byte of UTF-8 is the greatest there is
        behind = and_(key > _bytes(after.encode()), key >= _bytes(begin), key < _bytes(end) if end else true())
        async with self._reading() as connection:
            return tuple(await connection.scalars(select(key).where(behind).order_by(key).limit(limit)))

    async def check(self) -> tuple[str, ...]:
        """Look for the table. Raises SchemaMissing, SchemaTooNew, RetryableError."""
        await check_schema(self._database, SCHEMA)
        if self._database.engine.dialect.name not in MYSQL:
            return ()
        async with self._reading() as connection:
            packet = await connection.scalar(text("SELECT @@max_allowed_packet"))
        narrow = (
            f"max_allowed_packet is {packet}, so the server rejects the largest documents: set it to {PACKET} bytes or more"
        )
        return (narrow,) if packet < PACKET else ()

    async def remove_expired(self, limit: int = 1000) -> int:
        """Delete some documents whose time has passed; returns how many. Raises CommitFailed, OutcomeUnknown."""
        columns, now = self._table.c, self._database.clock.now()
        expired = and_(columns.expires > 0, columns.expires < now)
        old = select(columns.key).where(expired).order_by(columns.expires).limit(limit)
        gone = delete(self._table).where(self._dialect.among(columns.key, "keys"), expired)
        async with self._reading() as connection:
            keys = sorted(await connection.scalars(old))
        async with self._database.writing() as connection:
            return (await connection.execute(gone, {"keys": keys})).rowcount

    @asynccontextmanager
    async def _reading(self) -> AsyncIterator[AsyncConnection]:
        """Enclose reads, in one round trip where single statements need no transaction around them."""
        is_plain = self._dialect.autocommits
        async with self._database.autocommitting() if is_plain else self._database.reading() as connection:
            yield connection

    def _write_one(self, connection: Connection, changes: Sequence[Change], version: bytes) -> frozenset[str]:
        """Write by a single statement; returns the key if it was written."""
        (change,) = changes
        if not change.expected:
            return self._insert(connection, changes, version)
        columns = self._table.c
        at_version = and_(columns.key == change.key, columns.version == _stored(change.expected))
        values = {name: value for name, value in _row(change, version).items() if name != "key"}
        statement = (
            delete(self._table).where(at_version)
            if change.body is None
            else update(self._table).where(at_version).values(values)
        )
        return frozenset([change.key] if connection.execute(statement).rowcount else [])

    def _write_many(self, connection: Connection, changes: Sequence[Change], version: bytes) -> frozenset[str]:
        """Lock all rows that are to be changed, in key order against deadlocks; then write what has its version."""
        ordered = sorted(changes, key=_key)
        # what must not exist is locked too: an insert that found it locked would wait, with locks of its own, out of order
        there = self._lock(connection, [change.key for change in ordered]) if any(it.expected for it in changes) else {}
        written = [change for change in ordered if change.expected and there.get(change.key) == _stored(change.expected)]
        for some in chunks([change.key for change in written if change.body is None], KEYS_AT_ONCE):
            connection.execute(delete(self._table).where(self._dialect.among(self._table.c.key, "keys")), {"keys": some})
        for rows in packets((_row(change, version) for change in written if change.body is not None), "body"):
            self._dialect.update_all(connection, self._table, rows, key="key")
        absent = [change for change in ordered if not change.expected and change.key not in there]
        return self._insert(connection, absent, version) | {change.key for change in written}

    def _lock(self, connection: Connection, keys: Sequence[str]) -> dict[str, bytes]:
        """Read the versions as they are now, and keep others from changing them."""
        columns = self._table.c
        query = select(columns.key, columns.version).where(self._dialect.among(columns.key, "keys")).order_by(columns.key)
        rows = (
            row for some in chunks(keys, KEYS_AT_ONCE) for row in connection.execute(query.with_for_update(), {"keys": some})
        )
        return {row.key: bytes(row.version) for row in rows}

    def _insert(self, connection: Connection, changes: Sequence[Change], version: bytes) -> frozenset[str]:
        """Insert what is not there; a deletion of what must not exist changes nothing."""
        rows = (_row(change, version) for change in changes if change.body is not None)
        return frozenset(
            row.key
            for some in packets(rows, "body")
            for row in self._dialect.insert_absent(connection, self._table, some, key=["key"])
        )


def _row(change: Change, version: bytes) -> dict[str, Any]:
    return {"key": change.key, "version": version, "expires": change.expires, "body": change.body}


def _answer(change: Change, version: bytes) -> Version:
    return "" if change.body is None else version.hex()


def _stored(version: Version) -> bytes:
    """Return a version as it is stored; what this adapter never gave out belongs to no row."""
    try:
        stored = bytes.fromhex(version)
    except ValueError:
        return _FOREIGN_VERSION
    return stored if len(stored) == len(_FOREIGN_VERSION) else _FOREIGN_VERSION


_FOREIGN_VERSION = bytes(16)


def _key(change: Change) -> bytes:
    return change.key.encode()


def _bytes(value: bytes) -> Any:
    return literal(value, LargeBinary)
