"""The message journal of a SQL database: four tables in turn, emptied whole.

What is handled and sent is written in the units' own transactions. What happens outside of units is added in others.
"""

import logging
import os
import socket
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, String, Table, func, select

from onceonly.config.retention import Journal
from onceonly.formats.log_events import EventLogger
from onceonly.formats.undecodable import decode_or_report
from onceonly.model.conversation import (
    HANDLED,
    SENT,
    JournalEntry,
    JournalEvent,
    JournalPart,
    JournalRun,
    conversation_key,
    message_key,
)
from onceonly.model.errors import CommitFailed
from onceonly.model.identity import Identity
from onceonly.model.message import Message
from onceonly.model.record import Record
from onceonly.sql.columns import EXACT, INSTANT, KEY, NAME, NAME_LENGTH, READABLE, SEQUENCE, TRANSACTIONAL
from onceonly.sql.database import Database
from onceonly.sql.schema import Schema
from onceonly.sql.store.journal_retention import AgreedRetention, settings_table

TABLES = 4
MOST_EVENTS = 1000
LOOKS = 100
"""A process looks how full the table is each time it has written this part of the limit."""
LOOK_AGAIN_MS = 10_000
"""How long a process waits before it looks at a full table again."""
AGREE_AGAIN_MS = 60_000
"""How long a process that writes waits before it reads the settings of others again."""
LAST_ROWS = 1000

_log = EventLogger(logging.getLogger("onceonly.journal"))


@cache
def _metadata(prefix: str, schema: str | None = None) -> MetaData:
    metadata = MetaData(schema=schema)
    for number in range(TABLES):
        table = Table(
            f"{prefix}journal_{number}",
            metadata,
            Column("position", SEQUENCE, primary_key=True),
            Column("conversation", KEY, nullable=False),
            Column("at", INSTANT, nullable=False),
            Column("identity", KEY, nullable=False),
            Column("parent", KEY, nullable=True),
            Column("endpoint", NAME, nullable=False),
            Column("type", READABLE, nullable=False),
            Column("outcome", String(20), nullable=False),
            Column("source", EXACT, nullable=False),
            Column("id", EXACT, nullable=False),
            Column("process", NAME, nullable=False),
            Column("attempt", Integer, nullable=True),
            Column("duration", BigInteger, nullable=True),
            Column("error", READABLE, nullable=True),
            Column("letter", KEY, nullable=True),
            **TRANSACTIONAL,
        )
        Index(f"{prefix}journal_{number}_conversation", table.c.conversation, table.c.at)
        Index(f"{prefix}journal_{number}_identity", table.c.identity)
    settings_table(prefix, metadata)
    return metadata


SCHEMA = Schema(component="journal", version=3, tables=_metadata)


class SqlMessageJournal:
    """The journal of one endpoint. The tables belong to all endpoints of the database; the longest `keep` holds for all."""

    def __init__(self, database: Database, endpoint: str, setting: Journal) -> None:
        self._database, self._endpoint, self._rows = database, endpoint, setting.rows
        tables = {table.name: table for table in _metadata(database.prefix, database.schema).tables.values()}
        self._tables = tuple(tables[f"{database.prefix}journal_{number}"] for number in range(TABLES))
        keep = round(setting.keep.total_seconds() * 1000)
        self._retention = AgreedRetention(database, tables[f"{database.prefix}journal_settings"], endpoint, keep)
        self._agree_at = 0
        self._process = f"{socket.gethostname()}:{os.getpid()}"[-NAME_LENGTH:]
        self._number, self._left, self._look_at = -1, 0, 0
        self._is_full = False
        self._runs: dict[Identity, JournalRun] = {}

    @property
    def every(self) -> float:
        """Seconds after which the next table is looked at again."""
        return self._retention.longest / 8000

    async def prepare(self) -> None:
        """Look how full the table of this time is, if that is not known, and once a minute which time that is.

        Raises CommitFailed, OutcomeUnknown.
        """
        now = self._database.clock.now()
        if now >= self._agree_at:
            await self._retention.agree(now)
            self._agree_at = now + AGREE_AGAIN_MS
        number = self._number_at(now)
        if number == self._number and (self._left > 0 or now < self._look_at):
            return
        async with self._database.reading() as connection:
            count = await connection.run_sync(_row_span, self._tables[number])
        free = self._rows - count
        was_full, self._is_full = self._is_full and number == self._number, free <= 0
        self._number, self._left = number, min(free, max(1, self._rows // LOOKS))
        self._look_at = now + LOOK_AGAIN_MS
        if self._is_full and not was_full:
            _log.warning("message journal is full", extra={"endpoint": self._endpoint, "rows": count})

    def ran(self, identity: Identity, run: JournalRun | None) -> None:
        if run is None:
            self._runs.pop(identity, None)
        else:
            self._runs[identity] = run

    async def add(self, entries: Sequence[JournalEntry]) -> None:
        """Write these, by one statement in a transaction of its own. Raises CommitFailed, OutcomeUnknown."""
        await self.prepare()
        if self._left <= 0 or not entries:
            return
        rows, table = [self._entry_row(entry) for entry in entries], self._tables[self._number]
        async with self._database.writing() as connection:
            await connection.run_sync(self._database.dialect.insert_all, table, rows)
        self._left -= len(rows)

    def write(self, connection: Connection, messages: Sequence[Message], records: Sequence[Record]) -> None:
        """Write what was handled and what is sent for it, by one statement, in the unit's transaction."""
        if self._left <= 0 or not records:
            return
        now, known = self._database.clock.now(), {message.identity: message for message in messages}
        rows: list[dict[str, Any]] = []
        for record in records:
            if (message := known.get(record.identity)) is None:
                continue
            handled = self._row(message, now, HANDLED)
            if (run := self._runs.pop(record.identity, None)) is not None:
                handled["attempt"], handled["duration"] = run.attempt, run.duration
            rows.append(handled)
            rows += (self._row(effect.message, now, SENT, handled["identity"]) for effect in record.effects)
        self._database.dialect.insert_all(connection, self._tables[self._number], rows)
        self._left -= len(rows)

    def _entry_row(self, entry: JournalEntry) -> dict[str, Any]:
        return self._row(entry.message, entry.at, entry.outcome) | {
            "attempt": entry.attempt or None,
            "duration": entry.duration,
            "error": entry.error or None,
            "letter": bytes.fromhex(entry.letter) or None,
        }

    def _row(self, message: Message, now: int, outcome: str, parent: bytes | None = None) -> dict[str, Any]:
        return {
            "conversation": conversation_key(message),
            "at": now,
            "identity": message_key(message.identity),
            "parent": parent,
            "endpoint": self._endpoint,
            "type": message.type,
            "outcome": outcome,
            "source": message.source,
            "id": message.id,
            "process": self._process,
            "attempt": None,
            "duration": None,
            "error": None,
            "letter": None,
        }

    async def rotate(self) -> int:
        """Empty the table that is written next, if anything is in it; returns how many. Raises CommitFailed, OutcomeUnknown.

        A table that a reader has locked is left for the next time. So is one with events that are not old enough: a process
        that had not heard of another one's setting has written there.
        """
        now = self._database.clock.now()
        await self._retention.agree(now)
        table = self._tables[(self._number_at(now) + 1) % TABLES]
        async with self._database.reading() as connection:
            if not await connection.run_sync(_row_span, table):
                return 0
        try:
            async with self._database.writing() as connection:
                return int(await connection.run_sync(self._empty, table))
        except CommitFailed as error:
            if self._database.is_locked(error):
                return 0
            raise

    def _empty(self, connection: Connection, table: Table) -> bool:
        maintenance = self._database.dialect.maintenance
        if not maintenance.shut(connection, table, by_rows=False):
            return False
        newest = _newest(connection, table, self._database.clock.now() + self._retention.longest)
        is_old = newest is None or self._database.clock.now() - newest >= self._retention.longest
        return is_old and maintenance.empty(connection, table, by_rows=False)

    async def conversation(self, key: bytes) -> JournalPart:
        """Read the events of a conversation at this endpoint, the oldest 1,000. Raises CommitFailed, OutcomeUnknown."""
        return await self._read("conversation", key)

    async def of_message(self, identity: Identity) -> JournalPart:
        """Read the events of one message at this endpoint. Raises CommitFailed, OutcomeUnknown."""
        return await self._read("identity", message_key(identity))

    async def _read(self, column: str, key: bytes) -> JournalPart:
        now = self._database.clock.now()

        def look(connection: Connection) -> JournalPart:
            self._retention.follow(self._retention.read(connection), now)
            current = self._tables[self._number_at(now)]
            found: list[Any] = []
            for table in self._tables:
                own = table.c
                mine = select(table).where(own[column] == key, own.endpoint == self._endpoint)
                found += connection.execute(mine.order_by(own.at).limit(MOST_EVENTS + 1)).all()
            events = [(row.position, event) for row in found if (event := _readable_event(row)) is not None]
            events.sort(key=lambda each: (each[1].at, each[0]))
            is_full = _row_span(connection, current) >= self._rows
            return JournalPart(
                events=tuple(event for _, event in events[:MOST_EVENTS]), more=len(events) > MOST_EVENTS, is_full=is_full
            )

        async with self._database.reading() as connection:
            return await connection.run_sync(look)

    def _number_at(self, now: int) -> int:
        return now // (self._retention.longest // 2) % TABLES


def _row_span(connection: Connection, table: Table) -> int:
    """Return how many rows the table has at most, by the first and the last position: counting would read them all."""
    first, last = connection.execute(
        select(select(func.min(table.c.position)).scalar_subquery(), select(func.max(table.c.position)).scalar_subquery())
    ).one()
    return 0 if first is None else last - first + 1


def _newest(connection: Connection, table: Table, latest: int) -> int | None:
    """Return when the newest of the last rows happened. Entries that waited for a server are not in the order of time.

    A time that is not a number, or after `latest`, was written by another program and does not count.
    """
    last = select(table.c.at).order_by(table.c.position.desc()).limit(LAST_ROWS)
    return max((at for at in connection.scalars(last) if isinstance(at, int) and at <= latest), default=None)


def _readable_event(row: Any) -> JournalEvent | None:
    """Return the event of a row. None for one that cannot be read, which is logged: SQLite stores any value in any column."""
    return decode_or_report(lambda: _event(row), "journal row", row.position, "left out of the journal")


def _event(row: Any) -> JournalEvent:
    stored = row._mapping  # noqa: SLF001 - the public way to read a row by names
    values = {
        name: stored[name] for name in ("conversation", "at", "parent", "endpoint", "type", "outcome", "process", "duration")
    }
    values |= {"message": row.identity, "identity": (row.source, row.id), "attempt": row.attempt or 0, "error": row.error or ""}
    values["letter"] = "" if row.letter is None else msgspec.convert(row.letter, bytes).hex()
    return msgspec.convert(values, JournalEvent)
