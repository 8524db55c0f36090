"""What the processes of an endpoint report about themselves, and how many events had no subscriber, in tables of the store."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, select, update

from onceonly.formats.minutes import split_history, with_history
from onceonly.formats.undecodable import UNDECODABLE
from onceonly.model.escaping import is_utf8
from onceonly.model.health import ProcessReport, ProcessState
from onceonly.model.minutes import DAY_MS, NO_WORK, QUARTER_MS, WorkHistory, total
from onceonly.ports.maintenance import PresenceState
from onceonly.sql.database import Database
from onceonly.sql.database_clock import DatabaseNow
from onceonly.sql.store.tables import tables

_encode = msgspec.json.Encoder().encode
_counters = msgspec.json.Decoder(dict[str, int]).decode
_texts = msgspec.json.Decoder(tuple[str, ...]).decode
ENDED = "!ended"
"""The row of the processes that have ended, which sorts before all others. Earlier versions show a process that is gone."""
MOST = 1000
"""Processes are read up to here."""
MOST_TYPE_BYTES = 32 * 1024
"""Bytes of the names of all types in one row. The others are left out."""


class SqlPresence:
    """The processes of one endpoint. By the database's clock, which is the same for all of them.

    What a process did is stored among its counters. When its row is removed, that is added to the row `ENDED` in the same
    transaction. All who add to that row wait for each other by its lock, which they take first.
    """

    def __init__(self, database: Database, endpoint: str) -> None:
        self._database = database
        self._endpoint = endpoint
        self._table = tables(database.prefix, database.schema).processes

    async def report(self, report: ProcessReport) -> bool:
        """Update the row by one statement, or insert it; see the port."""
        values = {
            "host": report.host,
            "pid": report.pid,
            "version": report.version,
            "counters": _encode(with_history(report.counters, report.work)),
            "troubles": _encode(report.troubles),
            "types": _encode(tuple(_bounded(report.types))),
        }
        async with self._database.writing() as connection:
            return await connection.run_sync(self._put, report.process, values)

    async def remove(self, process: str, work: WorkHistory = NO_WORK) -> None:
        def put(connection: Connection) -> int | None:
            if work != NO_WORK and not self._lock_ended(connection):
                return None
            self._add_to_ended(connection, [work])
            return connection.execute(delete(self._table).where(self._is(process))).rowcount

        await self._removing(put)

    async def remove_unseen(self, seconds: float) -> int:
        """Look by a range of the primary key first, so that nothing is locked where nothing is to be removed; see the port."""
        own = self._table.c
        unseen = select(own.process, own.counters).where(
            own.endpoint == self._endpoint, own.process != ENDED, own.seen < DatabaseNow() - round(seconds * 1000)
        )
        expired = delete(self._table).where(self._is(ENDED), own.seen < DatabaseNow() - DAY_MS - QUARTER_MS)

        def put(connection: Connection) -> int | None:
            if not connection.execute(unseen).first():
                connection.execute(expired)
                return 0
            if not self._lock_ended(connection):
                return None
            rows = connection.execute(unseen.with_for_update()).all()  # one of them may have reported meanwhile
            self._add_to_ended(connection, [_work(row.counters) for row in rows])
            for row in rows:
                connection.execute(delete(self._table).where(self._is(row.process)))
            return len(rows)

        return await self._removing(put)

    async def read(self) -> Sequence[ProcessState]:
        return (await self.read_all()).processes

    async def read_all(self) -> PresenceState:
        own = self._table.c
        query = select(self._table, DatabaseNow().label("now")).where(own.endpoint == self._endpoint)
        async with self._database.reading() as connection:
            rows = (await connection.execute(query.order_by(own.process).limit(MOST + 1))).all()
        states = [state for row in rows if row.process != ENDED and (state := _state(row)) is not None]
        ended = next((_work(row.counters) for row in rows if row.process == ENDED), NO_WORK)
        return PresenceState(tuple(states[:MOST]), ended)

    def _put(self, connection: Connection, process: str, values: Mapping[str, object]) -> bool:
        change = update(self._table).where(self._is(process)).values(**values, seen=DatabaseNow())
        if connection.execute(change).rowcount:
            return False
        # Only this process writes this key, so nothing comes in between.
        row = {"endpoint": self._endpoint, "process": process, **values, "seen": 0}
        self._database.dialect.insert_absent(connection, self._table, [row], key=["endpoint", "process"])
        connection.execute(change)
        return True

    async def _removing(self, put: Callable[[Connection], int | None]) -> int:
        """Return what `put` returns. If it returns None, the row of ended processes is missing: insert it, and try again.

        That is a transaction of its own: an INSERT that finds a row and a later UPDATE of it would deadlock on MariaDB.
        """
        row = {"endpoint": self._endpoint, "process": ENDED, "host": "", "pid": 0, "version": "", "seen": 0}
        row |= {"counters": b"{}", "troubles": b"[]", "types": b"[]"}
        insert = partial(self._database.dialect.insert_absent, table=self._table, rows=[row], key=["endpoint", "process"])
        while True:
            async with self._database.writing() as connection:
                if (count := await connection.run_sync(put)) is not None:
                    return count
            async with self._database.writing() as connection:
                await connection.run_sync(insert)

    def _lock_ended(self, connection: Connection) -> bool:
        """Lock the row of ended processes until the end of the transaction. Return whether there is one."""
        return connection.execute(update(self._table).where(self._is(ENDED)).values(seen=DatabaseNow())).rowcount > 0

    def _add_to_ended(self, connection: Connection, histories: Sequence[WorkHistory]) -> None:
        """Add to the row of ended processes, which is locked. Change nothing if there is nothing to add."""
        if all(each == NO_WORK for each in histories):
            return
        query = select(self._table.c.counters, DatabaseNow()).where(self._is(ENDED)).with_for_update()
        stored, now = connection.execute(query).one()
        work = total([_work(stored), *histories]).until(int(now))
        connection.execute(update(self._table).where(self._is(ENDED)).values(counters=_encode(with_history({}, work))))

    def _is(self, process: str) -> ColumnElement[bool]:
        own = self._table.c
        return and_(own.endpoint == self._endpoint, own.process == process)


def _work(stored: bytes) -> WorkHistory:
    """Read a history. What is not one counts as empty."""
    try:
        return split_history(_counters(stored))[1]
    except UNDECODABLE:
        return NO_WORK


def _state(row: Any) -> ProcessState | None:
    """Read a row. One that is not a report is ignored: its process reports again within seconds, if it is one."""
    try:
        counters, work = split_history(_counters(row.counters))
        report = ProcessReport(
            process=row.process,
            host=row.host,
            pid=row.pid,
            version=row.version,
            counters=counters,
            troubles=_texts(row.troubles),
            types=_texts(row.types),
        )
        checked = msgspec.convert(msgspec.to_builtins(report), ProcessReport)
        return ProcessState(report=replace(checked, work=work), age=max(0, row.now - row.seen) / 1000)
    except UNDECODABLE:
        return None


def _bounded(types: Sequence[str]) -> Iterator[str]:
    left = MOST_TYPE_BYTES
    for name in filter(is_utf8, types):
        left -= len(name.encode())
        if left < 0:
            return
        yield name


class SqlEventCounts:
    """The counts of one endpoint, one row for each type."""

    def __init__(self, database: Database, endpoint: str) -> None:
        self._database = database
        self._endpoint = endpoint
        self._table = tables(database.prefix, database.schema).unsubscribed

    async def add(self, counts: Mapping[str, int]) -> None:
        own = self._table.c
        rows = [{"endpoint": self._endpoint, "type": kind, "count": 0} for kind in sorted(counts)]
        more = update(self._table).where(own.endpoint == bindparam("of"), own.type == bindparam("kind"))
        more = more.values(count=own["count"] + bindparam("more"))

        def put(connection: Connection) -> None:
            self._database.dialect.insert_absent(connection, self._table, rows, key=["endpoint", "type"])
            for kind in sorted(counts):  # in one order, so that two processes do not wait for each other
                connection.execute(more, {"of": self._endpoint, "kind": kind, "more": counts[kind]})

        async with self._database.writing() as connection:
            await connection.run_sync(put)

    async def read(self) -> Mapping[str, int]:
        own = self._table.c
        query = select(own.type, own["count"]).where(own.endpoint == self._endpoint).order_by(own.type)
        async with self._database.reading() as connection:
            return {row[0]: row[1] for row in await connection.execute(query)}
