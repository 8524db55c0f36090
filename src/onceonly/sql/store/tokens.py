"""Tokens in the store's own database: handling a message deletes its token, in the same transaction (protocols, section 5)."""

from collections.abc import Sequence

from sqlalchemy import Connection, func, null, select, union_all

from onceonly.model.errors import ConflictError
from onceonly.model.identity import Identity, claim_key, hash_of
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.model.token import Token
from onceonly.ports.store import BeginResult
from onceonly.sql.database import Database
from onceonly.sql.store.statements import StoreScope, chunks, readable_record
from onceonly.sql.store.tables import tables


def token_key(token: Token) -> bytes:
    """Return the 16 bytes that a token is stored as; its id may have any length."""
    return hash_of(token.endpoint.encode(), token.id.encode())


def consume(connection: Connection, scope: StoreScope, messages: Sequence[Message]) -> BeginResult:
    """Take the tokens of messages, in key order against deadlocks, then make a current read of those without a live one.

    Of several messages with one token the first has it. Raises ConflictError when a token was released meanwhile.
    """
    database, tables, endpoint = scope[:3]
    by_key: dict[bytes, Message] = {}
    for message in messages:
        if message.token:
            by_key.setdefault(token_key(Token(message.token, endpoint)), message)
    taken: set[bytes] = set()
    for some in chunks(sorted(by_key)):
        taken |= database.dialect.consume(connection, tables.tokens, some, key="key")
    live = {message.identity for key, message in by_key.items() if key in taken}
    rest = [message for message in messages if message.identity not in live]
    records = _read_records(connection, scope, rest, not_taken=[key for key in by_key if key not in taken])
    pending, now = [message.identity for message in rest if message.identity in records], database.clock.now()
    return BeginResult(
        new=tuple(message for message in messages if message.identity in live),
        pending=tuple(records[identity][0] for identity in pending),
        done=tuple(message for message in rest if message.identity not in records),
        ages=tuple(now - records[identity][1] for identity in pending),
    )


def give(connection: Connection, scope: StoreScope, tokens: Sequence[Token]) -> None:
    """Make tokens live, with the commit: those issued, and those of messages that were not handled."""
    rows = [{"key": key} for key in sorted({token_key(token) for token in tokens})]
    for some in chunks(rows):
        scope.database.dialect.insert_all(connection, scope.tables.tokens, some)


class SqlTokens:
    """The live tokens of one database, past any unit: for messages that come from outside, and to look."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._tables = tables(database.prefix, database.schema)

    async def add(self, tokens: Sequence[Token]) -> None:
        """Make these live at once; harmless for those that are. One that was consumed is live again: use fresh ids.

        Raises CommitFailed, OutcomeUnknown.
        """
        rows = [{"key": key} for key in sorted({token_key(token) for token in tokens})]

        def insert(connection: Connection) -> None:
            for some in chunks(rows):
                self._database.dialect.insert_absent(connection, self._tables.tokens, some, key=["key"])

        if rows:
            async with self._database.autocommitting() as connection:
                await connection.run_sync(insert)

    async def add_once(self, tokens: Sequence[Token]) -> None:
        """Make those live that were never made so by this method; a consumed one stays consumed, for as long as keys are kept.

        What was issued is a client's key, in the database transaction that makes its token live. Raises CommitFailed,
        OutcomeUnknown.
        """
        by_issue = {hash_of(b"issued", token_key(token)): token_key(token) for token in tokens}
        now = self._database.clock.now()
        rows = [{"key": key, "fingerprint": by_issue[key], "attempt": "", "stored_at": now} for key in sorted(by_issue)]

        def issue(connection: Connection) -> None:
            dialect = self._database.dialect
            for some in chunks(rows):
                new = dialect.insert_absent(connection, self._tables.keys, some, key=["key"])
                fresh = [{"key": key} for key in sorted(by_issue[row.key] for row in new)]
                dialect.insert_absent(connection, self._tables.tokens, fresh, key=["key"])

        if rows:
            async with self._database.writing() as connection:
                await connection.run_sync(issue)

    async def remove(self, tokens: Sequence[Token]) -> None:
        """Remove these, for messages that shall never be handled; harmless when they are gone.

        Raises CommitFailed, OutcomeUnknown.
        """
        keys = sorted({token_key(token) for token in tokens})

        def delete(connection: Connection) -> None:
            for some in chunks(keys):
                self._database.dialect.remove(connection, [self._tables.tokens], some, key="key")

        if keys:
            async with self._database.autocommitting() as connection:
                await connection.run_sync(delete)

    async def count(self) -> int:
        """Count the live tokens of all endpoints: the messages that wait to be handled. Raises CommitFailed, OutcomeUnknown."""
        async with self._database.reading() as connection:
            return await connection.scalar(select(func.count()).select_from(self._tables.tokens)) or 0


def _read_records(
    connection: Connection, scope: StoreScope, messages: Sequence[Message], *, not_taken: Sequence[bytes]
) -> dict[Identity, tuple[Record, int]]:
    """Read the records of messages that have no live token, and when they were stored or taken; look again for the tokens.

    Who waited for another unit does not see what it released; without the second look its message would seem done, and be
    lost. Both are read from one state: between two reads a third unit could handle it.
    """
    if not messages:
        return {}
    by_key = {claim_key(scope.endpoint, message.identity): message.identity for message in messages}
    records, tokens, dialect = scope.tables.records.c, scope.tables.tokens.c, scope.database.dialect
    since = func.coalesce(records.taken_at, records.stored_at).label("since")
    query = union_all(
        dialect.current(select(records.key, records.effects, since).where(dialect.among(records.key, "messages"))),
        dialect.current(select(tokens.key, null(), null()).where(dialect.among(tokens.key, "tokens"))),
    )
    rows = connection.execute(query, {"messages": [*by_key], "tokens": [*not_taken]}).all()
    if any(row.effects is None for row in rows):
        raise ConflictError("another worker released the token of a message while this unit was claiming it")
    stored = ((by_key[row.key], row) for row in rows)
    read = ((each, readable_record(each.source, each.id, row.effects), row.since) for each, row in stored)
    return {each: (record, since) for each, record, since in read if record is not None}
